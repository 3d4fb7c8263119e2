"""Classes that vLLM has none of its own for: what its Transformers backend makes of them.

Most run as their slots say. `data/transformers_backend.json` names those that it refuses, those
that it runs on one pipeline stage only, and those whose states or indexers it does not keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from kvproof.engine.vllm.versions import Rules, parse_version
from kvproof.errors import UsageError
from kvproof.kinds import ConvSlot, IndexerSlot, RecurrentSlot, SlidingSlot
from kvproof.model.types import Model

_DATA = Path(__file__).with_name("data") / "transformers_backend.json"
_OWN_WINDOWS = "MiMoV2"


class Table(msgspec.Struct, frozen=True):
    """The table: classes by why they are refused, and by what is left of them."""

    source: str
    since: str
    refused: Mapping[str, frozenset[str]]
    one_stage: frozenset[str]
    attention_only: frozenset[str]


@cache
def table() -> Table:
    """The table as read."""
    return msgspec.json.decode(_DATA.read_bytes(), type=Table)


def check_fallback(model: Model, rules: Rules, stages: int) -> None:
    """Raise UsageError for a class that the Transformers backend does not run."""
    known = table()
    if rules.version < parse_version(known.since):
        return
    for why, names in known.refused.items():
        if model.architecture in names:
            raise UsageError(
                f"vLLM has no class for {model.architecture}, and its Transformers backend does "
                f"not run it: {why}",
                hint="choose another engine",
            )
    if stages > 1 and model.architecture in known.one_stage:
        raise UsageError(
            f"vLLM has no pipeline parallelism for {model.architecture}",
            hint="use tensor_parallel_size",
        )


def as_run(model: Model, rules: Rules) -> Model:
    """The model with the caches that vLLM keeps of it: of some only those of attention, and
    MiMo-V2's windows in widths of their own."""
    known = table()
    if rules.version < parse_version(known.since):
        return model
    slots = model.slots
    if model.architecture in known.attention_only:
        left_out = ConvSlot | RecurrentSlot | IndexerSlot
        slots = tuple(s for s in slots if not isinstance(s, left_out))
    if model.architecture.startswith(_OWN_WINDOWS):
        slots = tuple(_own_window(model, s) if isinstance(s, SlidingSlot) else s for s in slots)
    return model if slots == model.slots else msgspec.structs.replace(model, slots=slots)


def _own_window(model: Model, slot: SlidingSlot) -> SlidingSlot:
    """The slot by the widths that the config names for windows, as vLLM's class reads them.

    transformers' class gives windows the others' widths. Source: vLLM 0.32, models/mimo_v2.py.
    """
    width = model.number("swa_head_dim") or slot.k_dim
    values = model.number("swa_v_head_dim") or slot.v_dim
    heads = model.number("swa_num_key_value_heads") or slot.kv_heads
    return msgspec.structs.replace(slot, k_dim=width, v_dim=values, kv_heads=heads)
