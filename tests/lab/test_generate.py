"""The same tokens whatever the cache, and the same as transformers' own."""

import pytest

torch = pytest.importorskip("torch")

from kvproof.lab.generation import generate, last_logits, pool_for  # noqa: E402
from kvproof.lab.models.as_transformers import to_transformers  # noqa: E402
from kvproof.lab.models.sources import random_body  # noqa: E402
from kvproof.lab.paged_cache import PagedCache  # noqa: E402
from kvproof.lab.steps import Uncached  # noqa: E402

# transformers 5.24 calls the argument `cache`; the older `past_key_values` must work as well.
pytestmark = [
    pytest.mark.lab,
    pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning"),
]

PROMPT = [5, 17, 99, 3, 42, 7, 8, 120, 77, 31, 2, 6]


@pytest.mark.parametrize("attention", ["mha", "gqa", "mqa", "mla"])
@pytest.mark.parametrize("windows", [(), (None, 7)])
def test_every_cache_gives_the_same_tokens(attention, windows):
    if attention == "mla" and windows:
        pytest.skip("a latent body has no windows")
    runner = random_body(attention, heads=4, head_dim=16, hidden=48, vocab=131, windows=windows)
    want = generate(runner, PROMPT, 24, cache="none").tokens
    for cache in ("paged", "contiguous", "static"):
        assert generate(runner, PROMPT, 24, cache=cache).tokens == want, cache


def theirs(model, prompt, count, **rest):
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
        eos_token_id=None, **rest,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def test_the_runner_equals_transformers(small):
    model = to_transformers(small)
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        want = model(ids).logits[0, -1]
    got = last_logits(small, PROMPT, 0, Uncached())
    assert torch.allclose(got, want, atol=2e-5)
    assert generate(small, PROMPT, 60).tokens == theirs(model, PROMPT, 60)


@pytest.mark.parametrize("beams", [1, 3])
def test_paged_cache_in_transformers_generate(small, beams):
    model = to_transformers(small)
    want = theirs(model, PROMPT, 40, num_beams=beams)
    cache = PagedCache(model.config, tokens=64)
    assert theirs(model, PROMPT, 40, num_beams=beams, past_key_values=cache) == want
    cache.pool.check_integrity()


def test_a_second_prompt_reuses_sealed_blocks(small):
    pool = pool_for(small, 96, sequences=2)
    first = generate(small, PROMPT * 3, 20, cache=pool)
    again = generate(small, PROMPT * 3, 20, cache=pool)
    assert (first.cached_tokens, again.cached_tokens) == (0, 32)
    assert again.tokens == first.tokens


def test_200_greedy_tokens_of_smollm2(smollm):
    """Issue 5's bound: in f32 the same 200 greedy tokens, by our runner and by PagedCache."""
    prompt = [1, 4093, 198, 1780, 346, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    model = to_transformers(smollm)
    want = theirs(model, prompt, 200)
    assert generate(smollm, prompt, 200).tokens == want
    cache = PagedCache(model.config, tokens=256)
    assert theirs(model, prompt, 200, past_key_values=cache) == want


def test_public_names_are_what_they_say():
    """A module of the same name, once imported, would hide what is offered."""
    import kvproof.lab

    for name in kvproof.lab.__all__:
        assert callable(getattr(kvproof.lab, name)), name
