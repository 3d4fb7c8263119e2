"""Drafts of SGLang: which layers they have, and their own model where its config can be read.

Sources: SGLang 0.5.14, 0.5.18 and 0.5.23, model_executor/pool_configurator.py and
model_runner_components/spec_aux_hidden_state.py: before 0.5.14 nothing is counted for a draft.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.drafts import DraftCache, own_tensors
from kvproof.engine.rank_weights import layer_weight_bytes, rank_weight_bytes
from kvproof.engine.sglang.backend import kv_type
from kvproof.engine.sglang.flags import Flags, read_flags
from kvproof.kinds import FullSlot, LatentSlot, Slot, Types, element_type
from kvproof.model.load import load_offline, unread_draft
from kvproof.model.types import Model

BLOCK_DRAFTS = ("DFLASH", "DSPARK")
"""Drafts of a block at once, sized by their own config."""
_HEADS = ("EAGLE", "EAGLE3", "NEXTN")
_COUNTED = (*_HEADS, "STANDALONE")


def draft_layers(model: Model, flags: Flags) -> int:
    """Layers of a draft that sizing counts at the target's bytes a layer."""
    if not flags.rules.draft_counted or flags.algorithm not in _COUNTED:
        return 0
    own = own_draft(flags)
    if own is not None:
        return own.predicting_layers or own.layers
    named = flags.get("speculative_draft_model_path") or flags.algorithm in ("EAGLE3", "STANDALONE")
    return (0 if named else model.predicting_layers) or int(flags.algorithm != "STANDALONE")


def own_draft(flags: Flags) -> Model | None:
    """The draft's own model, where it is named, counted, and its config is at hand."""
    path = flags.get("speculative_draft_model_path")
    return load_offline(str(path)) if path and _counted(flags) else None


def _counted(flags: Flags) -> bool:
    return flags.rules.draft_counted and flags.algorithm in (*_COUNTED, *BLOCK_DRAFTS)


def draft_notes(model: Model, flags: Flags) -> tuple[str, ...]:
    """A word on a draft that is named and whose config is not at hand."""
    path = flags.get("speculative_draft_model_path")
    if not path or not _counted(flags) or (said := unread_draft(str(path))) is None:
        return ()
    layers = draft_layers(model, flags)
    what = f"taken for {layers} of the model's layers" if layers else "not counted"
    return (f"{said}: it is {what}",)


def draft_flags(flags: Flags) -> Flags:
    """The flags under which a draft chooses its cache's type."""
    asked = flags.get("speculative_draft_kv_cache_dtype")
    if not asked:
        return flags
    return msgspec.structs.replace(flags, given={**flags.given, "kv_cache_dtype": asked})


def draft_weight_bytes(model: Model, flags: Flags) -> int:
    """Bytes of the draft's weights on one rank; a head reads the target's embedding."""
    own = own_draft(flags)
    if own is None:
        layers = draft_layers(model, flags)
        return layer_weight_bytes(model, flags.tp) * layers if layers else 0
    if not own.tensors:
        return 0
    if flags.algorithm in _HEADS:
        own = own_tensors(own, heads=flags.algorithm != "EAGLE3")
    return rank_weight_bytes(own, flags.tp)


def draft_for(model: Model, deployment: Deployment) -> DraftCache | None:
    """What a draft keeps of each sequence; without a model of its own, layers like the target's."""
    flags = read_flags(deployment)
    own = own_draft(flags)
    drafting = model if own is None else own
    slots = _like_target(model, flags) if own is None else own.slots
    kind = kv_type(drafting, deployment, draft_flags(flags))
    types = Types(kind, kind, element_type(drafting.dtype))
    return DraftCache(name=flags.algorithm if own is None else own.name, slots=slots, types=types)


def _like_target(model: Model, flags: Flags) -> tuple[Slot, ...]:
    like = next((s for s in reversed(model.slots) if isinstance(s, FullSlot | LatentSlot)), None)
    return () if like is None else (like,) * draft_layers(model, flags)
