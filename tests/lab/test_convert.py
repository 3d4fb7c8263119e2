"""MHA to GQA by the means of groups of heads."""

import pytest

torch = pytest.importorskip("torch")

from kvproof.errors import UsageError  # noqa: E402
from kvproof.lab import generate, random_body, to_gqa  # noqa: E402
from kvproof.lab.generation import pool_for  # noqa: E402
from kvproof.lab.models.runner import Runner  # noqa: E402

pytestmark = pytest.mark.lab

PROMPT = [5, 17, 99, 3, 42, 7]


def plain():
    return random_body("mha", heads=4, head_dim=16, hidden=48, vocab=131)


def with_equal_heads(runner, groups):
    """The same body, but each group of its key and value heads holds one head several times."""
    weights = dict(runner.weights)
    for name in [f"{layer}.{part}" for layer in range(runner.body.layers) for part in "kv"]:
        heads = weights[name].view(groups, runner.body.kv_heads // groups, 16, -1)
        weights[name] = heads[:, :1].expand_as(heads).reshape_as(weights[name]).contiguous()
    return Runner(runner.body, weights)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_that_are_equal_lose_nothing(kv_heads):
    runner = with_equal_heads(plain(), kv_heads)
    pooled = to_gqa(runner, kv_heads)
    assert generate(pooled, PROMPT, 20).tokens == generate(runner, PROMPT, 20).tokens


def test_heads_are_means_and_the_cache_is_smaller():
    runner = plain()
    pooled = to_gqa(runner, 2)
    heads = runner.weights["0.k"].view(4, 16, 48)
    assert torch.allclose(pooled.weights["0.k"].view(2, 16, 48)[1], heads[2:].mean(0))
    whole, half = (pool_for(r, 64).allocated_bytes for r in (runner, pooled))
    assert half * 2 == whole


@pytest.mark.parametrize("kv_heads", [0, 3, 8])
def test_heads_that_do_not_divide_are_refused(kv_heads):
    with pytest.raises(UsageError, match="can't be pooled"):
        to_gqa(plain(), kv_heads)
