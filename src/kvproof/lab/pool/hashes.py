"""Names of block contents: a chain, so that equal names mean equal tokens from the start on."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from kvproof.lab.pool.blocks import BlockHash

ROOT = BlockHash(b"kvproof-lab-root")


def next_hash(parent: BlockHash, tokens: Sequence[int]) -> BlockHash:
    """The name of a block of `tokens` that follows the block named `parent`."""
    digest = blake2b(parent, digest_size=16)
    digest.update(array("q", tokens).tobytes())
    return BlockHash(digest.digest())


def chain(tokens: Sequence[int], block_size: int, parent: BlockHash = ROOT) -> list[BlockHash]:
    """Names of the full blocks of `tokens`, in order; a partial last block has none."""
    out: list[BlockHash] = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = next_hash(parent, tokens[start : start + block_size])
        out.append(parent)
    return out
