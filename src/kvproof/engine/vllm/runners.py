"""Which model runner a start gets by default, and whether that one charges its CUDA graphs.

Model Runner V2 took over architecture by architecture; until 0.29 it estimated no graphs, so they
are captured in memory that no budget knows. Source: vLLM 0.22 to 0.29, config/vllm.py
(DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES) and v1/worker/gpu/model_runner.py
(profile_cudagraph_memory); reports vllm#57475, vllm#49224; log228 (0.26).
"""

from __future__ import annotations

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
_DENSE_TOO = (0, 25, 0)
_ESTIMATES = (0, 29, 0)
_NOT_ON_ROCM = "DeepseekV4ForCausalLM"
_ROCM_ESTIMATES = (0, 26, 0)
"""Before, graphs were estimated on CUDA only (v1/worker/gpu_worker.py, 0.20.2 to 0.26)."""


def charges_graphs(model: Model, settings: Settings) -> bool:
    """Whether the runner takes an estimate of this model's graphs off the budget."""
    charged = settings.flags.get("estimate_cudagraphs", settings.rules.graphs_charged)
    if not charged or settings.flags.get("enforce_eager"):
        return False
    if settings.platform == "rocm" and settings.rules.version < _ROCM_ESTIMATES:
        return False
    return settings.rules.version >= _ESTIMATES or not _second_runner(model, settings)


def on_second_runner(model: Model, settings: Settings) -> bool:
    """Whether graphs would be charged but for the second runner, which estimates none."""
    charged = settings.flags.get("estimate_cudagraphs", settings.rules.graphs_charged)
    return bool(charged) and settings.rules.version < _ESTIMATES and _second_runner(model, settings)


def _second_runner(model: Model, settings: Settings) -> bool:
    version = settings.rules.version
    named: frozenset[str] = frozenset()
    for since, names in _BY_RELEASE:
        named = names if since <= version else named
    if version >= _DENSE_TOO and settings.draft.method == "dspark":
        return True
    if model.architecture in named:
        return settings.platform != "rocm" or model.architecture != _NOT_ON_ROCM
    return version >= _DENSE_TOO and not model.experts and not has_states(model)
