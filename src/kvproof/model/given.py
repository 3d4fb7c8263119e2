"""What a published config left to its class: said aloud, never filled in silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.model.classes import class_row

# Fields that decide bytes; those whose class default is a number are worth a word when missing.
_DECISIVE = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "intermediate_size", "moe_intermediate_size", "sliding_window", "kv_lora_rank",
    "mamba_n_heads", "mamba_d_state", "mamba_d_conv", "mamba_expand", "conv_kernel",
    "ssm_state_size",
)  # fmt: skip
# Spellings of old configs that classes read without declaring them as other names.
_OLD_NAMES = {
    "n_layer": "num_hidden_layers", "n_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads", "n_heads": "num_attention_heads", "n_embd": "hidden_size",
    "d_model": "hidden_size", "ffn_hidden_size": "intermediate_size",
    "n_inner": "intermediate_size",
    "multi_query": "num_key_value_heads", "n_head_kv": "num_key_value_heads",
}  # fmt: skip


def missing_facts(given: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[str, ...]:
    """One note on the decoder's decisive fields that `given` lacks and `text` has by default.

    `given` is the published config, `text` the resolved decoder. Fields count as given under
    any of the class's other names and at any level of the config.
    """
    kind = str(text.get("model_type"))
    row = class_row(kind)
    if row is None:
        return ()
    names = {row.alias.get(key, _OLD_NAMES.get(key, key)) for key in _keys(given, 0)}
    if "kv_lora_rank" in names:
        names |= {"head_dim", "num_key_value_heads"}  # a latent cache has neither
    if not any("expert" in name for name in names):
        names.add("moe_intermediate_size")
    filled = {
        key: row.defaults[key]
        for key in _DECISIVE
        if key not in names and _is_number(row.defaults.get(key)) and key not in row.alias
    }
    filled = {key: value for key, value in filled.items() if text.get(key) == value}
    if not filled:
        return ()
    said = ", ".join(f"{key} = {value:,}" for key, value in filled.items())
    return (f"the config leaves these to the class {kind}, whose defaults are used: {said}",)


def _keys(config: Mapping[str, Any], depth: int) -> set[str]:
    out = set(config)
    if depth < 4:
        for key, value in config.items():
            if isinstance(value, Mapping) and "vision" not in key and "audio" not in key:
                out |= _keys(value, depth + 1)
    return out


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def with_text_apart(config: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A flat config of a class that nests its decoder, with the decoder's fields moved inside.

    Publishers write image-text configs flat (Qwen2-VL, Step-3.7); their classes would otherwise
    take the decoder's defaults.
    """
    kind = config.get("model_type")
    row = class_row(kind) if isinstance(kind, str) else None
    nested = row is not None and "text_config" in row.subs
    if not nested or "text_config" in config or "num_hidden_layers" not in config:
        return config, ()
    kept = ("architectures", "model_type", "vision_config", "audio_config", "quantization_config")
    text = {key: value for key, value in config.items() if key not in kept}
    note = f"the flat config of {kind} is read as that of its decoder"
    return {**config, "text_config": text}, (note,)
