"""read_config: a parsed config.json becomes a Model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.errors import ModelError
from kvproof.model.checks import bad_value
from kvproof.model.config import Resolved, resolve
from kvproof.model.given import missing_facts, with_text_apart
from kvproof.model.quantization import read_quantization
from kvproof.model.slots import read_slots
from kvproof.model.tensors import TensorGroup, known_model_types, tensor_groups
from kvproof.model.types import Model, Source

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = (
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts",
    "num_selected_experts",
)  # fmt: skip
_CONTEXT = (
    "max_position_embeddings", "max_sequence_length", "max_seq_len", "n_positions", "seq_length",
    "max_target_positions", "n_ctx",
)  # fmt: skip
_HEADS = (
    "decoder_attention_heads", "num_decoder_attention_heads", "decoder_num_attention_heads",
    "num_attention_heads", "num_heads", "n_head", "attention_heads",
)  # fmt: skip


def read_config(config: Mapping[str, Any], *, name: str, source: Source) -> Model:
    """The model that a parsed config.json describes; ModelError names what is wrong with it."""
    nested, flat = with_text_apart(dict(config)) if isinstance(config, Mapping) else (config, ())
    resolved = resolve(nested)
    slots = read_slots(resolved)
    text = resolved.text
    tensors, notes = _tensors(resolved)
    return Model(
        name=name,
        model_type=resolved.model_type,
        architecture=resolved.architecture,
        layers=max((slot.layer + 1 for slot in slots), default=0),
        hidden_size=_count(text, ("hidden_size", "d_model", "emb_dim", "n_embd")),
        attention_heads=_count(text, _HEADS),
        vocab_size=_count(text, ("vocab_size",)) or _count(resolved.root, ("vocab_size",)),
        context=_count(text, _CONTEXT) or None,
        dtype=_dtype(resolved),
        slots=slots,
        tensors=tensors,
        experts=_count(text, _EXPERTS),
        experts_per_token=_count(text, _CHOSEN),
        quantization=read_quantization(config),
        source=source,
        config=resolved.root,
        text_config=text,
        notes=(*flat, *resolved.notes, *_unsaid(config, resolved), *notes),
    )


def _unsaid(config: Mapping[str, Any], resolved: Resolved) -> tuple[str, ...]:
    """What the class filled in; translated types have a note of their own instead."""
    if resolved.published_type != resolved.model_type:
        return ()
    return missing_facts(config, resolved.text)


def weights_known(resolved: Resolved) -> bool:
    """Whether a recipe gives the tensors of the model; else only its cache is read."""
    return resolved.exact_weights and resolved.model_type in known_model_types()


def _tensors(resolved: Resolved) -> tuple[tuple[TensorGroup, ...], tuple[str, ...]]:
    """The model's tensors; none, and a note, for architectures whose weights no recipe knows."""
    if not weights_known(resolved):
        kind = resolved.published_type
        return (), (f"weights of {kind} are unknown: only its cache is read",)
    return tensor_groups(resolved.model_type, resolved.root), ()


def _count(config: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    """The first whole number under one of `keys`; 0 when there is none."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, list) and value:  # one number per layer
            value = value[-1]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _dtype(resolved: Resolved) -> str:
    for config in (resolved.text, resolved.root):
        value = config.get("dtype")
        if value is None:
            continue
        if not isinstance(value, str):
            raise bad_value("torch_dtype", value, "a type such as bfloat16")
        if value == "auto":
            continue
        return _known_dtype(value)
    return "bf16"


def _known_dtype(value: str) -> str:
    from kvproof.errors import UsageError
    from kvproof.kinds import element_type

    try:
        return element_type(value).name
    except UsageError as error:
        raise ModelError(f"config key 'torch_dtype': {error.message}", hint=error.hint) from None
