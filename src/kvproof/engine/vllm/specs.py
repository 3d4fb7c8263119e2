"""Spec: what one layer asks of the block pool, as a frozen value that answers two questions.

How large is a page (one block of one layer on one rank), and how many blocks may a request of
the longest length hold. Source: vLLM 0.32, v1/kv_cache_interface.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

SpecKind = Literal[
    "full", "latent", "sliding", "sliding_latent", "chunked", "state", "ring", "cross"
]
SPEC_CLASSES: dict[str, SpecKind] = {
    "FullAttentionSpec": "full", "MLAAttentionSpec": "latent", "SlidingWindowSpec": "sliding",
    "SlidingWindowMLASpec": "sliding_latent", "ChunkedLocalAttentionSpec": "chunked",
    "MambaSpec": "state", "CrossAttentionSpec": "cross", "CircularBufferSpec": "ring",
}  # fmt: skip
"""The kinds by the classes that vLLM has for them, as its planner's answers name them."""
FULL_KINDS = ("full", "latent")
SLIDING_KINDS = ("sliding", "sliding_latent")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's page and its block rule. Two layers with equal specs can share a group.

    `row_bytes` are the bytes of one stored row of the page over all heads on the rank;
    `tokens_per_row` tokens share a row (1, or the ratio of compressed attention). A state's
    page is `state_bytes`. `padded_bytes` replaces a smaller page. Blocks that hold several
    layers' pages lie a multiple of `stride` bytes apart. `note` keeps apart specs that look
    alike but that vLLM does not merge.
    """

    kind: SpecKind
    block_size: int
    row_bytes: int = 0
    tokens_per_row: int = 1
    state_bytes: int = 0
    padded_bytes: int | None = None
    alignment: int = 1
    window: int = 0
    chunk: int = 0
    retained: int = 0
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0
    replicated: bool = False
    stride: int = 1
    note: str = ""

    @property
    def bare_bytes(self) -> int:
        """Bytes of a page without padding."""
        if self.kind == "state":
            return self.state_bytes
        return self.block_size // self.tokens_per_row * self.row_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of this layer on one rank."""
        if self.padded_bytes is not None:
            return self.padded_bytes
        bare = self.bare_bytes
        return -(-bare // self.alignment) * self.alignment

    def padded(self, page: int) -> Spec:
        """The same layer with its page padded to `page` bytes."""
        return msgspec.structs.replace(self, padded_bytes=page)


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    """What a request's reserve depends on besides its layers: lengths, batches, modes."""

    max_model_len: int
    in_flight: int
    context_ranks: int = 1
    state_mode: str = "none"
    state_rule: Literal["length", "mode"] = "mode"
    encoder_tokens: int = 0
    encoder_reserve: int = 0
    """Tokens of the encoder that a request is reckoned with."""


def blocks_reserved(spec: Spec, reserve: Reserve) -> int:
    """Blocks that one request of max_model_len may hold in a group of this spec."""
    length = reserve.max_model_len
    if spec.kind in FULL_KINDS:
        return _ceil(_ceil(length, reserve.context_ranks), spec.block_size)
    if spec.kind in SLIDING_KINDS:
        held = min(spec.window - 1 + spec.retained + reserve.in_flight, length)
        return _ceil(held, spec.block_size) + 1
    if spec.kind == "chunked":
        return _ceil(min(spec.chunk + reserve.in_flight, length), spec.block_size)
    if spec.kind == "cross":
        return _ceil(reserve.encoder_reserve, spec.block_size)
    if spec.kind == "ring":
        return 1
    return _state_blocks(spec, reserve)


def _state_blocks(spec: Spec, reserve: Reserve) -> int:
    if reserve.state_rule == "length" or reserve.state_mode == "all":
        return _ceil(reserve.max_model_len, spec.block_size) + spec.speculative_blocks
    if reserve.state_mode == "align":
        return 2 + spec.speculative_blocks + spec.checkpoint_blocks
    return 1 + spec.speculative_blocks


def blocks_held(spec: Spec, tokens: int, reserve: Reserve) -> int:
    """Blocks that a request holds whose newest token is number `tokens`.

    Sliding layers have given back the blocks before the window of that token, chunked layers
    those before its chunk, state layers all but the running state. Source: vLLM 0.32,
    v1/core/single_type_kv_cache_manager.py (get_num_skipped_tokens).
    """
    if tokens <= 0:
        return 0
    block = spec.block_size
    if spec.kind in FULL_KINDS:
        return _ceil(tokens, block * reserve.context_ranks)
    if spec.kind in SLIDING_KINDS:
        gone = max(0, tokens - spec.window - spec.retained)
        return _ceil(tokens, block) - gone // block
    if spec.kind == "chunked":
        gone = (tokens - 1) // spec.chunk * spec.chunk
        return _ceil(tokens, block) - gone // block
    if spec.kind == "state" and reserve.state_mode == "all":
        return _ceil(tokens, block) + spec.speculative_blocks
    if spec.kind == "state":
        return 1 + spec.speculative_blocks
    if spec.kind == "cross":
        return _ceil(reserve.encoder_tokens, block)
    return blocks_reserved(spec, reserve)


def mergeable(specs: Sequence[Spec]) -> bool:
    """Whether the layers can share one group as if they were alike.

    Equal specs can; full-attention layers also when they differ only in a window that they
    keep no less for (the hybrid manager switched off).
    """
    first = specs[0]
    if first.kind != "full":
        return all(spec == first for spec in specs)
    bare = _without_limits(first)
    windows = {spec.window for spec in specs if spec.window}
    chunks = {spec.chunk for spec in specs if spec.chunk}
    if len(windows) > 1 or len(chunks) > 1 or (windows and chunks):
        return False
    return all(spec.kind == "full" and _without_limits(spec) == bare for spec in specs)


def _without_limits(spec: Spec) -> Spec:
    return msgspec.structs.replace(spec, window=0, chunk=0)


def one_type(specs: Sequence[Spec]) -> bool:
    """Whether the layers always need the same number of token slots, whatever their pages."""
    first = specs[0]
    if any(s.block_size != first.block_size or s.replicated != first.replicated for s in specs):
        return False
    if first.kind in FULL_KINDS:
        return all(s.kind in FULL_KINDS for s in specs)
    if first.kind in SLIDING_KINDS:
        wanted = SLIDING_KINDS if first.kind == "sliding" else ("sliding_latent",)
        return all(s.kind in wanted and s.window == first.window for s in specs)
    if first.kind == "chunked":
        return all(s.kind == "chunked" and s.chunk == first.chunk for s in specs)
    if first.kind == "state":
        return all(_same_states(first, s) for s in specs)
    return all(s.kind == first.kind for s in specs)


def _same_states(first: Spec, other: Spec) -> bool:
    return (
        other.kind == "state"
        and other.page_bytes == first.page_bytes
        and other.speculative_blocks == first.speculative_blocks
        and other.checkpoint_blocks == first.checkpoint_blocks
    )


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)
