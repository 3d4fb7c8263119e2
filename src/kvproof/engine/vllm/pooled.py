"""Indexers that keep one row for a group of tokens, and the group still open in a ring beside it.

GLM-5.3-Flash pools its latent attention's indexer keys, Qwen3.8-Flash-Next those of plain
attention. Both caches share blocks with the attention's. Source: vLLM 0.32,
models/glm5next/common/attention.py and models/qwen4_exp/common/qsa_cache.py.
"""

from __future__ import annotations

from kvproof.engine.vllm.backend_types import Backend
from kvproof.engine.vllm.settings import Settings
from kvproof.engine.vllm.specs import Spec
from kvproof.kinds import IndexerSlot
from kvproof.model.types import Model

_BF16 = 2
_SCALE = 4
_POSITIONS, _POSITION = 3, 4
"""Three rotary positions of int64, counted in bf16 numbers, where images have their own."""
_PAGES, _PAGES_SM120 = (32, 64), (64,)
"""Rows of a page that DeepGEMM's kernels read."""


def is_pooled(model: Model) -> bool:
    """Whether the indexer keeps one row for a group of tokens."""
    return _pools_latents(model) or model.model_type.startswith("qwen4_exp")


def _pools_latents(model: Model) -> bool:
    """Whether it is the indexer of latent attention: vLLM has a class for each of the two."""
    return model.model_type.startswith("glm5_next")


def group_size(model: Model) -> int:
    """Tokens that share a row of the indexer."""
    config = model.text_config
    return int(config.get("index_kpool") or config.get("indexer_compress_ratio") or 1)


def pooled_backends(model: Model, settings: Settings) -> list[Backend]:
    """The block sizes that a pooled indexer takes: pages of rows, each a group of tokens."""
    if not _pools_latents(model):
        return []
    pages = _PAGES_SM120 if settings.capability[0] == 12 else _PAGES
    sizes = tuple(group_size(model) * page for page in pages)
    return [Backend(name="GLM5_NEXT_INDEXER", sizes=sizes, multiple=False)]


def pooled_specs(
    model: Model, settings: Settings, slot: IndexerSlot, block: int
) -> list[tuple[str, Spec]]:
    """The rows of whole groups, and the ring with the keys of the open one."""
    size = group_size(model)
    if _pools_latents(model):
        width = int(model.text_config["index_head_dim"])
        row, ring_row = width + _SCALE, 2 * width * _BF16  # keys and their weights in the group
        stride = row
        ring = size * _next_power(-(-(size + settings.draft.tokens) // size))
    else:
        row, stride = slot.dim * _BF16, 1
        ring_row = (slot.dim + _rotary_numbers(model, settings, slot)) * _BF16
        ring = size * -(-(size + settings.draft.tokens) // size)
    tail = ("tail", Spec(kind="ring", block_size=ring, row_bytes=ring_row))
    rows = ("indexer", _rows(block, size, row, stride))
    return [rows, tail] if _pools_latents(model) else [tail, rows]


def _rows(block: int, size: int, row: int, stride: int) -> Spec:
    return Spec(
        kind="latent", block_size=block, row_bytes=row, tokens_per_row=size, stride=stride, note="i"
    )


def _next_power(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _rotary_numbers(model: Model, settings: Settings, slot: IndexerSlot) -> int:
    """Numbers that keep a key's three positions: with a vision tower only."""
    if "ForConditionalGeneration" not in model.architecture:
        return 0
    if settings.flags.get("language_model_only"):
        return 0
    return -slot.dim % _POSITION + _POSITIONS * _POSITION
