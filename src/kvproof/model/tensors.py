"""A model's parameter tensors, exactly: names, shapes and counts from its config, without torch.

The recipes in `data/architectures/parameters/` were traced from the constructors of Hugging Face
transformers (scripts/trace_parameters.py): each group of tensors has a name template, its shape as
expressions of config keys, the condition under which it is there, and the loops that repeat it.
This module evaluates them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Literal, cast

import msgspec

from kvproof.errors import ModelError
from kvproof.model.recipe_math import Evaluator
from kvproof.model.recipe_operations import MAX_LOOP, loop_length

Role = Literal[
    "embedding",
    "head",
    "attention",
    "mlp",
    "expert",
    "shared_expert",
    "router",
    "norm",
    "mixer",
    "vision",
    "audio",
    "projector",
    "position",
    "other",
]
ENCODER_ROLES: tuple[Role, ...] = ("vision", "audio", "projector")
"""Tensors that images and sound go through before the decoder."""
_FOLDER = "data/architectures/parameters"
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_DEPTH = 6
_FAULTS = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError)


class TensorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors of one name template and one shape."""

    name: str
    """Template such as `model.layers.{}.mlp.down_proj.weight`; `{}` stands for an index."""
    shape: tuple[int, ...]
    count: int
    """How many such tensors there are."""
    layers: tuple[int, ...] = ()
    """The values of the first index, in order; empty for tensors outside numbered layers."""
    role: Role = "other"
    linear: bool = False
    """The weight of a matrix product (what weight quantization touches)."""
    fp32: bool = False
    """Kept in f32 in 16-bit models."""
    tied: bool = False
    """An embedding that is also the output head (counted once, here)."""

    @property
    def elements(self) -> int:
        """Parameters in the whole group."""
        return self.count * math.prod(self.shape)


class _Group(msgspec.Struct, array_like=True, frozen=True):
    name: str
    shape: tuple[int, ...]
    guard: int
    loops: tuple[tuple[int, int], ...]
    layer: int
    role: str
    flags: int
    tied: int


class _Reference(msgspec.Struct, array_like=True, frozen=True):
    name: str
    kind: str
    config: int
    model_type: str | None
    guard: int
    loops: tuple[tuple[int, int], ...]
    role: str


class _Tie(msgspec.Struct, array_like=True, frozen=True):
    condition: int
    prefix: str
    target: str
    source: str


class _Class(msgspec.Struct, frozen=True):
    groups: tuple[_Group, ...]
    references: tuple[_Reference, ...] = ()
    ties: tuple[_Tie, ...] = ()
    bounds: tuple[tuple[int, int], ...] = ()


class _Recipe(msgspec.Struct, frozen=True):
    model_type: str
    nodes: tuple[tuple[Any, ...], ...]
    classes: dict[str, _Class]
    kinds: dict[str, str]
    """Which class a use means: "default", "base", "causal", ..."""
    aliases: dict[str, str] = {}


_decoder = msgspec.json.Decoder(_Recipe)


@functools.lru_cache(maxsize=64)
def _read(model_type: str) -> _Recipe | None:
    if not 0 < len(model_type) <= 80 or _NO_NAME.search(model_type):
        return None
    file = resources.files("kvproof.model").joinpath(_FOLDER, f"{model_type}.json")
    try:
        return _decoder.decode(file.read_bytes())
    except FileNotFoundError:
        return None


@functools.cache
def known_model_types() -> tuple[str, ...]:
    """Every model type that has a recipe."""
    folder = resources.files("kvproof.model").joinpath(_FOLDER)
    return tuple(
        sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json"))
    )


def _aliases(model_type: str) -> Mapping[str, str]:
    recipe = _read(model_type)
    return recipe.aliases if recipe is not None else {}


def tensor_groups(model_type: str, config: Mapping[str, Any]) -> tuple[TensorGroup, ...]:
    """The parameter tensors of a model, tied ones once, buffers left out.

    `config` is resolved: class defaults applied, sub-configs as mappings, computed lists such as
    `layer_types` present.
    """
    try:
        return tuple(_model_groups(model_type, "default", config, 0))
    except _FAULTS as error:
        raise ModelError(
            f"{model_type}: a value of the config has the wrong kind ({error})"[:300],
            hint="compare it with the model's published config.json",
        ) from None


def parameter_count(model_type: str, config: Mapping[str, Any]) -> int:
    """The exact number of parameters."""
    return sum(group.elements for group in tensor_groups(model_type, config))


def _model_groups(
    model_type: str, kind: str, config: Mapping[str, Any], depth: int
) -> list[TensorGroup]:
    recipe = _read(model_type)
    if recipe is None:
        raise ModelError(
            f"no parameter recipe for model type {model_type[:80]!r}",
            hint="`kvproof models` lists the known architectures",
        )
    if depth > _DEPTH:
        raise ModelError(f"sub-models of {model_type!r} nest deeper than {_DEPTH}")
    config = _one_layout(model_type, config)
    chosen = _choose(recipe, kind, config)
    return _Instance(recipe, chosen, config, depth).groups()


def _one_layout(model_type: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Published layouts that say the same as the class's own in other fields."""
    if model_type == "dory":
        return _paired_blocks(config)
    if model_type == "deepseek_ocr2_text" and config.get("mlp_layer_types") is None:
        layers, dense = config.get("num_hidden_layers"), config.get("first_k_dense_replace", 0)
        if isinstance(layers, int) and isinstance(dense, int) and layers <= MAX_LOOP:
            kinds = ["dense" if i < dense else "sparse" for i in range(layers)]
            return {**config, "mlp_layer_types": kinds}
    return config


def _paired_blocks(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """dory's published configs count attention and mlp blocks as layers of their own."""
    layer_types = config.get("layer_types")
    if not isinstance(layer_types, (list, tuple)) or "mlp" not in layer_types:
        return config
    halved = ("num_hidden_layers", "n_input_layers", "n_recurrent_layers", "n_output_layers")
    counts = {k: config[k] // 2 for k in halved if isinstance(config.get(k), int)}
    return {**config, **counts, "layer_types": layer_types[::2]}


def _choose(recipe: _Recipe, kind: str, config: Mapping[str, Any]) -> _Class:
    if kind == "default":
        names = config.get("architectures")
        for name in names if isinstance(names, (list, tuple)) else ():
            if name in recipe.classes:
                return recipe.classes[name]
    name = recipe.kinds.get(kind) or recipe.kinds.get("base") or recipe.kinds["default"]
    return recipe.classes[name]


class _Instance:
    """One model class over one config."""

    def __init__(
        self, recipe: _Recipe, chosen: _Class, config: Mapping[str, Any], depth: int
    ) -> None:
        self.recipe, self.chosen, self.config, self.depth = recipe, chosen, config, depth
        self.run = Evaluator(recipe.nodes, config, _aliases)
        self._turns: dict[tuple[int, tuple[tuple[int, int], ...]], list[tuple[int, ...]]] = {}

    def groups(self) -> list[TensorGroup]:
        """Every group, sub-models included, ties applied."""
        for number, limit in self.chosen.bounds:
            if self.run(number) > limit:
                raise ModelError(
                    f"{self.recipe.model_type}: the config asks for {self.run(number)} stages; "
                    f"kvproof reads up to {limit} of this architecture"
                )
        found: list[TensorGroup] = []
        for group in self.chosen.groups:
            found.extend(self._expand(group))
        for reference in self.chosen.references:
            found.extend(self._refer(reference))
        return self._untie(found) if self.chosen.ties else found

    def _expand(self, group: _Group) -> Iterator[TensorGroup]:
        if group.loops and self._depends(group):
            yield from self._by_turn(group)
        elif group.guard < 0 or self.run(group.guard):
            count = math.prod(self._length(n) for _, n in group.loops)
            if count:
                yield self._make(group, self._shape(group), count, self._all_layers(group))

    def _all_layers(self, group: _Group) -> tuple[int, ...]:
        if group.layer < 0:
            return ()
        if not group.loops:
            return (self.run(group.layer),)
        counter, number = group.loops[0]
        length = self._length(number)
        if list(self.run.nodes[group.layer]) == ["v", counter]:
            return tuple(range(length))
        return tuple(self.run.each(counter, length, group.layer))

    def _by_turn(self, group: _Group) -> Iterator[TensorGroup]:
        turns = self._selected(group.guard, group.loops)
        by_shape: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        if not any(self.run.free[n] for n in group.shape):
            if turns:
                by_shape[self._shape(group)] = turns
        else:
            for turn in turns:
                self._set(group.loops, turn)
                by_shape.setdefault(self._shape(group), []).append(turn)
        for shape, found in by_shape.items():
            yield self._make(group, shape, len(found), self._layers_of(group, found))

    def _layers_of(self, group: _Group, turns: list[tuple[int, ...]]) -> tuple[int, ...]:
        if group.layer < 0:
            return ()
        if list(self.run.nodes[group.layer]) == ["v", group.loops[0][0]]:
            return tuple(dict.fromkeys(turn[0] for turn in turns))
        layers = []
        for turn in turns:
            self._set(group.loops, turn)
            layers.append(self.run(group.layer))
        return tuple(dict.fromkeys(layers))

    def _selected(self, guard: int, loops: tuple[tuple[int, int], ...]) -> list[tuple[int, ...]]:
        """The counter values at which a condition holds."""
        key = (guard, loops)
        if key not in self._turns:
            self._turns[key] = list(self._turn(guard, loops, ()))
        return self._turns[key]

    def _turn(
        self, guard: int, loops: tuple[tuple[int, int], ...], outer: tuple[int, ...]
    ) -> Iterator[tuple[int, ...]]:
        if len(outer) == len(loops):
            if guard < 0 or self.run(guard):
                yield outer
            return
        counter, count = loops[len(outer)]
        for turn in range(self._length(count)):
            self.run.count(counter, turn)
            yield from self._turn(guard, loops, (*outer, turn))
            if len(outer) + 1 < len(loops):
                self._set(loops[: len(outer) + 1], (*outer, turn))

    def _set(self, loops: tuple[tuple[int, int], ...], turn: tuple[int, ...]) -> None:
        for (counter, _), value in zip(loops, turn, strict=False):
            self.run.count(counter, value)

    def _depends(self, group: _Group) -> bool:
        free = self.run.free
        counters = {counter for counter, _ in group.loops}
        numbers = [
            *group.shape,
            *(n for _, n in group.loops),
            *([group.guard] if group.guard >= 0 else ()),
        ]
        return any(not free[n].isdisjoint(counters) for n in numbers)

    def _length(self, number: int) -> int:
        return loop_length(self.run(number))

    def _shape(self, group: _Group) -> tuple[int, ...]:
        return tuple(self._size(n, group.name) for n in group.shape)

    def _size(self, number: int, name: str) -> int:
        value = self.run(number)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or value < 0 or value > 10**12:
            raise ModelError(f"the config gives {name} a size of {str(value)[:40]!r}")
        return value

    def _make(
        self, group: _Group, shape: tuple[int, ...], count: int, layers: tuple[int, ...]
    ) -> TensorGroup:
        return TensorGroup(
            name=group.name,
            shape=shape,
            count=count,
            layers=layers,
            role=cast(Role, group.role),
            linear=bool(group.flags & 1),
            fp32=bool(group.flags & 2),
            tied=group.tied >= 0 and bool(self.run(group.tied)),
        )

    def _refer(self, reference: _Reference) -> Iterator[TensorGroup]:
        repeats = len(self._selected(reference.guard, reference.loops))
        config = self.run(reference.config) if repeats else None
        if config is None:
            return
        if not isinstance(config, Mapping):
            raise ModelError(f"the config of the sub-model {reference.name!r} is not an object")
        model_type = str(config.get("model_type") or reference.model_type or "")
        for group in _model_groups(model_type, reference.kind, config, self.depth + 1):
            yield msgspec.structs.replace(
                group,
                name=f"{reference.name}.{group.name}",
                role=cast(Role, reference.role or group.role),
                count=group.count * repeats,
                layers=() if reference.loops else group.layers,
            )

    def _untie(self, groups: list[TensorGroup]) -> list[TensorGroup]:
        """Ties that reach into sub-models."""
        for tie in self.chosen.ties:
            if not self.run(tie.condition):
                continue
            dot = f"{tie.prefix}." if tie.prefix else ""
            target, source = (
                re.compile(dot.replace(".", r"\.") + k.removeprefix("^"))
                for k in (tie.target, tie.source)
            )
            sources = [g for g in groups if source.match(g.name.replace("{}", "7"))]
            if not sources:
                continue
            kept = [
                g for g in groups if g in sources or not target.match(g.name.replace("{}", "7"))
            ]
            groups = [msgspec.structs.replace(g, tied=True) if g in sources else g for g in kept]
        return groups
