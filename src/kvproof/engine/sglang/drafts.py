"""Drafts of SGLang: which layers they have, and their own model where its config can be read.

Sources: SGLang 0.5.14, 0.5.18 and 0.5.23, model_executor/pool_configurator.py and
model_runner_components/spec_aux_hidden_state.py: before 0.5.14 nothing is counted for a draft.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.rank_weights import layer_weight_bytes, rank_weight_bytes
from kvproof.engine.sglang.flags import Flags
from kvproof.errors import KvproofError
from kvproof.model.load import load_offline
from kvproof.model.types import Model
from kvproof.model.weights import known_tensors

BLOCK_DRAFTS = ("DFLASH", "DSPARK")
"""Drafts of a block at once, sized by their own config."""
_HEADS = ("EAGLE", "EAGLE3", "NEXTN")
_COUNTED = (*_HEADS, "STANDALONE")
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def draft_layers(model: Model, flags: Flags) -> int:
    """Layers of a draft that sizing counts at the target's bytes a layer."""
    if not flags.rules.draft_counted or flags.algorithm not in _COUNTED:
        return 0
    own = own_draft(flags)
    if own is not None:
        return _predicting(own) or own.layers
    named = flags.get("speculative_draft_model_path") or flags.algorithm in ("EAGLE3", "STANDALONE")
    return (0 if named else _predicting(model)) or int(flags.algorithm != "STANDALONE")


def _predicting(model: Model) -> int:
    """Layers that predict further tokens, as the config counts them."""
    found = (model.text_config.get(name) for name in _MTP_KEYS)
    return next((n for n in found if isinstance(n, int) and n > 0), 0)


def own_draft(flags: Flags) -> Model | None:
    """The draft's own model, where it is named, counted, and its config is at hand."""
    path = flags.get("speculative_draft_model_path")
    counted = flags.algorithm in (*_COUNTED, *BLOCK_DRAFTS)
    if not path or not flags.rules.draft_counted or not counted:
        return None
    return load_offline(str(path))


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
        return layer_weight_bytes(model, flags.tp) * draft_layers(model, flags)
    try:
        groups = known_tensors(own)
    except KvproofError:
        return 0
    if flags.algorithm in _HEADS:
        shared = ("embedding", "head") if flags.algorithm != "EAGLE3" else ("embedding",)
        kept = tuple(group for group in groups if group.role not in shared)
        own = msgspec.structs.replace(own, tensors=kept)
    return rank_weight_bytes(own, flags.tp)
