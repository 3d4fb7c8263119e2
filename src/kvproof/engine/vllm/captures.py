"""Which CUDA graphs a start's flags ask for, and whether the compiler runs.

Sources: vLLM 0.32, config/vllm.py (OPTIMIZATION_LEVEL_00 to _03, _set_cudagraph_sizes) and
config/compilation.py (CUDAGraphMode); 0.11, engine/arg_utils.py: -O is the compilation config,
whose level 0 captures nothing; --cuda-graph-sizes of 0.9 to 0.11 is the largest batch, or each one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.errors import UsageError

_MODES = {"0": "NONE", "1": "PIECEWISE"}
_PIECES = ("", "PIECEWISE", "FULL_AND_PIECEWISE")
_DECODES = ("", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
"""Modes with graphs of pieces, and with graphs of whole decode steps; none named is both."""


def compiles(flags: Mapping[str, Any]) -> bool:
    """Whether the compiler runs, which enforce_eager and level 0 leave out."""
    return not flags.get("enforce_eager") and _level(flags) != 0


def captures(flags: Mapping[str, Any]) -> bool:
    """Whether any graph is captured."""
    return compiles(flags) and _mode(flags) != "NONE"


def captures_pieces(flags: Mapping[str, Any]) -> bool:
    """Whether graphs of pieces are captured, for batches of any kind."""
    return _mode(flags) in _PIECES


def captures_decodes(flags: Mapping[str, Any]) -> bool:
    """Whether graphs of whole steps are captured."""
    return _mode(flags) in _DECODES


def named_batches(flags: Mapping[str, Any]) -> tuple[int, ...]:
    """The batches that the flags name one by one; none where they follow a largest one."""
    config = _config(flags)
    named = flags.get("cudagraph_capture_sizes") or config.get("cudagraph_capture_sizes") or ()
    older = flags.get("cuda_graph_sizes") or ()
    return _batches(named) or (_batches(older) if len(older) > 1 else ())


def largest_batch(flags: Mapping[str, Any]) -> int | None:
    """The largest batch that graphs are captured for, where the flags name it."""
    older = flags.get("cuda_graph_sizes") or ()
    named = flags.get("max_cudagraph_capture_size") or _config(flags).get(
        "max_cudagraph_capture_size"
    )
    found = _batches([named] if named else older if len(older) == 1 else ())
    return found[0] if found else None


def batches_up_to(most: int) -> list[int]:
    """Batch sizes that graphs are captured for: 1, 2, 4, then steps of 8, from 256 on of 16."""
    small = [size for size in (1, 2, 4) if size <= most]
    return [*small, *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16)]


def _batches(values: Any) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(value) for value in values}))
    except (TypeError, ValueError):
        raise UsageError(
            "a captured batch is no number", hint="give sizes such as 1 2 4 8"
        ) from None
    if found and found[0] < 1:
        raise UsageError(f"a captured batch is {found[0]}", hint="give 1 or more")
    return found


def _config(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """The compilation config, also as -O took it in JSON."""
    given = flags.get("compilation_config") or {}
    short = str(flags.get("optimization_level") or "")
    if short.lstrip().startswith("{"):
        try:
            given = {**msgspec.json.decode(short), **given}
        except (msgspec.DecodeError, RecursionError, TypeError):
            raise UsageError("-O is no JSON object", hint="check it") from None
    return given


def _level(flags: Mapping[str, Any]) -> int | None:
    """The level of optimization; None where none is named."""
    config = _config(flags)
    asked = flags.get("optimization_level")
    level = config.get("level") if asked is None or str(asked).startswith("{") else asked
    text = str(level).rpartition("O")[2]
    return int(text) if text.isdigit() else None


def _mode(flags: Mapping[str, Any]) -> str:
    """The mode of capturing; empty where none is named."""
    named = str(_config(flags).get("cudagraph_mode") or "").upper().rpartition(".")[2]
    if not named and _config(flags).get("level") in (1, 2):
        return "NONE"  # before 0.12, level 3 alone captured
    if not named and _level(flags) == 1:
        return "PIECEWISE"
    named = _MODES.get(named, named)
    return named if named in (*_PIECES, *_DECODES, "NONE") else ""
