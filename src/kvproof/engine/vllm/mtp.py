"""MTP: which models vLLM drafts with modules of their own, and how many tokens one pass drafts.

Source: vLLM 0.32, config/speculative.py (hf_config_override, __post_init__).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.engine.vllm.flags import speculation_of
from kvproof.engine.vllm.versions import Rules
from kvproof.errors import UsageError
from kvproof.model.types import Model

_READ = (0, 32, 0)
_NEXTN, _MODULES, _QWEN = "num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers"

_BY_TYPE: Mapping[str, str] = {
    **dict.fromkeys(
        ("bailing_hybrid", "deepseek_mtp", "deepseek_v3", "deepseek_v32", "deepseek_v4",
         "dots3_note", "ernie4_5_moe", "exaone4_5", "exaone_moe", "glm5_next", "glm_moe_dsa",
         "hy_v3", "hy_v4", "kimi_k3", "longcat_flash", "nemotron_h", "nemotron_h_puzzle",
         "pangu_ultra_moe", "qwen3_next", "step3p5", "step3p7"),
        _NEXTN,
    ),
    **dict.fromkeys(
        ("intern_s2_preview", "interns2_mobius", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text",
         "qwen3_5_text", "qwen4_exp", "qwen4_exp_text"),
        _QWEN,
    ),
    "inkling_mm_model": _NEXTN, "inkling_model": _NEXTN, "minimax_m3_vl": _MODULES,
}  # fmt: skip
"""The config's key that counts a model type's modules."""
_BY_CLASS: Mapping[str, str] = {
    **dict.fromkeys(
        ("BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM",
         "BailingMoeV3VLForConditionalGeneration", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM",
         "GlmOcrForConditionalGeneration", "KimiK3ForConditionalGeneration", "MiMoForCausalLM",
         "NemotronH_Omni_Reasoning_V3",
         "NemotronH_Super_Omni_Reasoning_V3", "Step3p5ForCausalLM",
         "Step3p7ForConditionalGeneration"),
        _NEXTN,
    ),
    "MiniMaxM3SparseForConditionalGeneration": _MODULES,
}  # fmt: skip
_ONE_MODULE = ("MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM", "MiMoV2FlashForCausalLM")
"""Classes of which vLLM runs the first module, whatever the config counts."""
_ONE_UNSAID = ("dots3_note", "longcat_flash", "step3p5", "step3p7", "minimax_m3_vl")
"""Model types whose configs may leave out that there is one module."""
_NONE_WITHOUT = ("nemotron_h", "nemotron_h_puzzle")
"""Model types that are no drafts where the config counts no modules."""


def check_modules(model: Model, flags: Mapping[str, Any], rules: Rules) -> None:
    """Raise UsageError for a draft by modules that vLLM does not start with the model."""
    asked = speculation_of(flags)
    method = str(asked.get("method") or "")
    if rules.version < _READ or not method.endswith("mtp") or asked.get("model"):
        return
    tokens = asked.get("num_speculative_tokens")
    if tokens is None:
        raise UsageError(
            "vLLM needs num_speculative_tokens with method mtp",
            hint='add "num_speculative_tokens": 1 to speculative_config',
        )
    if not _has_modules(model):
        raise UsageError(
            f"vLLM has no MTP modules for {model.name} ({model.config.get('model_type')})",
            hint="choose another speculative method",
        )
    count = drafted_in_a_pass(model)
    if count is not None and int(tokens) > count and (count == 0 or int(tokens) % count):
        raise UsageError(
            f"num_speculative_tokens {tokens} is no multiple of the {count} MTP modules of "
            f"{model.name}",
            hint="vLLM refuses this; choose a multiple",
        )


def _has_modules(model: Model) -> bool:
    kind = str(model.config.get("model_type", ""))
    if kind in _NONE_WITHOUT:
        return bool(model.number(_NEXTN))
    named = model.architecture in _BY_CLASS or model.architecture in _ONE_MODULE
    return named or kind in _BY_TYPE or "exaone4_5" in kind


def drafted_in_a_pass(model: Model) -> int | None:
    """Modules that the config counts (n_predict); None where it does not say."""
    kind = str(model.config.get("model_type", ""))
    if model.architecture in _ONE_MODULE:
        return 1
    key = _BY_CLASS.get(model.architecture) or _BY_TYPE.get(kind, _NEXTN)
    for config in (model.config, model.config.get("mtp_config"), model.text_config):
        if isinstance(config, Mapping) and isinstance(config.get(key), int):
            return int(config[key])
    return 1 if kind in _ONE_UNSAID else None
