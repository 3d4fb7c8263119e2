"""Tensor parallelism: each rank's bytes as planned, and the tokens of one process."""

import pytest

torch = pytest.importorskip("torch")

from kvproof.errors import UsageError  # noqa: E402
from kvproof.lab.elements import cache_types  # noqa: E402
from kvproof.lab.experiments.material import planned_slots  # noqa: E402
from kvproof.lab.generation import generate  # noqa: E402
from kvproof.lab.models.body import Latent  # noqa: E402
from kvproof.lab.models.sources import random_body  # noqa: E402
from kvproof.lab.parallel import kv_heads_of, run_ranks  # noqa: E402

pytestmark = pytest.mark.lab

PROMPT = [5, 17, 99, 3, 42, 7, 8, 120, 77, 31, 2, 6]


def check(runner, kv_heads, ranks, count=20):
    from kvproof.engine.formula import on_rank

    want = generate(runner, PROMPT, count).tokens
    blocks = -(-(len(PROMPT) + count) // 16)
    slots = planned_slots(runner.body) if runner.body.name.startswith("random") else planned_slots()
    planned = sum(blocks * 16 * on_rank(s, ranks).entry_bytes(cache_types()) for s in slots)
    for result in run_ranks(runner, PROMPT, count, ranks):
        assert list(result.tokens) == want
        assert len(result.kv_heads) == max(1, kv_heads // ranks)
        assert result.cache_bytes == planned
    assert generate(runner, PROMPT, count).tokens == want, "the caller's weights moved"


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_hold_their_share(kv_heads, ranks):
    runner = random_body("gqa", heads=8, kv_heads=kv_heads, head_dim=16, hidden=64, vocab=131)
    check(runner, kv_heads, ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_latents_live_whole_on_every_rank(ranks):
    """Heads are shared out, the one latent is not: every rank holds the whole cache."""
    latent = Latent(latent_dim=32, rope_dim=16, nope_dim=16, value_dim=16)
    runner = random_body("mla", heads=8, head_dim=16, hidden=64, vocab=131, latent=latent)
    check(runner, 1, ranks)
    whole = generate(runner, PROMPT, 20).cache_bytes
    assert all(r.cache_bytes == whole for r in run_ranks(runner, PROMPT, 20, ranks))


def test_smollm2_over_three_ranks(smollm):
    check(smollm, 3, 3, count=8)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(UsageError, match="do not divide"):
        kv_heads_of(random_body("gqa", heads=6, kv_heads=3, vocab=8).body, 0, 2)
