"""View: one step's look at the pool, made once and used by every layer of the step.

It says where the new entries of each sequence go and which entries their queries may see. A view
is valid until the next verb of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch

from kvproof.errors import UsageError
from kvproof.lab.pool.groups import Group
from kvproof.lab.pool.planes import Plane, StatePlane
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.pool.tables import Sequence, Table


class GroupView:
    """The view of one group: write places of all new entries, tables and visible ranges.

    `tables` is [sequences, widest] int32 block numbers; the last query of sequence s sees entries
    `first[s]` to `entries[s] - 1` of its table.
    """

    def __init__(self, group: Group, tables: Seq[Table], counts: Seq[int]) -> None:
        self.group, self.sources = group, list(tables)
        self._kept: dict[Hashable, Any] = {}
        if group.is_state:
            self.blocks = torch.tensor([t.blocks[0] for t in tables], dtype=torch.long)
            return
        pairs = list(zip(tables, counts, strict=True))
        places = [group.places(t, t.entries - n, n) for t, n in pairs]
        self.blocks = torch.cat([blocks for blocks, _ in places])
        self.offsets = torch.cat([offsets for _, offsets in places])
        widest = max(1, *(len(t.blocks) for t in tables))
        self.tables = np.zeros((len(pairs), widest), dtype=np.int32)
        for row, table in zip(self.tables, tables, strict=True):
            row[: len(table.blocks)] = table.blocks
        self.entries = np.array([t.entries for t in tables], dtype=np.int32)
        window = group.window
        self.first = np.zeros_like(self.entries)
        if window is not None:
            self.first = np.maximum(0, self.entries - window).astype(np.int32)

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What a kernel needs of this step under `key`: made once, for all that ask again."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


class View:
    """A step over `sequences`, the i-th of which has just reserved `counts[i]` entries."""

    def __init__(self, pool: PagedPool, sequences: Seq[Sequence], counts: Seq[int]) -> None:
        self.pool, self.sequences, self.counts = pool, list(sequences), list(counts)
        self.single = all(n == 1 for n in counts)
        self.groups = [
            GroupView(group, [s.tables[i] for s in sequences], counts)
            for i, group in enumerate(pool.groups)
        ]

    def planes(self, slot: int) -> tuple[GroupView, tuple[Plane, ...]]:
        """The group's view and the planes of slot number `slot` (an attention slot)."""
        group, index = self.pool.home[slot]
        found = self.pool.groups[group].planes[index]
        planes = tuple(p for p in found if isinstance(p, Plane))
        if len(planes) != len(found):
            raise UsageError(f"slot {slot} keeps a state", hint="use read_state and write_state")
        return self.groups[group], planes

    def write(self, slot: int, *vectors: torch.Tensor) -> None:
        """Store the new entries of a slot: keys and values, or latents, [tokens, heads, dim]."""
        view, planes = self.planes(slot)
        for plane, x in zip(planes, vectors, strict=True):
            plane.write(view.blocks, view.offsets, x)

    def read_state(self, slot: int) -> torch.Tensor:
        """The states of a slot, [sequences, *shape]; a copy."""
        view, plane = self._state(slot)
        return plane.data[view.blocks]

    def write_state(self, slot: int, states: torch.Tensor) -> None:
        """Replace the states of a slot."""
        view, plane = self._state(slot)
        plane.data[view.blocks] = states.to(plane.data.dtype)

    def _state(self, slot: int) -> tuple[GroupView, StatePlane]:
        group, index = self.pool.home[slot]
        plane = self.pool.groups[group].planes[index][0]
        if not isinstance(plane, StatePlane):
            raise UsageError(f"slot {slot} keeps entries, not a state", hint="use write")
        return self.groups[group], plane
