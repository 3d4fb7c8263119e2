"""DeepSeek-V4's pools: raw windows, compressed entries, indexer keys, states being compressed.

available = tokens x bytes a token + fixed (pool_configurator.py, `DSV4PoolConfigurator`). A token
of the full length costs its part of an entry in each compressing layer, and `swa_full_tokens_ratio`
(0.1) of a raw row in every layer with the states that follow it. 0.5.16 counts the states of
ratio 128 by request; 0.5.21 sizes the raw pool by max_running_requests unless a ratio is given,
and counts FlashMLA's page padding. V4.1's ratios of 1 and 2 are refused; the unified pool of AMD
and encoder replay are not modelled.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.sglang.flags import Flags
from kvproof.engine.sglang.windows import request_window_tokens, running_requests, up_to
from kvproof.errors import UsageError
from kvproof.kinds import CompressedSlot, SlidingSlot, Slot
from kvproof.model.types import Model

_RATIO, _RUNNING = 0.1, 256
_PAGE, _PAGE_UNIT = 256, 576
_STATE_WIDTH = 4
_TAILS = 4
"""Prefix tails kept for each running request where prefixes are cached."""


class Compressed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a token of the full length costs, and what costs the same at any length."""

    token: float
    fixed: int
    window: int
    layers: int
    entry_layers: tuple[int, int]
    """Layers of ratio 4 and of ratio 128."""
    ratio: float
    pinned: int
    """Raw tokens where they follow the requests, else 0."""

    def tokens(self, available: int) -> int:
        """Tokens in whole pages."""
        return max(0, int((available - self.fixed) / self.token)) // _PAGE * _PAGE

    def bytes(self, tokens: int) -> int:
        """Bytes of all pools for `tokens`."""
        return round(tokens * self.token) + self.fixed


def compressed_pools(model: Model, flags: Flags, layers: range) -> Compressed:
    """The pools of the stage that holds `layers`."""
    slots = [s for s in model.slots if isinstance(s, CompressedSlot) and s.layer in layers]
    fast = [slot for slot in slots if slot.ratio == 4]
    slow = [slot for slot in slots if slot.ratio == 128]
    other = {slot.ratio for slot in slots} - {4, 128}
    if other:
        raise UsageError(
            f"{model.name} compresses by {', '.join(map(str, sorted(other)))} too: SGLang's pools "
            "for that are not computed",
            hint="ratios of 4 and 128, as in DeepSeek-V4, are",
        )
    dim = slots[0].dim if slots else 0
    window = slots[0].window if slots else 0
    index = max((slot.index_dim for slot in fast), default=0)
    running = running_requests(flags, _RUNNING) or 1
    paged = flags.rules.compressed == "cap"
    row = _row(model, dim)
    raw = _padded(row, _PAGE) if paged else row
    drafting = flags.drafts
    rings = (16, 256) if drafting else (8, 128)
    states = 4 * (dim + index) * _STATE_WIDTH * rings[0] / (_PAGE if paged else window or 1)
    listed = len(model.text_config.get("compress_ratios") or ())
    rows = max(listed, len(layers)) if flags.rules.compressed_drafts else len(layers)
    sliding = raw * rows + states * len(fast)
    token = (
        len(fast) * ((_padded(row, _PAGE // 4) if paged else row) + index + index // 128 * 4) / 4
    )
    token += len(slow) * (_padded(row, _PAGE // 128) if paged else row) / 128
    slow_state = 2 * dim * _STATE_WIDTH
    fixed = 0
    if flags.rules.compressed == "window":
        sliding += slow_state * rings[1] / (window or 1) * len(slow)
    else:
        fixed = up_to((running + 1) * rings[1] + rings[1] + 1, 128) * slow_state * len(slow)
    ratio = float(flags.get("swa_full_tokens_ratio", _RATIO))
    pinned = _pinned(flags, window, running) if paged else 0
    infl = (rows + 1) / rows if drafting and rows else 1.0
    token = (token + (0 if pinned else ratio * sliding)) * infl
    return Compressed(
        token=token,
        fixed=fixed + round(pinned * sliding * infl),
        window=window,
        layers=len(layers),
        entry_layers=(len(fast), len(slow)),
        ratio=ratio,
        pinned=pinned,
    )


def compressed_slot_bytes(model: Model, slot: Slot, tokens: int, beyond: int = 0) -> int:
    """Bytes that a slot holds of `tokens`: raw rows, entries, their indexer keys.

    `beyond`: raw rows kept beyond the window, in pages that it touches.
    """
    if not isinstance(slot, CompressedSlot | SlidingSlot):
        return 0
    dim = int(model.text_config.get("head_dim") or 0)
    row = _row(model, slot.dim if isinstance(slot, CompressedSlot) else dim)
    held = min(tokens, slot.window + beyond) * row
    if isinstance(slot, SlidingSlot):
        return held
    return held + tokens // slot.ratio * (row + slot.index_dim + slot.index_dim // 128 * 4)


def _row(model: Model, dim: int) -> int:
    """Bytes of a row: FP8 values with their scales, the rotary part in 16 bits."""
    rope = int(model.text_config.get("qk_rope_head_dim") or 64)
    return dim - rope + 2 * rope + 8


def _padded(row: int, entries: int) -> float:
    """Bytes a row takes in pages of `entries` rows that FlashMLA pads to its unit."""
    return up_to(row * entries, _PAGE_UNIT) / entries


def _pinned(flags: Flags, window: int, running: int) -> int:
    """Raw tokens that the requests need, with the tails of cached prefixes; 0: by ratio."""
    if flags.get("swa_full_tokens_ratio") is not None or flags.chunked_prefill_size <= 0:
        return 0
    tails = flags.get("swa_prefix_tails")
    if tails is None:
        tails = 0 if flags.get("disable_radix_cache") else _TAILS * running
    needed = request_window_tokens(flags, window, _PAGE, running)
    return up_to(needed + int(tails) * (window + _PAGE), _PAGE)
