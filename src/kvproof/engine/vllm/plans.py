"""What vLLM's planner makes of a model: groups of layers by stage, and what requests reserve."""

from __future__ import annotations

import msgspec

from kvproof.engine.vllm.layers import Blocks
from kvproof.engine.vllm.settings import Settings
from kvproof.engine.vllm.specs import Reserve
from kvproof.engine.vllm.types import LayerGroup


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A model's groups over all stages, and how requests reserve blocks in them."""

    settings: Settings
    blocks: Blocks
    groups: tuple[LayerGroup, ...]
    stages: tuple[tuple[LayerGroup, ...], ...]
    reserve: Reserve
    wide: tuple[int, ...]
    """Bytes of a block id on a rank of each stage."""

    @property
    def own(self) -> tuple[LayerGroup, ...]:
        """The groups that the engine prints: those of the first stage."""
        return self.stages[0]
