"""Eviction: what each policy keeps, and what is recalled of a page after it."""

import pytest

torch = pytest.importorskip("torch")

from kvproof.errors import UsageError  # noqa: E402
from kvproof.lab.attention import View  # noqa: E402
from kvproof.lab.elements import cache_types  # noqa: E402
from kvproof.lab.eviction import EvictingStep, SlotsStep, chosen, split_heads  # noqa: E402
from kvproof.lab.experiments import evicting  # noqa: E402
from kvproof.lab.experiments.material import tokenizer  # noqa: E402
from kvproof.lab.experiments.needles import page, sentences  # noqa: E402
from kvproof.lab.pool.pool import PagedPool  # noqa: E402

pytestmark = pytest.mark.lab


def test_policies_keep_what_they_say():
    mass = torch.tensor([0.0, 9.0, 1.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert chosen("window", 10, 6, mass).tolist() == [4, 5, 6, 7, 8, 9]
    assert chosen("sinks", 10, 6, mass).tolist() == [0, 1, 2, 3, 8, 9]
    assert chosen("heavy", 10, 6, mass).tolist() == [1, 2, 3, 7, 8, 9]
    assert chosen("heavy", 5, 6, mass[:5]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("by_head", [False, True])
def test_forks_answer_as_if_asked_alone(small, by_head):
    """A pass over several forks of a cut sequence gives each the logits of its own pass."""
    slots = split_heads(small.body.slots) if by_head else small.body.slots
    pool = PagedPool(slots, cache_types(), blocks=40, groups="layer", share_prefixes=False)
    step = EvictingStep(pool, pool.open()[0])
    text = [(7 * i) % 211 for i in range(40)]
    step.begin(40)
    small.forward(torch.tensor(text), torch.arange(40), step, rows=torch.arange(40))
    step.evict("heavy", 21)
    assert all(len(kept.positions) == len(kept.mass) == 21 for kept in step.kept.values())
    asked, alone = [[5, 9, 2], [11, 3, 8, 1]], []
    for tokens in asked:
        twin = EvictingStep(pool, pool.fork(step.sequence))
        twin.kept = dict(step.kept)
        twin.begin(len(tokens))
        rows = torch.arange(len(tokens))
        alone.append(small.forward(torch.tensor(tokens), 40 + rows, twin, rows=rows))
        pool.close(twin.sequence)
    forks = [pool.fork(step.sequence) for _ in asked]
    for fork, tokens in zip(forks, asked, strict=True):
        pool.append(fork, len(tokens))
    together = SlotsStep(View(pool, forks, [3, 4]))
    places = torch.tensor([40, 41, 42, 40, 41, 42, 43])
    flat = torch.tensor([*asked[0], *asked[1]])
    got = small.forward(flat, places, together, rows=torch.arange(7))
    assert torch.allclose(got, torch.cat(alone), atol=1e-4)


def test_bounds_that_read_together_keep_what_each_keeps_alone(smollm):
    bounds = [evicting.Bound("heavy", n, 16, by_head=True) for n in (16, 32)]
    text = page(48, 1).tokens
    for bound, (step, logits) in zip(bounds, evicting.read(bounds, text), strict=True):
        ((alone, wanted),) = evicting.read([bound], text)
        assert torch.allclose(logits, wanted, atol=1e-3)
        assert [k.positions.tolist() for k in step.kept.values()] == [
            k.positions.tolist() for k in alone.kept.values()
        ]


def test_needles_lie_where_the_page_says(smollm):
    told = page(120, 5)
    assert len(told.tokens) == 120
    for needle, sentence in zip(told.needles, sentences(), strict=False):
        inside = told.tokens[needle.start : needle.end]
        assert inside == [*needle.cue, *needle.number]
        text = tokenizer().decode(inside)
        assert text.startswith(f"\n\n{sentence} ")
        assert len(needle.number) == len(text.rpartition(" ")[2]) == 4


def test_needles_that_do_not_fit_are_told_so(smollm):
    with pytest.raises(UsageError, match="tokens long"):
        page(60, 24)
    with pytest.raises(UsageError, match="there are 24 needles"):
        page(2000, 25)


def test_the_whole_cache_finds_what_a_window_dropped(smollm):
    """The measure sees the loss: all or nearly all with everything kept, what is held without."""
    told = page(160, 8)
    found = {}
    for policy in (None, "window"):
        bound = evicting.Bound(policy, 48 if policy else 160, 32, by_head=False)
        ((step, _),) = evicting.read([bound], told.tokens, len(told.needles))
        found[policy] = evicting._found(step, told.needles)
        kept = bound.kept(160)
        assert all(set(k.positions.tolist()) == kept for k in step.kept.values())
    assert len(found[None]) >= 7
    held = {i for i, n in enumerate(told.needles) if n.digits <= kept}
    assert found["window"] <= held
    assert len(held) < 4
