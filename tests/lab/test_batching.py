"""Continuous batching: in f32 the same tokens as one by one, whatever happens on the way."""

import pytest

torch = pytest.importorskip("torch")

from kvproof.errors import UsageError  # noqa: E402
from kvproof.lab.batching import Batcher  # noqa: E402
from kvproof.lab.elements import cache_types  # noqa: E402
from kvproof.lab.generation import generate  # noqa: E402
from kvproof.lab.models.sources import random_body  # noqa: E402
from kvproof.lab.pool.pool import PagedPool  # noqa: E402
from kvproof.lab.sampling import Sampling  # noqa: E402

pytestmark = pytest.mark.lab


def prompts(count, vocab, seed=0):
    made = torch.Generator().manual_seed(seed)
    shared = torch.randint(vocab, (40,), generator=made).tolist()
    out = []
    for i in range(count):
        length = int(torch.randint(3, 30, (1,), generator=made))
        own = torch.randint(vocab, (length,), generator=made).tolist()
        out.append((shared if i % 2 else []) + own)
    return out


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("blocks", [200, 9])
def test_batched_tokens_are_those_of_one_by_one(small, preemption, blocks):
    pool = PagedPool(small.body.slots, cache_types(), blocks=blocks, block_size=16)
    batcher = Batcher(small, pool, preemption=preemption, max_batched_tokens=100)
    asked = prompts(9, small.body.vocab)
    requests = [batcher.add(p, 30) for p in asked]
    while not batcher.idle:
        batcher.step()
        pool.check_integrity()
    assert [r.tokens for r in requests] == [generate(small, p, 30).tokens for p in asked]
    assert (batcher.counters.preemptions > 0) == (blocks == 9)
    assert batcher.counters.hit_tokens > 0
    assert pool.usage == 0


@pytest.mark.parametrize("attention", ["mqa", "mla"])
def test_other_designs_batch_too(attention):
    runner = random_body(attention, heads=4, head_dim=32, hidden=64, vocab=149)
    pool = PagedPool(runner.body.slots, cache_types(), blocks=8, block_size=16)
    batcher = Batcher(runner, pool)
    asked = prompts(4, 149)
    requests = [batcher.add(p, 25) for p in asked]
    batcher.run()
    assert [r.tokens for r in requests] == [generate(runner, p, 25).tokens for p in asked]


def test_a_sliding_body_batches():
    runner = random_body("gqa", heads=4, head_dim=32, hidden=64, vocab=149, windows=(None, 9))
    pool = PagedPool(runner.body.slots, cache_types(), blocks=[12, 9], block_size=16)
    batcher = Batcher(runner, pool)
    asked = prompts(5, 149)
    requests = [batcher.add(p, 40) for p in asked]
    batcher.run()
    assert [r.tokens for r in requests] == [generate(runner, p, 40).tokens for p in asked]


def test_a_request_that_never_fits_is_refused(small):
    pool = PagedPool(small.body.slots, cache_types(), blocks=4, block_size=16)
    with pytest.raises(UsageError, match="needs 5 blocks"):
        Batcher(small, pool).add([1] * 40, 30)


def test_a_stop_token_ends_a_request(small):
    pool = PagedPool(small.body.slots, cache_types(), blocks=9, block_size=16)
    tokens = generate(small, [1, 2, 3], 10).tokens
    batcher = Batcher(small, pool)
    request = batcher.add([1, 2, 3], 10, stop=tokens[4])
    batcher.run()
    assert request.tokens == tokens[: tokens.index(tokens[4]) + 1]


def test_a_long_prompt_does_not_stall_the_others(small):
    """It goes through in pieces: every step still makes a token of the request that runs."""
    vocab = small.body.vocab
    pool = PagedPool(small.body.slots, cache_types(), blocks=40, block_size=16)
    batcher = Batcher(small, pool, max_batched_tokens=24)
    short, long = prompts(1, vocab)[0][:8], torch.randint(vocab, (230,)).tolist()
    first = batcher.add(short, 30)
    batcher.step()
    second = batcher.add(long, 6)
    steps = 0
    while not second.tokens:
        made, held = len(first.tokens), batcher.counters.prefill_tokens
        batcher.step()
        steps += 1
        assert len(first.tokens) == made + 1
        assert batcher.counters.prefill_tokens - held <= 23
        pool.check_integrity()
    assert steps == 10  # 230 tokens in pieces of 23
    batcher.run()
    assert first.tokens == generate(small, short, 30).tokens
    assert second.tokens == generate(small, long, 6).tokens


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_pieces_and_preemption_together(small, preemption):
    pool = PagedPool(small.body.slots, cache_types(), blocks=9, block_size=16)
    batcher = Batcher(small, pool, preemption=preemption, max_batched_tokens=16)
    asked = prompts(7, small.body.vocab)
    requests = [batcher.add(p, 30) for p in asked]
    while not batcher.idle:
        batcher.step()
        pool.check_integrity()
    assert [r.tokens for r in requests] == [generate(small, p, 30).tokens for p in asked]
    assert batcher.counters.preemptions > 0


def test_sampled_tokens_are_those_of_one_by_one(small):
    sampling = [Sampling(temperature=1.5, top_p=0.9, seed=i) for i in range(4)]
    pool = PagedPool(small.body.slots, cache_types(), blocks=40, block_size=16)
    batcher = Batcher(small, pool)
    asked = prompts(4, small.body.vocab)
    requests = [batcher.add(p, 20, sampling=s) for p, s in zip(asked, sampling, strict=True)]
    batcher.run()
    alone = [generate(small, p, 20, sampling=s) for p, s in zip(asked, sampling, strict=True)]
    assert [r.tokens for r in requests] == [one.tokens for one in alone]
    assert requests[0].tokens != generate(small, asked[0], 20).tokens
