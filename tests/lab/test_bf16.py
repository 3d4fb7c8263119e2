"""bf16: logits along the same tokens agree with transformers' within bf16's rounding.

The bound. Both programs round every intermediate to 8 bits, at different places, so neither is the
right one: the right logits are those of the same weights in f32. Transformers' own distance from
them (root mean square) is what bf16 costs. On one text the distance of either program is chance
within some 20 %, for rounding errors of early layers are amplified alike for all later tokens;
transformers' cached and uncached logits differ by as much. So distances are pooled over three
texts, where the lab's may be 25 % above transformers', and on every text the two may be apart by
no more than two such independent errors add up to (root of the sum of squares, 10 % spare).
"""

import math

import pytest

torch = pytest.importorskip("torch")

from kvproof.lab.attention import View  # noqa: E402
from kvproof.lab.experiments.material import text_tokens  # noqa: E402
from kvproof.lab.generate import last_logits, pool_for  # noqa: E402
from kvproof.lab.models.as_transformers import to_transformers  # noqa: E402
from kvproof.lab.models.runner import Runner  # noqa: E402
from kvproof.lab.models.sources import load  # noqa: E402
from kvproof.lab.steps import PagedStep  # noqa: E402

pytestmark = pytest.mark.lab

PREFILL = 16


def passes(tokens):
    return [tokens[:PREFILL]] + [[t] for t in tokens[PREFILL:]]


def ours(runner, tokens):
    pool = pool_for(runner, len(tokens))
    sequence, _ = pool.open()
    out = []
    for new in passes(tokens):
        pool.append(sequence, len(new))
        step = PagedStep(View(pool, [sequence], [len(new)]))
        out.append(last_logits(runner, new, sequence.length - len(new), step))
    return torch.stack(out)


def theirs(model, tokens):
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        rows = [model(torch.tensor([n]), cache=cache).logits[0, -1] for n in passes(tokens)]
    return torch.stack(rows).float()


def rms(x):
    return float(x.square().mean().sqrt())


def test_logits_agree_within_rounding(smollm):
    runner = load(dtype=torch.bfloat16)
    wide = {name: weight.float() for name, weight in runner.weights.items()}
    model, exact_model = to_transformers(runner), to_transformers(Runner(runner.body, wide))
    errors = []
    for tokens in (text_tokens(64), text_tokens(400)[336:], text_tokens(250)[186:]):
        exact = theirs(exact_model, tokens)
        a, b = ours(runner, tokens), theirs(model, tokens)
        errors.append((rms(a - exact), rms(b - exact)))
        assert rms(a - b) <= 1.1 * math.hypot(*errors[-1])
    our_error, their_error = (math.hypot(*side) for side in zip(*errors, strict=True))
    print(f"pooled distance from f32: lab {our_error:.4f}, transformers {their_error:.4f}")
    assert our_error <= 1.25 * their_error
