"""bf16: logits along the same tokens are at least as near the exact ones as transformers' are.

The bound. Right are the logits of the same bf16 weights computed in f32; a bf16 program differs
from them by its roundings, each of relative size up to u = 2**-8. Per layer and token transformers
rounds about twenty intermediates (norms twice each, q, k, v, six in the rotary turn, attention,
output, two residual sums, gate, up, SiLU, their product, down). The lab rounds a part of the same:

    decode step     two: the key and the value that it stores; the rest of a row is f32
    whole pass      all but the residual sums and one of each norm's two; the residual sums hold the
                    largest numbers, so theirs are the largest errors

Roundings act like independent errors: variances add up, and leaving some out leaves less. So the
lab may never be farther from the exact logits than transformers is, on any text, with no factor;
nor where blocks are shared, read together, swapped or computed again in the middle.
"""

import pytest

torch = pytest.importorskip("torch")

from kvproof.lab.attention import View  # noqa: E402
from kvproof.lab.experiments.material import text_tokens  # noqa: E402
from kvproof.lab.generation import pool_for  # noqa: E402
from kvproof.lab.models.as_transformers import to_transformers  # noqa: E402
from kvproof.lab.models.runner import Runner  # noqa: E402
from kvproof.lab.models.sources import load  # noqa: E402
from kvproof.lab.pool.swap import swap_in, swap_out  # noqa: E402
from kvproof.lab.steps import PagedStep, Uncached  # noqa: E402

pytestmark = pytest.mark.lab

PREFILL, HALF, LENGTH = 16, 37, 56
WAYS = ["paged", "shared", "batched", "swapped", "recomputed"]


@pytest.fixture(scope="module")
def runner():
    return load(dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def models(runner):
    """transformers in bf16, and in f32 with the same bf16 numbers as weights."""
    wide = {name: weight.float() for name, weight in runner.weights.items()}
    return to_transformers(runner), to_transformers(Runner(runner.body, wide))


def passes(tokens):
    return [tokens[:PREFILL]] + [[t] for t in tokens[PREFILL:]]


def ours(runner, tokens, way):
    """Logits of every decode step, through a paged cache that is shared, moved or in company."""
    texts = [tokens, tokens[::-1], tokens[9:] + tokens[:9]][: 3 if way == "batched" else 1]
    pool = pool_for(runner, LENGTH, sequences=3)
    if way == "shared":
        read(runner, pool, [pool.open()[0]], [tokens], PREFILL + 1)
    rows = [pool.open(text[: PREFILL + 1])[0] for text in texts]
    assert rows[0].length == (PREFILL if way == "shared" else 0)
    out = []
    for end in range(PREFILL, LENGTH + 1):
        if end == HALF and way in ("swapped", "recomputed"):
            rows = [away_and_back(pool, rows[0], way)]
        if end > rows[0].length:
            out.append(read(runner, pool, rows, texts, end)[0])
    return torch.stack(out[-(LENGTH - PREFILL) :])


def away_and_back(pool, sequence, way):
    if way == "swapped":
        copy = swap_out(pool, sequence)
        for tensor in pool.groups[0].tensors():
            tensor.fill_(7)
        return swap_in(pool, copy)
    pool.close(sequence)
    return pool.open()[0]


def read(runner, pool, rows, texts, end):
    """One pass that brings every row to `end` tokens: the logits after each row's last."""
    starts = [row.length for row in rows]
    for row in rows:
        pool.append(row, end - row.length)
    step = PagedStep(View(pool, rows, [end - start for start in starts]))
    places = torch.cat([torch.arange(start, end) for start in starts])
    ids = torch.tensor([t for text, n in zip(texts, starts, strict=True) for t in text[n:end]])
    last = torch.tensor([end - start for start in starts]).cumsum(0) - 1
    logits = runner.forward(ids, places, step, rows=last)
    for row, text in zip(rows, texts, strict=True):
        pool.settle(row, text[:end])
    return logits


def theirs(model, tokens):
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        rows = [model(torch.tensor([n]), cache=cache).logits[0, -1] for n in passes(tokens)]
    return torch.stack(rows[1:]).float()


def whole(model, tokens):
    """Logits of every token in one pass."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float()


def rms(x):
    return float(x.square().mean().sqrt())


TEXTS = [0, 336, 186]


@pytest.mark.parametrize(
    ("start", "way"), [(start, "paged") for start in TEXTS] + [(TEXTS[0], w) for w in WAYS[1:]]
)
def test_decode_steps_are_no_farther_from_exact(runner, models, start, way):
    tokens = text_tokens(start + LENGTH)[start:]
    rounded, exact = (theirs(model, tokens) for model in models)
    error, their_error = rms(ours(runner, tokens, way) - exact), rms(rounded - exact)
    print(f"distance from f32: lab {error:.4f}, transformers {their_error:.4f}")
    assert 0 < error <= their_error


@pytest.mark.parametrize("start", TEXTS)
def test_whole_passes_are_no_farther_from_exact(runner, models, start):
    tokens = text_tokens(start + LENGTH)[start:]
    rounded, exact = (whole(model, tokens) for model in models)
    rows = torch.arange(LENGTH)
    got = runner.forward(torch.tensor(tokens), rows, Uncached(), rows=rows)
    error, their_error = rms(got - exact), rms(rounded - exact)
    print(f"distance from f32: lab {error:.4f}, transformers {their_error:.4f}")
    assert 0 < error <= their_error
