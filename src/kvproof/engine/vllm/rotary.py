"""Tables of cosines and sines: one for every kind of rotary embedding that a model's layers use.

A row for every position that may be asked, so their length goes by the scaling, not by
max_model_len. Source: vLLM 0.32, model_executor/layers/rotary_embedding (get_rope, which shares a
table among layers; linear_scaling_rope.py, yarn_scaling_rope.py, mrope.py,
phi3_long_rope_scaled_rope.py, deepseek_scaling_rope.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvproof.engine.vllm.compressed import is_v4
from kvproof.engine.vllm.settings import Settings, is_sparse
from kvproof.errors import UsageError
from kvproof.kinds import ChunkedSlot, FullSlot, LatentSlot, SlidingSlot
from kvproof.model.overrides import factor_of
from kvproof.model.types import Model

_WITHOUT = (
    "bloom", "gpt2", "gpt_bigcode", "granitemoehybrid", "jamba", "kimi_linear", "mpt", "nemotron_h",
    "opt", "whisper",
)  # fmt: skip
"""Model types whose attention turns no positions."""
_VIDEO = (
    "ernie4_5_moe_vl", "glm4v", "glm_ocr", "keye", "paddleocr", "qwen2_5_omni", "qwen2_5_vl",
    "qwen2_vl", "qwen3_5", "qwen3_omni", "qwen3_vl", "qwen4_exp",
)  # fmt: skip
"""Model types with positions in three axes, whose config may leave the axes out."""
_PARTS = {"glm4v_moe": 0.5, "qwen3_5": 0.25}
"""How much of a head turns where the config leaves it out (transformers' config classes)."""
_EXACT_SINCE, _ROUNDED = (0, 32, 0), "deepseek_v2"
_LOCAL_BASES = ("rope_local_base_freq", "swa_rope_theta")
_TWO = ("gemma3",)
"""Model types whose windows turn without the scaling that the config states."""
_FRAMES = 4
"""A video's positions reach further than its tokens: rows for four times as many."""
_FRAMES_UNTIL = (0, 32, 0)
"""From here on only pruned videos need them (models/qwen3_vl.py, mrope_positions_factor)."""


def rotary_bytes(model: Model, settings: Settings) -> list[int]:
    """Bytes of each table."""
    if model.model_type.startswith(_WITHOUT):
        return []
    if is_v4(model):  # in f32, one for windows and one for compressed entries
        rope = int(model.text_config.get("qk_rope_head_dim") or 0)
        return [(model.context or settings.max_model_len) * rope * 4] * 2
    found = {
        (_width(width, scaling, model), _rows(model, settings, scaling),
         _bytes(model, settings, scaling), repr(sorted(scaling.items())))
        for width, scaling in _kinds(model)
    }  # fmt: skip
    return sorted(width * rows * size for width, rows, size, _ in found)


def check_axes(model: Model) -> None:
    """Raise UsageError where the parts of three axes do not make up what turns of a head."""
    for head, scaling in _kinds(model):
        width = _width(head, scaling, model)
        parts = scaling.get("mrope_section")
        if not isinstance(parts, list) or not all(isinstance(part, int) for part in parts):
            continue
        if parts and sum(parts) != width // 2:
            raise UsageError(
                f"{model.name}: mrope_section {parts} does not add up to half of the {width} "
                "numbers that turn of a head: vLLM does not start",
                hint="mend the config",
            )


def _kinds(model: Model) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The head width and the scaling of every layer that turns."""
    sparse = is_sparse(model)
    for slot in model.slots:
        if isinstance(slot, LatentSlot):
            yield slot.rope_dim, _scaling(model, local=False)
            if sparse and _scaling(model, local=False).get("factor"):  # in pairs of another order
                yield slot.rope_dim, {**_scaling(model, local=False), "of": "indexer"}
        elif isinstance(slot, FullSlot):
            local = isinstance(slot, SlidingSlot | ChunkedSlot)
            yield slot.k_dim, _scaling(model, local=local)


def _scaling(model: Model, *, local: bool) -> Mapping[str, Any]:
    """The rotary section of a config for layers with a window or without."""
    config = model.text_config
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    own = given.get("sliding_attention" if local else "full_attention")
    if isinstance(own, Mapping):
        return own
    apart = next((config[name] for name in _LOCAL_BASES if config.get(name)), None)
    if local and (apart is not None or model.model_type.startswith(_TWO)):
        return {"rope_theta": apart or 0}
    return given if isinstance(given, Mapping) else {}


def _width(width: int, scaling: Mapping[str, Any], model: Model) -> int:
    """How much of a head is turned."""
    config = model.text_config
    usual = next((p for t, p in _PARTS.items() if model.model_type.startswith(t)), 1.0)
    part = scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or usual
    if scaling.get("rope_type") == "proportional" or not 0 < part <= 1:
        return width
    return int(width * part)


def _rows(model: Model, settings: Settings, scaling: Mapping[str, Any]) -> int:
    """Positions of a table."""
    context = model.context or settings.max_model_len
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    factor = factor_of(scaling) or 1.0
    first = int(scaling.get("original_max_position_embeddings") or 0)
    if kind == "longrope":
        return context + first
    rows = context
    if kind in ("yarn", "deepseek_yarn") and first:
        rows = round(first * factor)
    elif kind in ("linear", "dynamic"):
        rows = round(_trained(model) * factor)
    video = "mrope_section" in scaling or model.model_type.startswith(_VIDEO)
    if video and (settings.rules.version < _FRAMES_UNTIL or not _prunes(model)):
        return rows * _FRAMES
    return rows


def _prunes(model: Model) -> bool:
    """Whether the class asks for fewer rows where no video is pruned."""
    return model.model_type.startswith(("qwen3_vl", "qwen3_5", "qwen4_exp"))


def _trained(model: Model) -> int:
    return int(model.text_config.get("max_position_embeddings") or model.context or 0)


def _bytes(model: Model, settings: Settings, scaling: Mapping[str, Any]) -> int:
    """Bytes of a number: f32 for gpt-oss, and in 0.32 for DeepSeek-V3's scaling."""
    kind = scaling.get("rope_type") or scaling.get("type") or ""
    latent = any(isinstance(slot, LatentSlot) for slot in model.slots)
    exact = settings.rules.version >= _EXACT_SINCE and not model.model_type.startswith(_ROUNDED)
    scaled = latent and exact and "yarn" in kind
    return 4 if scaled or model.model_type == "gpt_oss" else 2
