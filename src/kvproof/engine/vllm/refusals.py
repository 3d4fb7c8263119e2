"""What vLLM refuses to start with, found before anything is computed.

Source: vLLM 0.32, config/model.py (verify_with_parallel_config) and the models' constructors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.base import Deployment, prefill_copies
from kvproof.engine.vllm.architectures import is_m3
from kvproof.engine.vllm.draft import Draft
from kvproof.engine.vllm.prefill import check_prefill
from kvproof.engine.vllm.versions import Rules
from kvproof.errors import UsageError
from kvproof.kinds import (
    CompressedSlot,
    ConvSlot,
    CrossSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SlidingSlot,
)
from kvproof.model.types import Model

EXPANDED = ("minicpm3",)
"""Model types whose latents vLLM does not keep."""
_NO_STAGES = ("gemma3n", "hrm_text", "mamba2", "paddleocr_vl", "smolvlm")
"""Model types without pipeline parallelism in vLLM."""


ASYNC_METHODS = ("eagle", "eagle3", "mtp", "draft_model", "ngram_gpu", "dflash", "dspark")
"""Speculative methods that asynchronous scheduling works with."""
HIDDEN_STATES = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Methods that draft from the target's hidden states."""
_LATENT_WIDTHS = {(128, 64, 128), (192, 64, 256), (64, 64, 128), (256, 0, 256)}
"""Widths of a head without rotary, its rotary part and its values that MLA's prefill takes."""
_NEEDED = {
    "HYV3ForCausalLM": ("first_k_dense_replace", "expert_hidden_dim"),
    "InklingForCausalLM": ("padded_vocab_size",),
}
"""Keys that a class of vLLM does not start without, where the model type's own config class does
not make them (models/hy_v3.py; models/inkling/configs.py, whose type is inkling_model)."""
_WINDOW = "sliding_window"
_READ = (0, 32, 0)
_WINDOWS = Path(__file__).with_name("data") / "windows.json"


def check_mixed_windows(model: Model) -> None:
    """Raise UsageError for a class that takes one window for all layers, given several.

    Source: vLLM 0.32, model_executor/models/qwen2.py.
    """
    windows = {isinstance(slot, SlidingSlot) for slot in model.slots}
    if model.architecture == "Qwen2ForCausalLM" and len(windows) > 1:
        raise UsageError(
            f"vLLM's Qwen2 takes a window for all layers or none, {model.name} has it for some",
            hint="set use_sliding_window=false or max_window_layers in the config",
        )


def check_keys(model: Model, rules: Rules) -> None:
    """Raise UsageError for a config in transformers' own form, which vLLM's class does not read."""
    if rules.version < _READ:
        return
    lacking = [key for key in _NEEDED.get(model.architecture, ()) if key not in model.config]
    if lacking:
        raise UsageError(
            f"vLLM's {model.architecture} needs {' and '.join(lacking)} in the config",
            hint="take the published config.json",
        )


def check_head_counts(model: Model, rules: Rules) -> None:
    """Raise UsageError for counts of heads that a class takes in one proportion only.

    Source: vLLM 0.32, layers/linear.py (MinimaxM3QKVParallelLinearWithIndexer); transformers'
    strict config of glm5_next, whose latents have no KV heads of their own.
    """
    if rules.version < _READ:
        return
    own, name = model.number("num_key_value_heads"), "attention"
    needed = model.attention_heads if "Glm5Next" in model.architecture else own
    if is_m3(model):
        needed, name = model.number("index_n_heads"), "indexer"
    if needed != own:
        raise UsageError(
            f"vLLM needs as many KV heads of {model.name} as {name} heads, which are {needed}, "
            f"not {own}",
            hint="correct num_key_value_heads",
        )


@cache
def _always_windowed() -> frozenset[str]:
    return frozenset(msgspec.json.decode(_WINDOWS.read_bytes())["whole"])


def check_windows(model: Model, flags: Mapping[str, Any], rules: Rules) -> None:
    """Raise UsageError where a window taken away becomes a None that the config does not take.

    disable_sliding_window takes it away, and so does a sliding_window of 0 in the config.
    Source: vLLM 0.32, config/model.py (hf_text_config.sliding_window = None), and the strict
    config classes of transformers.
    """
    asked = "disable_sliding_window" if flags.get("disable_sliding_window") else ""
    if not asked and 0 in (model.text_config.get(_WINDOW), model.config.get(_WINDOW)):
        asked = "a sliding_window of 0"
    kind = _text_type(model)
    if asked and rules.version >= (0, 32, 0) and kind in _always_windowed():
        raise UsageError(
            f"transformers' config of {kind} takes no sliding_window of None, so vLLM does not "
            f"start {model.name} with {asked}",
            hint="leave the window as it is",
        )


def _text_type(model: Model) -> str:
    """The model type of the config that vLLM reads the decoder from; a nested one may not say."""
    own = model.text_config.get("model_type")
    return str(own) if own else f"{model.config.get('model_type', '')}_text"


def check_ngram(model: Model, flags: Mapping[str, Any], draft: Draft) -> None:
    """Raise UsageError for what Qwen3.8-Flash-Next's n-gram embedding does not run with.

    Source: vLLM 0.32, model_executor/models/config.py (Qwen4Exp).
    """
    if not model.model_type.startswith("qwen4_exp"):
        return
    if flags.get("pipeline_parallel_size", 1) > 1 and model.text_config.get("ple_layer_ids"):
        raise UsageError(
            f"vLLM runs the n-gram embedding of {model.name} on one pipeline stage only",
            hint="use tensor_parallel_size",
        )
    if draft.method and draft.method not in ("mtp", "ngram", "ngram_gpu"):
        raise UsageError(
            f"vLLM runs {model.name} with its own draft module or n-grams, not {draft.method}",
            hint="set method to mtp or ngram",
        )


def check_cpu(model: Model) -> None:
    """Raise UsageError for what vLLM's CPU backend does not run.

    Source: vLLM 0.32, platforms/cpu.py: no sparse attention; prefix caching is off with latents,
    which the states of a hybrid need for the block they are given.
    """
    kinds = {type(slot) for slot in model.slots}
    routed = any(group.role == "expert" for group in model.tensors)  # configs count absent ones
    if routed and model.model_type.startswith("nemotron_h"):  # fused_moe/config.py
        raise UsageError("vLLM has no experts without a gate on a CPU", hint="name a GPU")
    if LatentSlot not in kinds:
        return
    if IndexerSlot in kinds:
        raise UsageError("vLLM has no sparse attention on a CPU", hint="name a GPU")
    if kinds & {ConvSlot, RecurrentSlot}:
        raise UsageError("vLLM has no states beside latents on a CPU", hint="name a GPU")


def check_latent(model: Model, rules: Rules, platform: str) -> None:
    """Raise UsageError for latent attention of widths that no prefill backend takes.

    Source: vLLM 0.32, v1/attention/backends/mla/prefill (supports_mla_dimensions), for CUDA;
    sparse attention goes on without one.
    """
    if not rules.null_reserved or platform != "cuda" or model.model_type.startswith(EXPANDED):
        return
    if any(isinstance(slot, IndexerSlot) for slot in model.slots):
        return
    found = {
        (slot.nope_dim, slot.rope_dim, slot.value_dim)
        for slot in model.slots
        if isinstance(slot, LatentSlot)
    }
    for widths in sorted(found - _LATENT_WIDTHS):
        known = ", ".join("+".join(map(str, one)) for one in sorted(_LATENT_WIDTHS))
        raise UsageError(
            f"no prefill backend of vLLM takes latent attention with heads of {widths[0]} + "
            f"{widths[1]} rotary numbers and values of {widths[2]}",
            hint=f"known widths: {known}",
        )


def check_state_flags(
    model: Model, flags: Mapping[str, Any], rules: Rules, length: int, *, prefix: bool
) -> None:
    """Raise UsageError for flags of states that the release or the model's states do not take.

    Without prefixes a state has one block, of max_model_len (`length`) tokens.
    """
    if flags.get("mamba_block_size") not in (None, length) and not prefix:
        raise UsageError(
            "vLLM takes mamba_block_size with prefix caching only",
            hint="leave mamba_block_size out",
        )
    kept = str(flags.get("mamba_ssm_cache_dtype", "auto"))
    kda = any(isinstance(s, RecurrentSlot) and s.mixer == "kda" for s in model.slots)
    if kda and kept not in ("auto", "float32", "bfloat16"):
        raise UsageError(
            f"the model's KDA states are not kept in {kept[:40]}", hint="use float32 or bfloat16"
        )
    asked = flags.get("mamba_cache_mode")
    if asked is not None and asked not in (*rules.state_modes, "none"):
        raise UsageError(
            f"mamba_cache_mode {str(asked)[:40]!r} is none of {', '.join(rules.state_modes)}",
            hint="vLLM of this release has no other",
        )


def check_aligned(flags: Mapping[str, Any], rules: Rules, mode: str) -> None:
    """Raise UsageError for states kept at the ends of blocks, which prefills must be cut at.

    Source: vLLM 0.32, config/vllm.py.
    """
    if rules.version >= _READ and mode == "align" and flags.get("enable_chunked_prefill") is False:
        raise UsageError(
            "vLLM keeps prefixes of a model with states with chunked prefill only",
            hint="leave enable_chunked_prefill out, or set enable_prefix_caching=false",
        )


def check_schedule(
    model: Model, flags: Mapping[str, Any], rules: Rules, batched: int, seqs: int, length: int
) -> None:
    """Raise UsageError for batches that vLLM's scheduler refuses.

    Source: vLLM 0.32, config/scheduler.py (verify_max_model_len).
    """
    if flags.get("enable_chunked_prefill") is False and batched < length:
        raise UsageError(
            f"max_num_batched_tokens {batched} is smaller than max_model_len {length} and chunked "
            "prefill is off",
            hint="raise max_num_batched_tokens or leave enable_chunked_prefill out",
        )
    if batched < seqs:
        raise UsageError(
            f"max_num_batched_tokens {batched} is smaller than max_num_seqs {seqs}",
            hint="vLLM refuses this; lower max_num_seqs",
        )
    if rules.version < _READ:
        return
    active, long = flags.get("max_num_active_seqs"), flags.get("long_prefill_token_threshold", 0)
    if active is not None and active > seqs:
        raise UsageError(
            f"max_num_active_seqs {active} is above max_num_seqs {seqs}", hint="vLLM refuses this"
        )
    if long > length and not any(isinstance(slot, CrossSlot) for slot in model.slots):
        raise UsageError(
            f"long_prefill_token_threshold {long} is above max_model_len {length}",
            hint="vLLM refuses this; lower it",
        )


def check_adapted_draft(
    flags: Mapping[str, Any], draft: Draft, rules: Rules, batched: int, seqs: int
) -> None:
    """Raise UsageError for a batch that adapters and drafted tokens together do not fit in.

    Source: vLLM 0.32, engine/arg_utils.py (create_engine_config).
    """
    needed = seqs * (draft.tokens + 1)
    asked = flags.get("enable_lora") and draft.method
    if asked and rules.version >= _READ and batched < needed:
        raise UsageError(
            f"with enable_lora and {draft.tokens} drafted tokens, max_num_batched_tokens {batched} "
            f"is smaller than the {needed} of max_num_seqs {seqs}",
            hint=f"vLLM refuses this; set max_num_batched_tokens={needed} or lower max_num_seqs",
        )


def check_draft(model: Model, flags: Mapping[str, Any], draft: Draft) -> None:
    """Raise UsageError for a draft that vLLM does not run with the model or the flags.

    Source: vLLM 0.32, config/vllm.py and config/speculative.py.
    """
    own = draft.model
    if draft.method == "draft_model" and own is not None and own.vocab_size != model.vocab_size:
        raise UsageError(
            f"the draft's vocabulary has {own.vocab_size} words, the model's {model.vocab_size}: "
            "vLLM needs the same",
            hint="choose a draft of the same family",
        )
    if own is not None:
        _check_heads(own, int(flags.get("tensor_parallel_size", 1)))
    if flags.get("async_scheduling") and draft.method and draft.method not in ASYNC_METHODS:
        raise UsageError(
            f"vLLM has no asynchronous scheduling with {draft.method} speculation",
            hint="leave async_scheduling out",
        )
    if flags.get("kv_sharing_fast_prefill") and draft.method in HIDDEN_STATES:
        raise UsageError(
            "vLLM has no kv_sharing_fast_prefill with a draft's layers",
            hint="leave kv_sharing_fast_prefill out",
        )


def check_parallel(model: Model, deployment: Deployment, flags: Mapping[str, Any]) -> None:
    """Raise UsageError for ranks, stages or replicas that vLLM can't run the model on."""
    ranks = flags.get("tensor_parallel_size", 1)
    stages = flags.get("pipeline_parallel_size", 1)
    _check_heads(model, ranks)
    if stages > model.layers:
        raise UsageError(
            f"pipeline_parallel_size {stages} exceeds the {model.layers} layers of {model.name}",
            hint="choose fewer stages",
        )
    if stages > 1 and model.model_type.startswith(_NO_STAGES):
        raise UsageError(
            f"vLLM has no pipeline parallelism for {model.name}", hint="use tensor_parallel_size"
        )
    _check_context(model, ranks, flags.get("decode_context_parallel_size", 1))
    check_prefill(model, flags)
    _check_states(model, ranks)
    _check_vision(model, ranks, flags)
    if flags.get("enable_expert_parallel") and not model.experts:
        raise UsageError(
            f"{model.name} has no experts: vLLM refuses enable_expert_parallel",
            hint="leave it out",
        )
    copies = flags.get("data_parallel_size", 1)
    world = ranks * stages * copies * prefill_copies(flags)
    gpus = deployment.gpu_count
    if gpus is not None and gpus % world:
        raise UsageError(
            f"{gpus} GPUs are no multiple of the {world} of {_sizes(flags)}",
            hint="change the count or the parallel sizes",
        )


def _sizes(flags: Mapping[str, Any]) -> str:
    """The parallel sizes above 1 that a count of GPUs comes from."""
    kinds = ("data", "pipeline", "prefill_context", "tensor")
    sizes = {name: flags.get(name, 1) for name in (f"{kind}_parallel_size" for kind in kinds)}
    return " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)


def _check_heads(model: Model, ranks: int) -> None:
    if model.attention_heads and model.attention_heads % ranks:
        raise UsageError(
            f"tensor_parallel_size {ranks} does not divide the {model.attention_heads} attention "
            f"heads of {model.name}",
            hint="vLLM refuses this; choose a divisor",
        )
    _check_kv_heads(model, ranks)
    if model.model_type.startswith("gpt_oss") and ranks > _kv_heads(model):
        raise UsageError(
            f"{model.name} has {_kv_heads(model)} KV heads: vLLM 0.32 fails on it with "
            f"tensor_parallel_size {ranks}",
            hint="use no more ranks than KV heads",
        )


def _check_vision(model: Model, ranks: int, flags: Mapping[str, Any]) -> None:
    """GLM-4V's vision heads are shared out in whole numbers (models/glm4_1v.py).

    A tower that is not loaded is built all the same (models/utils.py, no_init_weights).
    """
    vision = model.config.get("vision_config")
    if not model.model_type.startswith("glm4v") or not isinstance(vision, Mapping):
        return
    heads = int(vision.get("num_heads") or 0)
    if heads % ranks and flags.get("mm_encoder_tp_mode") != "data":
        raise UsageError(
            f"tensor_parallel_size {ranks} does not divide the {heads} heads of {model.name}'s "
            "vision tower",
            hint="vLLM refuses this; set mm_encoder_tp_mode=data or choose a divisor",
        )


def _check_kv_heads(model: Model, ranks: int) -> None:
    """KV heads are shared out or replicated in whole numbers (QKVParallelLinear), and so are the
    query heads that read them (layers/attention/attention.py)."""
    known = {slot.kv_heads for slot in model.slots if isinstance(slot, FullSlot)}
    alike = next(iter(known), 0) if len(known) == 1 else 0
    if alike and model.attention_heads % alike:
        raise UsageError(
            f"the {model.attention_heads} attention heads of {model.name} are no multiple of its "
            f"{alike} KV heads",
            hint="vLLM refuses this; correct num_key_value_heads",
        )
    for heads in known:
        if heads and heads % ranks and ranks % heads:
            raise UsageError(
                f"tensor_parallel_size {ranks} neither divides the {heads} KV heads of "
                f"{model.name} nor is a multiple of them",
                hint="vLLM refuses this; choose one that does",
            )


def _kv_heads(model: Model) -> int:
    return max((slot.kv_heads for slot in model.slots if isinstance(slot, FullSlot)), default=1)


def _check_context(model: Model, ranks: int, context: int) -> None:
    """Decode context parallelism shares out the ranks that would hold copies of a KV head."""
    if context == 1:
        return
    if any(isinstance(slot, SlidingSlot | CompressedSlot) for slot in model.slots):
        raise UsageError(
            "vLLM has no decode context parallelism for sliding-window layers",
            hint="set decode_context_parallel_size=1",
        )
    latent = any(isinstance(slot, LatentSlot) for slot in model.slots)
    expanded = model.model_type.startswith(EXPANDED)
    if latent and not expanded:
        return
    heads = model.attention_heads if expanded else _kv_heads(model)
    if ranks <= heads or context > ranks // heads:
        raise UsageError(
            f"decode_context_parallel_size {context} needs as many copies of each of the "
            f"{heads} KV heads: tensor_parallel_size {ranks} makes {max(1, ranks // heads)}",
            hint="raise tensor_parallel_size or lower decode_context_parallel_size",
        )
    if model.attention_heads // heads % context:
        raise UsageError(
            f"decode_context_parallel_size {context} does not divide the "
            f"{model.attention_heads // heads} query heads of a KV head",
            hint="choose a divisor",
        )


def _check_states(model: Model, ranks: int) -> None:
    for slot in model.slots:
        if isinstance(slot, RecurrentSlot) and slot.heads % ranks:
            raise UsageError(
                f"tensor_parallel_size {ranks} does not divide the {slot.heads} state heads of "
                f"{model.name}",
                hint="vLLM refuses this; choose a divisor",
            )
        if isinstance(slot, ConvSlot) and slot.groups > 1 and slot.groups % ranks:
            raise UsageError(
                f"tensor_parallel_size {ranks} does not divide the {slot.groups} state groups of "
                f"{model.name}",
                hint="vLLM refuses this; choose a divisor",
            )
