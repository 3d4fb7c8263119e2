"""Layers and groups of layers, as the planner passes them around."""

from __future__ import annotations

import msgspec

from kvproof.engine.vllm.specs import Spec


class Layer(msgspec.Struct, frozen=True):
    """One cache of one decoder layer: its name, the layer's index, what it asks for."""

    name: str
    index: int
    spec: Spec


class LayerGroup(msgspec.Struct, frozen=True):
    """Layers that share block ids. `uniform`: one type, pages may differ.

    `of` keeps the group's spec for a pipeline stage that holds none of its layers.
    """

    layers: tuple[Layer, ...]
    uniform: bool
    of: Spec | None = None

    @property
    def spec(self) -> Spec:
        """The spec that stands for the group in the scheduler: its first layer's."""
        if self.layers and self.of is None:
            return self.layers[0].spec
        if self.of is None:
            raise ValueError("a group without layers needs its spec")
        return self.of

    @property
    def page_bytes(self) -> int:
        """Bytes of one block over all layers of the group on the rank."""
        return sum(layer.spec.page_bytes for layer in self.layers)
