"""Default configs, their values for bounding loops, and the classes that have a rule by hand."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from kvproof.model.recipe_operations import OPERATIONS

from .expressions import NATIVE, E

EXTRA: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_kv_shared_layers": 30,
        }
    },
}


@functools.cache
def default_config(model_type: str) -> Any:
    """A config of the class's defaults, completed where they do not run alone."""
    return CONFIG_MAPPING[model_type](**EXTRA.get(model_type, {}))


def evaluator(inst: Any) -> Callable[[Any], Any]:
    """Values of expressions at the default config; the largest over a loop's first turns."""

    def value(expr: Any, turn: int, done: dict[E, Any]) -> Any:
        if not isinstance(expr, E):
            return expr
        if expr not in done:
            done[expr] = compute(expr, turn, done)
        return done[expr]

    def compute(expr: E, turn: int, done: dict[E, Any]) -> Any:
        if expr.op == "c":
            found = inst
            for name in expr.args:
                found = found[name] if isinstance(found, dict) else getattr(found, name)
            return found
        if expr.op == "v":
            return turn
        if expr.op == "if":
            return value(expr.args[1 if value(expr.args[0], turn, done) else 2], turn, done)
        if expr.op in ("and", "or"):
            left = value(expr.args[0], turn, done)
            return value(expr.args[1], turn, done) if bool(left) == (expr.op == "and") else left
        if expr.op == "tuple":
            return [value(a, turn, done) for a in expr.args]
        return (NATIVE.get(expr.op) or OPERATIONS[expr.op])(
            *[value(a, turn, done) for a in expr.args]
        )

    def largest(expr: Any) -> Any:
        best = None
        for turn in range(12 if isinstance(expr, E) and expr.free else 1):
            try:
                found = value(expr, turn, {})
            except Exception:  # that turn's value does not exist at the defaults
                continue
            best = found if best is None or not isinstance(found, int) else max(best, found)
        if best is None:
            raise ValueError(f"no default for {expr!r}")
        return best

    return largest
