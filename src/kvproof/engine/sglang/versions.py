"""What SGLang did in which release.

Each row of `_CHANGES` holds from its release on. Sources: sglang/srt of the wheels 0.4.4, 0.4.6,
0.4.6.post5, 0.4.7 to 0.4.10, 0.5.2 to 0.5.23 (all but post releases), compared one with the next:
server_args.py and arg_groups/ (defaults), model_executor/model_runner.py,
model_runner_kv_cache_mixin.py (0.5.7 to 0.5.15), pool_configurator.py (0.5.11 on) and
mem_cache/kv_cache_configurator.py (0.5.16 on). 0.3.6, 0.4.0, 0.4.1, 0.4.3 and 0.5.1 were read for
the default share, the bytes of a token and the padding page alone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kvproof.engine.release import Release, post_number, release_number
from kvproof.engine.stages import Extra

Share = Literal["ranks", "ranks_13", "ranks_48", "ranks_18", "card", "chunk"]
"""How mem_fraction_static is chosen where none is given (`share`)."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one release."""

    version: tuple[int, ...]
    share: Share = "ranks"
    eight_ranks: float = 0.82
    """The share for 8 to 15 ranks where it goes by ranks."""
    extra_layers: Extra = "final"
    """Which pipeline stages hold the layers that are left over."""
    small_card: tuple[int, int, int] = (2048, 8, 80)
    """Cards below 35 GiB: prefill chunk, graph batch with fewer than 4 GPUs, with more."""
    image_cut: float = 0.95
    """Factor on the share for multimodal models; 0: by the size of the vision encoder."""
    image_cut_given: bool = True
    """The cut for multimodal models holds for a share that is given, too."""
    aiter_cut: bool = False
    """The share is cut by 15 % with AITER attention and more than 8,192 positions."""
    cut_printed: bool = False
    """The arguments that the server prints have the share after AITER's cut."""
    draft_reserve_mib: int = 0
    prefill_graphs: Literal["asked", "piecewise", "breakable"] = "asked"
    graphs_with_draft: bool = True
    """Prefill graphs are captured with speculative decoding too."""
    strict_graphs: bool = False
    """Breakable prefill graphs exclude latents, DP attention, LoRA and expert all-to-all."""
    graphs_to_context: bool = False
    """Prefill graphs end at a context_length that is given."""
    graph_reserve_off: bool = False
    """No reserve for graphs that are disabled; a reserve for DeepEP's buffers."""
    batch_by_requests: bool = False
    """The graph batch is no larger than max_running_requests."""
    image_cache_mib: int = 0
    swa_archs: frozenset[str] = frozenset()
    """Models with a second pool for their sliding layers."""
    swa_plain: bool = False
    """gpt-oss has the second pool only without speculative decoding and trtllm_mha."""
    swa_twice: bool = False
    """Sizing counts MiMo-V2-Flash's sliding layers among the full ones and once more (PR 18039)."""
    swa_by_requests: bool = False
    """Without prefix caching, the sliding pool follows max_running_requests."""
    state_padding: bool = False
    """The state pool's padding slot is counted when the pools are solved."""
    draft_states: Literal["none", "each", "before", "joint"] = "none"
    """States for draft tokens: as many more a slot, taken off before, solved together."""
    extra_buffer: bool = False
    """Hybrid models use two more state slots a request by default."""
    states_uncached: Literal["", "all", "mamba2"] = ""
    """Models with states that have no prefix cache."""
    states_512: bool = True
    """Without prefix cache and max_running_requests: 512 state slots; later: solved."""
    checkpoint_kv_dtype: bool = False
    """`auto` follows the checkpoint's own FP8 cache type."""
    sparse_share: float | None = None
    """mem_fraction_static that sparse MLA models are given, whatever was asked."""
    sparse_replicas: bool = False
    """Sparse MLA models run attention data-parallel over all ranks."""
    scaled_rows_counted: bool = False
    """FP8 rows of sparse MLA are counted with their scales when the pool is sized."""
    raw_fp8_on_rocm: bool = False
    """FP8 rows of sparse MLA on AMD carry no scales."""
    raw_fp8_on_blackwell: bool = False
    """FP8 rows of sparse MLA on Blackwell carry no scales (its trtllm kernels)."""
    scaled_glm_on_sm12: bool = False
    """GLM's FP8 rows on compute capability 12 carry scales."""
    paged_rocm_indexer: bool = False
    """Sparse MLA on AMD has pages of 64 tokens too."""
    shared_indexer: bool = False
    """Layers without an indexer of their own keep no indexer keys."""
    trtllm_mha: bool = False
    """Blackwell's default attention for full heads is trtllm_mha, with pages of 64."""
    draft_counted: bool = False
    """The draft's cache is part of a token's bytes, and its weights are loaded before sizing."""
    compressed: Literal["none", "window", "requests", "cap"] = "none"
    """DeepSeek-V4: states by sliding page; C128 states by request; the sliding pool by request."""
    fp4_recipes: bool = False
    """FP4 caches by recipe: their scales are printed, sizing counts a layer unpacked to FP8."""
    fp4_by_backend: bool = False
    """Scales and the unpacked layer follow what attention reads."""
    context_ranks: Literal["none", "rows", "tokens"] = "none"
    """Decode context parallelism: what max_total_num_tokens prints, a rank's rows or all tokens."""
    compressed_drafts: bool = False
    """The raw rows of the draft layer are counted with the target's."""


_SWA_057 = frozenset({"MiMoV2FlashForCausalLM"})
_SWA_058 = _SWA_057 | {"Llama4ForConditionalGeneration", "GptOssForCausalLM", "Step3p5ForCausalLM"}
_SWA_0511 = _SWA_058 | {
    "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "MiMoV2ForCausalLM",
}  # fmt: skip
_SWA_0512 = _SWA_0511 | {"LagunaForCausalLM", "DeepseekV4ForCausalLM"}
_SWA_0514 = _SWA_0512 | {
    "Step3p7ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration",
}  # fmt: skip
_SWA_0516 = _SWA_0514 | {"MellumForCausalLM", "InklingForConditionalGeneration"}
_SWA_0518 = _SWA_0516 | {"MuseGlimmerForCausalLM", "MuseGlimmerForConditionalGeneration"}

_CHANGES: tuple[tuple[tuple[int, ...], dict[str, object]], ...] = (
    ((0, 4), {"eight_ranks": 0.81}),
    ((0, 4, 5), {"share": "ranks_13", "image_cut": 0.9}),
    ((0, 4, 7), {"share": "ranks_48", "aiter_cut": True}),
    ((0, 4, 8), {"share": "card", "draft_reserve_mib": 2048}),
    ((0, 4, 9), {"image_cut_given": False}),
    ((0, 4, 10), {"image_cut": 0.0}),
    ((0, 5, 3), {"share": "chunk", "small_card": (2048, 16, 80), "checkpoint_kv_dtype": True,
                 "sparse_share": 0.8, "sparse_replicas": True, "states_uncached": "all"}),
    ((0, 5, 4), {"sparse_share": None, "draft_states": "each", "states_uncached": "mamba2"}),
    ((0, 5, 5), {"small_card": (2048, 24, 80), "cut_printed": True}),
    ((0, 5, 6), {"sparse_replicas": False, "extra_layers": "last"}),
    ((0, 5, 7), {"swa_archs": _SWA_057, "states_uncached": "", "draft_states": "before",
                 "swa_twice": True}),
    ((0, 5, 8), {"swa_archs": _SWA_058, "swa_plain": True}),
    ((0, 5, 9), {"states_512": False, "swa_twice": False}),
    ((0, 5, 10), {"prefill_graphs": "piecewise", "graphs_with_draft": False,
                  "draft_reserve_mib": 4096, "raw_fp8_on_rocm": True,
                  "raw_fp8_on_blackwell": True, "trtllm_mha": True}),
    ((0, 5, 11), {"swa_archs": _SWA_0511, "graphs_with_draft": True}),
    ((0, 5, 12), {"swa_archs": _SWA_0512, "compressed": "window",
                  "compressed_drafts": True}),
    ((0, 5, 13), {"draft_states": "joint", "graphs_to_context": True}),
    ((0, 5, 14), {"swa_archs": _SWA_0514, "draft_reserve_mib": 0, "draft_counted": True,
                  "extra_buffer": True, "compressed_drafts": False}),
    ((0, 5, 15), {"prefill_graphs": "breakable", "strict_graphs": True,
                  "context_ranks": "rows"}),
    ((0, 5, 16), {"swa_archs": _SWA_0516, "graph_reserve_off": True, "paged_rocm_indexer": True,
                  "compressed": "requests", "fp4_recipes": True}),
    ((0, 5, 17), {"state_padding": True, "scaled_glm_on_sm12": True,
                  "graphs_to_context": False, "context_ranks": "tokens"}),
    ((0, 5, 18), {"swa_archs": _SWA_0518, "shared_indexer": True, "image_cache_mib": 100,
                  "strict_graphs": False}),
    ((0, 5, 19), {"scaled_rows_counted": True}),
    ((0, 5, 20), {"small_card": (4096, 48, 160)}),
    ((0, 5, 21), {"compressed": "cap", "fp4_by_backend": True}),
    ((0, 5, 22), {"batch_by_requests": True, "swa_by_requests": True}),
)  # fmt: skip
_NEWEST = 23
"""The newest patch of 0.5 that was read."""


def releases() -> tuple[str, ...]:
    """The releases that can have printed a log, oldest first; post releases go by their base."""
    return (
        *(f"0.4.{patch}" for patch in range(11)),
        *(f"0.5.{patch}" for patch in range(_NEWEST + 1)),
    )


# The day on which each release was published (its wheel's upload).
_PUBLISHED = {
    "0.4.0": "2024-12-03", "0.4.1": "2024-12-25", "0.4.2": "2025-01-27", "0.4.3": "2025-02-14",
    "0.4.4": "2025-03-13", "0.4.5": "2025-04-07", "0.4.6": "2025-04-27", "0.4.7": "2025-06-10",
    "0.4.8": "2025-06-24", "0.4.9": "2025-07-06", "0.4.10": "2025-07-31", "0.5.0": "2025-08-08",
    "0.5.1": "2025-08-23", "0.5.2": "2025-09-11", "0.5.3": "2025-10-06", "0.5.4": "2025-10-24",
    "0.5.5": "2025-11-06", "0.5.6": "2025-12-03", "0.5.7": "2026-01-01", "0.5.8": "2026-01-23",
    "0.5.9": "2026-02-23", "0.5.10": "2026-04-05", "0.5.11": "2026-05-07", "0.5.12": "2026-05-16",
    "0.5.13": "2026-06-11", "0.5.14": "2026-06-26", "0.5.15": "2026-07-10", "0.5.16": "2026-07-25",
    "0.5.17": "2026-08-08", "0.5.18": "2026-08-21", "0.5.19": "2026-09-04", "0.5.20": "2026-09-18",
    "0.5.21": "2026-10-01", "0.5.22": "2026-10-16", "0.5.23": "2026-10-30",
}  # fmt: skip


def published(release: str) -> str | None:
    """The day on which a release was published (2026-10-30); None where it is not known."""
    return _PUBLISHED.get(release)


def rules_for(version: str | None) -> Rules:
    """The rules of `version`; None and builds without a release number have the newest."""
    number = _number(version)
    rules = Rules(version=(0,))
    for since, change in _CHANGES:
        if number is None or number >= since:
            rules = msgspec.structs.replace(rules, version=since, **change)
    if number == (0, 4, 6) and post_number(version) >= 5:
        rules = msgspec.structs.replace(rules, share="ranks_18")
    return rules


def _number(version: str | None) -> Release | None:
    """The release as numbers; None for builds that call themselves 0.0.0."""
    number = release_number(version)
    return None if number is None or len(number) < 2 or number[:2] == (0, 0) else number
