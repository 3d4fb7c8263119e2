"""bf16: logits along the same tokens are at least as near the exact ones as transformers' are.

The bound. Right are the logits of the same bf16 weights computed in f32; a bf16 program differs
from them by its roundings, each of relative size up to u = 2**-8. Per layer and token transformers
rounds about twenty intermediates (norms twice each, q, k, v, six in the rotary turn, attention,
output, two residual sums, gate, up, SiLU, their product, down). The lab rounds a part of the same:

    decode step     two: the key and the value that it stores; the rest of a row is f32
    whole pass      all but the residual sums and one of each norm's two; the residual sums hold the
                    largest numbers, so theirs are the largest errors

Roundings act like independent errors: variances add up, and leaving some out leaves less. So the
lab may never be farther from the exact logits than transformers is, on any text, with no factor.
"""

import pytest

torch = pytest.importorskip("torch")

from kvproof.lab.attention import View  # noqa: E402
from kvproof.lab.experiments.material import text_tokens  # noqa: E402
from kvproof.lab.generation import last_logits, pool_for  # noqa: E402
from kvproof.lab.models.as_transformers import to_transformers  # noqa: E402
from kvproof.lab.models.runner import Runner  # noqa: E402
from kvproof.lab.models.sources import load  # noqa: E402
from kvproof.lab.steps import PagedStep, Uncached  # noqa: E402

pytestmark = pytest.mark.lab

PREFILL, LENGTH = 16, 56


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


def ours(runner, tokens):
    """Logits of every decode step, through the paged cache."""
    pool = pool_for(runner, len(tokens))
    sequence, _ = pool.open()
    out = []
    for new in passes(tokens):
        pool.append(sequence, len(new))
        step = PagedStep(View(pool, [sequence], [len(new)]))
        out.append(last_logits(runner, new, sequence.length - len(new), step))
    return torch.stack(out[1:])


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


@pytest.mark.parametrize("start", TEXTS)
def test_decode_steps_are_no_farther_from_exact(runner, models, start):
    tokens = text_tokens(start + LENGTH)[start:]
    rounded, exact = (theirs(model, tokens) for model in models)
    error, their_error = rms(ours(runner, tokens) - exact), rms(rounded - exact)
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
