"""Which model runner a start gets by default, and whether that one charges its CUDA graphs.

Model Runner V2 took over architecture by architecture; until 0.29 it estimated no graphs, so they
are captured in memory that no budget knows. Source: vLLM 0.22 to 0.29, config/vllm.py
(DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES) and v1/worker/gpu/model_runner.py
(profile_cudagraph_memory); reports vllm#57475, vllm#49224; log228 (0.26).
"""

from __future__ import annotations

from kvproof.engine.vllm.captures import captures
from kvproof.engine.vllm.settings import Settings, has_states
from kvproof.model.types import Model

_BY_RELEASE: tuple[tuple[tuple[int, int, int], frozenset[str]], ...] = (
    ((0, 22, 0), frozenset({"Qwen3ForCausalLM"})),
    ((0, 23, 0), frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"})),
    (
        (0, 24, 0),
        frozenset(
            {
                "DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "LlamaForCausalLM",
                "MistralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM",
            }
        ),
    ),
    (
        (0, 25, 0),
        frozenset({"DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM"}),
    ),
    (
        (0, 26, 0),
        frozenset(
            {
                "DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "InklingForCausalLM",
                "InklingForConditionalGeneration", "LongcatFlashNgramForCausalLM",
                "Qwen2MoeForCausalLM",
            }
        ),
    ),
    (
        (0, 27, 0),
        frozenset(
            {
                "DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "InklingForCausalLM",
                "InklingForConditionalGeneration", "KimiK3ForConditionalGeneration",
                "LongcatFlashNgramForCausalLM", "Qwen2MoeForCausalLM",
            }
        ),
    ),
    (
        (0, 28, 0),
        frozenset(
            {
                "DeepseekV2ForCausalLM", "DeepseekV4ForCausalLM", "GraniteMoeForCausalLM",
                "InklingForCausalLM", "InklingForConditionalGeneration",
                "KimiK3ForConditionalGeneration", "LongcatFlashNgramForCausalLM",
                "Qwen2MoeForCausalLM",
            }
        ),
    ),
)  # fmt: skip
_QUANTIZED_TOO = (0, 24, 0)
"""Since when it runs quantized models too (is_quantized is asked in 0.22.0, not in 0.24.0; public
starts of 0.23.0 have a sampler and an estimate of graphs of the first)."""
_DENSE_TOO = (0, 25, 0)
_ESTIMATES = (0, 29, 0)
_EXISTS = (0, 12, 0)
"""Since when VLLM_USE_V2_MODEL_RUNNER chooses; before, V0's module had the second one's name."""
_EVERY = (0, 29, 0)
"""Since when it runs every model (config/vllm.py, use_v2_model_runner)."""
_NOT_ON_ROCM = "DeepseekV4ForCausalLM"
_NOT_BY_ROCM = ("DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM")
"""Classes that the first runner keeps there from 0.29 to 0.31 (GLM's not in 0.29)."""
_ROCM_TOO = (0, 32, 0)
_FIRST_DRAFTS = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator")
"""Drafts that only the first runner makes (read in 0.31.0)."""
_ROCM_ESTIMATES = (0, 26, 0)
"""Before, graphs were estimated on CUDA only (v1/worker/gpu_worker.py, 0.20.2 to 0.26)."""


def charges_graphs(model: Model, settings: Settings) -> bool:
    """Whether the runner takes an estimate of this model's graphs off the budget."""
    charged = settings.flags.get("estimate_cudagraphs", settings.rules.graphs_charged)
    if not charged or not captures(settings.flags):
        return False
    if settings.platform == "rocm" and settings.rules.version < _ROCM_ESTIMATES:
        return False
    return settings.rules.version >= _ESTIMATES or not second_runner(model, settings)


def on_second_runner(model: Model, settings: Settings) -> bool:
    """Whether graphs would be charged but for the second runner, which estimates none."""
    charged = settings.flags.get("estimate_cudagraphs", settings.rules.graphs_charged)
    return bool(charged) and settings.rules.version < _ESTIMATES and second_runner(model, settings)


def second_runner(model: Model, settings: Settings) -> bool:
    """Whether the second model runner starts the model."""
    version = settings.rules.version
    asked: bool | None = settings.flags.get("use_v2_model_runner")
    if asked is not None and version >= _EXISTS:
        return asked
    if version >= _EVERY:
        return _takes(model, settings)
    if version < _QUANTIZED_TOO and _is_quantized(model, settings):
        return False
    named: frozenset[str] = frozenset()
    for since, names in _BY_RELEASE:
        named = names if since <= version else named
    if version >= _DENSE_TOO and settings.draft.method == "dspark":
        return True
    if model.architecture in named:
        return settings.platform != "rocm" or model.architecture != _NOT_ON_ROCM
    return version >= _DENSE_TOO and not model.experts and not has_states(model)


def _is_quantized(model: Model, settings: Settings) -> bool:
    """Whether weights have fewer bits, as stored or when loaded (config/model.py, is_quantized)."""
    return model.quantization is not None or bool(settings.flags.get("quantization"))


def _takes(model: Model, settings: Settings) -> bool:
    """Whether the second runner takes what is asked for, where it is the default for all."""
    if settings.platform == "cpu" or settings.draft.method in _FIRST_DRAFTS:
        return False
    if settings.state_mode == "all":
        return False
    kept = settings.platform == "rocm" and settings.rules.version < _ROCM_TOO
    return not (kept and model.architecture in _NOT_BY_ROCM)
