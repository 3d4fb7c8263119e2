"""Every request that is taken ends, in any pool: with the tokens it makes alone.

The model is a rule of three numbers, so that thousands of steps take a second; what is tried is who
runs, who waits, who is paused and what is taken back.
"""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from kvproof.errors import UsageError  # noqa: E402
from kvproof.kinds import FullSlot, LatentSlot, RecurrentSlot, SlidingSlot  # noqa: E402
from kvproof.lab.batching import Batcher  # noqa: E402
from kvproof.lab.elements import cache_types  # noqa: E402
from kvproof.lab.pool.pool import PagedPool  # noqa: E402

pytestmark = pytest.mark.lab

STOP = 3


def slots_of(kinds, window):
    made = {
        "full": FullSlot(layer=0, kv_heads=1, k_dim=2, v_dim=2),
        "sliding": SlidingSlot(layer=1, kv_heads=1, k_dim=2, v_dim=2, window=window),
        "latent": LatentSlot(layer=2, latent_dim=2, rope_dim=2, heads=1, nope_dim=1, value_dim=1),
        "state": RecurrentSlot(layer=3, shape=(2,), mixer="test", heads=1),
    }
    return [made[kind] for kind in kinds]


def next_token(token, position):
    return (31 * token + 17 * position) % 7


class Rule:
    """A runner whose next token follows from the last one and its position."""

    def forward(self, tokens, positions, _step, *, rows):
        logits = torch.zeros(len(rows), 7)
        for row, at in zip(logits, rows.tolist(), strict=True):
            row[next_token(int(tokens[at]), int(positions[at]))] = 1
        return logits


def alone(prompt, count, stop):
    text = list(prompt)
    while len(text) < len(prompt) + count and (len(text) == len(prompt) or text[-1] != stop):
        text.append(next_token(text[-1], len(text) - 1))
    return text[len(prompt) :]


requests = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(1, 14),
    st.sampled_from([None, STOP]), st.integers(0, 3),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.sampled_from([["full"], ["full", "sliding"], ["sliding"], ["sliding", "state"],
                           ["full", "latent", "state"]]),
    window=st.sampled_from([2, 5, 9]), size=st.sampled_from([1, 2, 4]),
    blocks=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    limits=st.tuples(st.sampled_from([1, 2, 64]), st.sampled_from([1, 3, 64])),
    preemption=st.sampled_from(["recompute", "swap"]),
    asked=st.lists(requests, min_size=1, max_size=8),
)  # fmt: skip
def test_all_end_with_their_own_tokens(kinds, window, size, blocks, limits, preemption, asked):
    slots = slots_of(kinds, window)
    groups = len(PagedPool(slots, cache_types(), blocks=1, block_size=size).groups)
    pool = PagedPool(slots, cache_types(), blocks=blocks[:groups], block_size=size)
    sequences, tokens = limits
    batcher = Batcher(Rule(), pool, max_sequences=sequences, max_batched_tokens=tokens,
                      preemption=preemption)  # fmt: skip
    taken, steps = [], 0
    for prompt, count, stop, pause in asked:
        try:
            taken.append((batcher.add(prompt, count, stop=stop), alone(prompt, count, stop)))
        except UsageError:
            continue
        for _ in range(pause):
            batcher.step()
    while not batcher.idle:
        batcher.step()
        pool.check_integrity()
        steps += 1
        assert steps < 2000, "somebody waits for ever"
    assert [request.tokens for request, _ in taken] == [want for _, want in taken]
    assert all(group.books.held == 0 for group in pool.groups)


def test_a_prompt_longer_than_the_pool_slides_through_it():
    """All layers slide, so that it never holds more than its window and a piece."""
    pool = PagedPool(slots_of(["sliding"], 5), cache_types(), blocks=4, block_size=4)
    batcher = Batcher(Rule(), pool, max_batched_tokens=8)
    prompt = [1] * 90
    request = batcher.add(prompt, 9)
    batcher.run()
    assert request.tokens == alone(prompt, 9, None)
    with pytest.raises(UsageError, match="needs 5 blocks, the pool has 4"):
        Batcher(Rule(), pool, max_batched_tokens=11).add(prompt, 9)


@pytest.mark.parametrize("window", [None, 4])
def test_who_fits_to_the_last_entry_comes_back(window):
    """A swapped request needs no block more than its next token takes."""
    slots = slots_of(["full"] if window is None else ["sliding"], window)
    pool = PagedPool(slots, cache_types(), blocks=3, block_size=4)
    batcher = Batcher(Rule(), pool, max_batched_tokens=4, preemption="swap")
    requests = [batcher.add([1, 0, 1, 1, 0], 7), batcher.add([0, 1, 1], 9)]
    batcher.run()
    assert [r.tokens for r in requests] == [alone(r.prompt, r.max_tokens, None) for r in requests]
