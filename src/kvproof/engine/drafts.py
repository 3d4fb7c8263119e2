"""What a draft model or module keeps of each sequence, beside the cache of the model it drafts for.

An engine answers by its `draft_for(model, deployment)`.
"""

from __future__ import annotations

import msgspec

from kvproof.engine.base import Deployment, own_rule
from kvproof.engine.formula import held_bytes
from kvproof.kinds import Slot, Types
from kvproof.model.types import Model


class DraftCache(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of a draft, under the name of what drafts, and their element types."""

    name: str
    slots: tuple[Slot, ...]
    types: Types

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token adds while every layer grows."""
        return sum(slot.entry_bytes(self.types) for slot in self.slots)

    def bytes(self, tokens: int) -> int:
        """Bytes held for a sequence of `tokens`."""
        return sum(held_bytes(slot, tokens, self.types) for slot in self.slots)


def own_tensors(draft: Model, *, heads: bool) -> Model:
    """The draft without the embedding table that it reads of its target; `heads`: and the head."""
    shared = ("embedding", "head") if heads else ("embedding",)
    kept = tuple(group for group in draft.tensors if group.role not in shared)
    return msgspec.structs.replace(draft, tensors=kept)


def draft_cache(model: Model, deployment: Deployment) -> DraftCache | None:
    """The draft's cache under the deployment; None where nothing that keeps one drafts."""
    own = own_rule(deployment, "draft_for")
    draft: DraftCache | None = None if own is None else own(model, deployment)
    return draft if draft is not None and draft.slots else None
