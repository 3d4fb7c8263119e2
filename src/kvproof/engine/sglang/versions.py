"""What SGLang did in which release, newest first where they differ.

Each row holds from its version on. Sources: the wheels of 0.4.6, 0.5.5, 0.5.8.post1, 0.5.12 and
0.5.23; a change between two of them is dated to the later one unless logs say otherwise.
"""

from __future__ import annotations

import re

import msgspec


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one release."""

    version: tuple[int, ...]
    heuristic: bool
    """mem_fraction_static from chunk and graph batch; before: a table by tensor-parallel size."""
    wide_small_cards: bool
    """24 and 32 GB cards: chunks of 4,096 and graphs to 48 or 160."""
    hybrid_swa: bool
    """Two pools for models whose sliding layers are listed, without asking for it."""
    swa_archs: frozenset[str]
    state_padding: bool
    """The state pool's padding slot is counted when the pools are solved."""
    extra_buffer: bool
    """Hybrid models use two more state slots a request by default."""
    piecewise: bool
    """Prefill graphs are captured by default and reserve memory."""
    draft_reserve_mib: int
    checkpoint_kv_dtype: bool
    """`auto` follows the checkpoint's own FP8 cache type."""
    raw_fp8_on_rocm: bool
    """FP8 rows of sparse MLA on AMD carry no scales."""
    shared_indexer: bool
    """Layers without an indexer of their own keep no indexer keys."""


_SWA_055: frozenset[str] = frozenset()
_SWA_058 = frozenset({
    "Llama4ForConditionalGeneration", "GptOssForCausalLM", "MiMoV2FlashForCausalLM",
    "Step3p5ForCausalLM",
})  # fmt: skip
_SWA_0512 = _SWA_058 | frozenset({
    "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "LagunaForCausalLM",
    "MiMoV2ForCausalLM", "DeepseekV4ForCausalLM",
})  # fmt: skip
_SWA_0523 = _SWA_0512 | frozenset({
    "Gemma4UnifiedForConditionalGeneration", "Step3p7ForConditionalGeneration",
    "MellumForCausalLM", "EmbeddingGemma2Model", "InklingForConditionalGeneration",
})  # fmt: skip

_OLDEST = Rules(
    version=(0, 4),
    heuristic=False,
    wide_small_cards=False,
    hybrid_swa=False,
    swa_archs=_SWA_055,
    state_padding=False,
    extra_buffer=False,
    piecewise=False,
    draft_reserve_mib=2048,
    checkpoint_kv_dtype=False,
    raw_fp8_on_rocm=False,
    shared_indexer=False,
)
_CHANGES: tuple[tuple[tuple[int, ...], dict[str, object]], ...] = (
    ((0, 4, 10), {"heuristic": True}),
    ((0, 5, 6), {"hybrid_swa": True, "swa_archs": _SWA_058, "checkpoint_kv_dtype": True}),
    ((0, 5, 10), {"swa_archs": _SWA_0512, "piecewise": True, "draft_reserve_mib": 4096}),
    ((0, 5, 13), {"state_padding": True, "extra_buffer": True, "raw_fp8_on_rocm": True,
                  "shared_indexer": True, "draft_reserve_mib": 0}),
    ((0, 5, 20), {"wide_small_cards": True, "swa_archs": _SWA_0523}),
)  # fmt: skip


def rules_for(version: str | None) -> Rules:
    """The rules of `version`; None and builds without a release number have the newest."""
    number = _number(version)
    rules = _OLDEST
    for since, change in _CHANGES:
        if number is None or number >= since:
            rules = msgspec.structs.replace(rules, version=since, **change)
    return rules


def _number(version: str | None) -> tuple[int, ...] | None:
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    if match is None or match[0].startswith("0.0"):
        return None
    return tuple(int(part) for part in match.groups() if part is not None)
