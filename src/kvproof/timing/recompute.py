"""What the cache saves: a generation with it and without it, in operations and in tokens.

Without a cache every step reruns all earlier tokens; with one each step runs the new token.
Prefill produces the first output token, so `output` tokens take `output - 1` decode steps.
"""

from __future__ import annotations

import msgspec

from kvproof.errors import UsageError
from kvproof.model.types import Model
from kvproof.terms import Term
from kvproof.timing.step import attention_flops


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that pass through the model in one step."""

    step: int
    produces: int
    with_cache: int
    without_cache: int


class WithoutCache(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of a generation with and without the cache.

    Counts are of the weights (2 x parameters x tokens); `attention_flops_last_step` is what
    attention adds at the last step. `closed_form_*` are the literature's approximations
    2N x G and 2N x G x (P + G/2).
    """

    prompt: int
    output: int
    parameters: int
    decode_steps: int
    flops_per_step: int
    flops_with: int
    flops_last_step_without: int
    flops_without: int
    ratio: float
    closed_form_with: float
    closed_form_without: float
    attention_flops_last_step: int
    projection_macs_last_step: int
    cached_values_read_last_step: int
    terms: tuple[Term, ...]

    def table(self, rows: int = 16) -> tuple[StepRow, ...]:
        """Tokens through the model at each step, prefill first; at most `rows` rows."""
        steps = range(min(self.output, rows))
        return tuple(
            StepRow(
                step=i,
                produces=i + 1,
                with_cache=self.prompt if i == 0 else 1,
                without_cache=self.prompt + i,
            )
            for i in steps
        )

    def seconds_last_step_without(self, flops: float) -> float:
        """Seconds that the last uncached step takes at `flops` operations a second."""
        return self.flops_last_step_without / flops


def without_cache(
    model: Model, *, prompt: int, output: int, parameters: int | float | None = None
) -> WithoutCache:
    """Operations for `prompt` tokens in and `output` tokens out, with and without the cache.

    `parameters` overrides the model's active parameters. Raises UsageError below one token.
    """
    if prompt < 1 or output < 1:
        raise UsageError(
            "prompt and output are at least one token", hint="--prompt 1000 --output 500"
        )
    if parameters is not None and not 0 < parameters < 2**63:
        raise UsageError(f"parameters is {parameters}", hint="give a positive count, e.g. 8.03e9")
    count = int(model.active_parameters if parameters is None else parameters)
    steps = output - 1
    rerun = steps * prompt + steps * (steps + 1) // 2
    last = prompt + steps if steps else 0
    width = model.hidden_size
    with_flops, without_flops = 2 * count * steps, 2 * count * rerun
    return WithoutCache(
        prompt=prompt,
        output=output,
        parameters=count,
        decode_steps=steps,
        flops_per_step=2 * count,
        flops_with=with_flops,
        flops_last_step_without=2 * count * last,
        flops_without=without_flops,
        ratio=rerun / steps if steps else 1.0,
        closed_form_with=2.0 * count * output,
        closed_form_without=2.0 * count * output * (prompt + output / 2),
        attention_flops_last_step=attention_flops(model, prompt + steps),
        projection_macs_last_step=2 * (prompt + steps) * width * width,
        cached_values_read_last_step=2 * (prompt + steps) * width,
        terms=_terms(count, steps, rerun, prompt, (with_flops, without_flops)),
    )


def _terms(
    count: int, steps: int, rerun: int, prompt: int, flops: tuple[int, int]
) -> tuple[Term, ...]:
    with_flops, without_flops = flops
    return (
        Term(
            name="with the cache",
            value=with_flops,
            unit="FLOP",
            formula=f"2 x {count:,} x {steps:,} steps = {with_flops:.4g} FLOP",
            source="two operations per parameter and token",
        ),
        Term(
            name="without the cache",
            value=without_flops,
            unit="FLOP",
            formula=f"2 x {count:,} x ({steps:,} x {prompt:,} + {steps:,} x {steps + 1:,} / 2)"
            f" = 2 x {count:,} x {rerun:,} tokens = {without_flops:.4g} FLOP",
            source="every step reruns all earlier tokens",
        ),
    )
