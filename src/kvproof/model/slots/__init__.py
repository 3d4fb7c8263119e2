"""From a resolved config to slots: what each layer of a model caches.

The reader is chosen by the decoder's model type; those without a reader of their own have
ordinary attention. A type that does not generate text is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from kvproof.errors import ModelError
from kvproof.kinds import Slot
from kvproof.model.classes import base, class_row
from kvproof.model.config import TEXT_KEYS, Resolved
from kvproof.model.slots import attention, compressed, latent, other, sequence, states
from kvproof.model.slots.context import Context

Reader = Callable[[Context], list[Slot]]

_READERS: dict[str, Reader] = {
    **dict.fromkeys(
        ("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash", "minicpm3",
         "mistral4", "sarvam_mla", "youtu"),
        latent.latent,
    ),
    **dict.fromkeys(
        ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "hy_v4_vl_text"), latent.indexed
    ),
    **dict.fromkeys(("bailing_hybrid", "kimi_linear", "glm5_next_text"), states.latent_hybrid),
    **dict.fromkeys(
        ("gemma3n_text", "gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"),
        attention.gemma_shared,
    ),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "lara_mini"),
        states.hybrid(states.gated_delta),
    ),
    **dict.fromkeys(
        ("bamba", "falcon_h1", "granitemoehybrid"), states.hybrid(states.mamba2_hybrid)
    ),
    **dict.fromkeys(
        ("lfm2", "lfm2_moe", "lfm3"), states.hybrid(states.short_conv, linear="conv")
    ),
    **dict.fromkeys(("mamba", "falcon_mamba"), states.hybrid(states.mamba1())),
    **dict.fromkeys(
        ("inkling_text", "inkling2_text", "inkling2_loop_text"), states.inkling
    ),
    "cpmant": attention.prefixed,
    "deepseek_v4": compressed.deepseek_v4,
    "dory": attention.looped,
    "dots3_note_text": latent.dots3_note,
    "jamba": states.hybrid(
        states.mamba1(expand="mamba_expand", state="mamba_d_state", kernel="mamba_d_conv")
    ),
    "mamba2": states.hybrid(states.mamba2),
    "minimax": states.hybrid(states.lightning),
    "minimax_m3_vl_text": attention.full_with_indexer,
    "mistral_large4_text": latent.mistral_large4,
    "mllama_text_model": sequence.mllama,
    "nemotron_h": states.hybrid(states.nemotron_mixer),
    "blip_text_model": other.nothing,
    "openai-gpt": other.nothing,
    "qwen4_exp_text": states.qwen4_exp,
    "recurrent_gemma": states.hybrid(states.rglru),
    "reformer": other.reformer,
    "rwkv": other.rwkv,
    "unlimited_ocr_text": other.reference_window,
    "xlnet": other.xlnet,
    "xlstm": other.xlstm,
    "zamba": states.hybrid(
        states.mamba1(
            expand="mamba_expand", state="mamba_d_state", kernel="mamba_d_conv",
            heads="n_mamba_heads",
        )
    ),
    "zamba2": states.hybrid(states.zamba2_mixer),
    "zaya": states.zaya,
}  # fmt: skip


@cache
def _generating() -> frozenset[str]:
    """Types that generate text, and the decoders inside them."""
    whole = {kind for table in base().families.values() for kind in table}
    rows = [row for kind in whole if (row := class_row(kind)) is not None]
    inner = {sub.class_ for row in rows for key, sub in row.subs.items() if key in TEXT_KEYS}
    return frozenset({*whole, *(name for name in inner if name)})


_REFUSED = {
    "blt": "transformers itself can't build its cache from the config",
    "pi0": "it generates actions, not text",
}


def read_slots(resolved: Resolved) -> tuple[Slot, ...]:
    """Every slot of the model's decoder, in layer order."""
    if resolved.model_type not in _generating():
        raise ModelError(
            f"{resolved.model_type!r} generates no text, so it has no KV cache",
            hint="kvproof models --coverage lists what is read",
        )
    if resolved.model_type in _REFUSED:
        raise ModelError(
            f"{resolved.model_type!r} is not read: {_REFUSED[resolved.model_type]}",
            hint="kvproof models --coverage lists what is read",
        )
    ctx = Context(resolved)
    own = _READERS.get(ctx.type, attention.standard)(ctx)
    return tuple(sequence.with_cross(ctx, own) if sequence.has_cross(ctx) else own)
