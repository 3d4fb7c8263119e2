"""bf16: logits along the same tokens agree with transformers' within bf16's rounding.

The bound. Both programs round every intermediate to 8 bits, at different places, so neither is the
right one: the right logits are those of the same weights in f32. Transformers' distance from them
is what bf16 costs; the lab may cost 10 % more at most, and the two programs' distance from each
other at most what two such independent errors add up to (root of the sum of squares, 10 % spare).
"""

import math

import pytest

torch = pytest.importorskip("torch")

from kvproof.lab.attention import View  # noqa: E402
from kvproof.lab.generate import last_logits, pool_for  # noqa: E402
from kvproof.lab.models.as_transformers import to_transformers  # noqa: E402
from kvproof.lab.models.runner import Runner  # noqa: E402
from kvproof.lab.models.sources import load  # noqa: E402
from kvproof.lab.steps import PagedStep  # noqa: E402

pytestmark = pytest.mark.lab

PROMPT = [1, 4093, 198, 1780, 346, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


def test_logits_agree_within_rounding(smollm):
    runner = load(dtype=torch.bfloat16)
    model = to_transformers(runner)
    pool = pool_for(runner, 80)
    sequence, _ = pool.open()
    tokens, ours = list(PROMPT), []
    for _ in range(48):
        new = tokens[sequence.length :]
        pool.append(sequence, len(new))
        step = PagedStep(View(pool, [sequence], [len(new)]))
        ours.append(last_logits(runner, new, sequence.length - len(new), step))
        tokens.append(int(ours[-1].argmax()))
    wide = {name: weight.float() for name, weight in runner.weights.items()}
    exact_model = to_transformers(Runner(runner.body, wide))
    with torch.inference_mode():
        ids = torch.tensor([tokens[:-1]])
        theirs = model(ids).logits[0, len(PROMPT) - 1 :].float()
        exact = exact_model(ids).logits[0, len(PROMPT) - 1 :]
    got = torch.stack(ours)
    our_error, their_error = rms(got - exact), rms(theirs - exact)
    print(f"rms {rms(exact):.3f}: ours {our_error:.4f}, theirs {their_error:.4f}, "
          f"apart {rms(got - theirs):.4f}")  # fmt: skip
    assert our_error <= 1.1 * their_error
    assert rms(got - theirs) <= 1.1 * math.hypot(our_error, their_error)


def rms(x):
    return float(x.square().mean().sqrt())
