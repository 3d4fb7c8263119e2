"""vLLM's environment variables that decide memory: those followed, and those that are not.

Source: vLLM 0.32, envs.py and where each is read; the others there change nothing that is computed.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.engine.arguments import Unfollowed
from kvproof.engine.shell import Words
from kvproof.engine.vllm.flags import BACKEND_VARIABLE, read_value, reads_backend_variable

AS_FLAGS = {
    BACKEND_VARIABLE: "VLLM_ATTENTION_BACKEND",
    "allow_long_max_model_len": "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "estimate_cudagraphs": "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
    "flashinfer_sampler": "VLLM_USE_FLASHINFER_SAMPLER",
    "rocm_aiter": "VLLM_ROCM_USE_AITER",
    "use_v1": "VLLM_USE_V1",
    "use_v2_model_runner": "VLLM_USE_V2_MODEL_RUNNER",
}
"""Flags that only a variable can say; their options are kvproof's own."""
_OPTIONS = {
    "VLLM_ALL2ALL_BACKEND": "--all2all-backend",
    **{variable: f"--{flag.replace('_', '-')}" for flag, variable in AS_FLAGS.items()},
}
"""Variables, and the options that say the same."""
_CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"

UNFOLLOWED: Mapping[str, Unfollowed] = {
    "VLLM_MLA_DISABLE": Unfollowed("keeps full heads and no latent", "0"),
    "VLLM_KV_CACHE_LAYOUT": Unfollowed("lays the blocks out otherwise"),
    "VLLM_PP_LAYER_PARTITION": Unfollowed("deals the layers out over the stages"),
    "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": Unfollowed(
        "keeps chunked layers at full length", "1"
    ),
    "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": Unfollowed("sets a workspace's size"),
    "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": Unfollowed("sets the indexer's workspace"),
    "VLLM_FUSED_MOE_CHUNK_SIZE": Unfollowed("sets the experts' workspace"),
    "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE": Unfollowed("sets the experts' workspace"),
    "VLLM_DEEPEP_BUFFER_SIZE_MB": Unfollowed("sets the size of DeepEP's buffers"),
    "VLLM_REPLICATE_EMBED": Unfollowed("keeps the embedding whole on every rank", "0"),
    "VLLM_DCP_Q_REPLICATE": Unfollowed("keeps query projections whole on every rank", "0"),
    "VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD": Unfollowed("unpacks weights when they are loaded", "0"),
    "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD": Unfollowed("unpacks weights when they are loaded", "0"),
}


def options_of(words: Words) -> list[str]:
    """The options that the variables of a command stand for."""
    environment = words.environment
    said = [(option, environment.get(name)) for name, option in _OPTIONS.items()]
    found = [f"{option}={value}" for option, value in said if value]
    space = environment.get(_CPU_SPACE, "")
    if space.isdigit() and int(space) and _on_cpu(words.words):
        found.append(f"--kv-cache-memory-bytes={int(space) << 30}")
    return found


def _on_cpu(words: tuple[str, ...]) -> bool:
    """Whether a command asks for the CPU: elsewhere its cache's size is not looked at."""
    text = " ".join(words).lower()
    return "--device cpu" in text or "--device=cpu" in text


def environment_of(flags: Mapping[str, object]) -> list[str]:
    """What stands in front of a command line for the flags that have no option."""
    found = {
        variable: read_value(name, flags[name])
        for name, variable in AS_FLAGS.items()
        if flags.get(name) is not None
    }
    return [
        f"{variable}={int(value) if isinstance(value, bool) else value}"
        for variable, value in found.items()
    ]


def unread_notes(flags: Mapping[str, object], version: str | None) -> list[str]:
    """A word on the variable that names a backend where the release does not look at it."""
    named = flags.get(BACKEND_VARIABLE)
    if named is None or reads_backend_variable(version):
        return []
    return [
        "vLLM reads no VLLM_ATTENTION_BACKEND since 0.15: it is left aside; --attention-backend "
        f"{str(named)[:40]} says it, or name an earlier release (--engine vllm@0.14)"
    ]
