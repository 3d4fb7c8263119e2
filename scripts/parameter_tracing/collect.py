"""From the interpreted module tree to parameter groups with conditions, repeats, ties and roles."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .configs import Cfg
from .expressions import E, conj, mk, negate
from .values import (
    MISSING,
    AutoRef,
    Choice,
    Elem,
    Guarded,
    Loop,
    LoopValue,
    Obj,
    Param,
    Raised,
    SymList,
    Unsupported,
)


@dataclass
class Group:
    """Tensors of one name template."""

    name: str
    shape: tuple[Any, ...]
    guard: Any
    loops: tuple[tuple[int, Any], ...]
    layer: Any
    kind: str
    fp32: bool
    tied: Any = False


@dataclass
class Ref:
    """A sub-model described elsewhere."""

    name: str
    kind: str
    path: Any
    model_type: str | None
    guard: Any
    loops: tuple[tuple[int, Any], ...]
    strip: bool = False


@dataclass
class Walk:
    """One traversal of a model."""

    interp: Any
    groups: list[Group] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)
    ties: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    seen: dict[int, Any] = field(default_factory=dict)
    keep: list[Any] = field(default_factory=list)
    strict: set[str] = field(default_factory=set)
    stack: list[int] = field(default_factory=list)

    def visit(self, value: Any, name: str, guard: Any, loops: Any, layer: Any, owner: Any) -> None:
        """Anything an attribute holds."""
        if isinstance(value, Choice):
            self.visit(value.yes, name, conj(guard, value.cond), loops, layer, owner)
            self.visit(value.no, name, conj(guard, negate(value.cond)), loops, layer, owner)
        elif isinstance(value, Param):
            self._param(value, name, guard, loops, layer, owner)
        elif isinstance(value, Obj):
            if issubclass(value.cls, nn.Module):
                self._module(value, name, guard, loops, layer)
        elif isinstance(value, AutoRef):
            self._ref(value, name, guard, loops)
        elif isinstance(value, LoopValue):
            inner = (*loops, (value.var, value.count))
            self.visit(
                value.value,
                name,
                guard,
                inner,
                layer if layer is not None else E("v", value.var),
                owner,
            )

    def _param(
        self, value: Param, name: str, guard: Any, loops: Any, layer: Any, owner: Any
    ) -> None:
        earlier = self.seen.get(id(value))
        if earlier is not None:
            if earlier is True:
                return
            guard = conj(guard, negate(earlier))
        self.seen[id(value)] = (
            True if guard is True else guard if earlier is None else mk("or", earlier, guard)
        )
        self.keep.append(value)
        own = {v for v, _ in value.loops}
        kept = tuple(item for item in loops if item[0] in own)
        free = set().union(*(s.free for s in (*value.shape, guard) if isinstance(s, E)), set())
        missing = free - {v for v, _ in kept}
        if missing:
            kept = tuple(item for item in loops if item[0] in own | missing)
        leaf = name.rsplit(".", 1)[-1]
        kind = "raw"
        if owner is not None and leaf == "weight":
            if issubclass(owner.cls, (nn.Linear, Conv1D)):
                kind = "linear"
            elif issubclass(owner.cls, nn.Embedding):
                kind = "embedding"
            elif issubclass(owner.cls, nn.modules.conv._ConvNd):
                kind = "conv"
        if not isinstance(layer, E) and layer is not None and kept:
            layer = None
        fp32 = value.dtype is torch.float32
        self.groups.append(Group(name, value.shape, guard, kept, layer, kind, fp32))

    def _ref(self, value: AutoRef, name: str, guard: Any, loops: Any) -> None:
        config = value.config
        if isinstance(config, Choice):
            self._ref(
                AutoRef(value.kind, config.yes, value.loops), name, conj(guard, config.cond), loops
            )
            self._ref(
                AutoRef(value.kind, config.no, value.loops),
                name,
                conj(guard, negate(config.cond)),
                loops,
            )
            return
        if isinstance(config, Cfg):
            overlay = {k: v for k, v in config.overlay.items() if not k.startswith("_")}
            if overlay:
                self.interp.notes.append(f"ref {name} with assigned keys {sorted(overlay)}")
            path = E("c", *config.path) if config.path else E("root")
            self.refs.append(Ref(name, value.kind, path, config.cls.model_type, guard, loops))
        elif isinstance(config, E):
            self.refs.append(Ref(name, value.kind, config, None, guard, loops))
        elif config is not None:
            raise Unsupported(f"sub-model of {config!r}")

    def _module(self, obj: Obj, name: str, guard: Any, loops: Any, layer: Any) -> None:
        if id(obj) in self.stack:
            return
        self.stack.append(id(obj))
        self.keep.append(obj)
        if issubclass(obj.cls, PreTrainedModel):
            self._model(obj, name)
        for key, value in list(obj.attrs.items()):
            if key == "_items":
                self._items(
                    value.items if isinstance(value, SymList) else (),
                    name,
                    guard,
                    loops,
                    layer,
                    obj,
                    0,
                )
                continue
            text = key if isinstance(key, str) else template(key)
            self.visit(value, f"{name}.{text}" if name else text, guard, loops, layer, obj)
        self.stack.pop()

    def _items(
        self, segs: Any, name: str, guard: Any, loops: Any, layer: Any, owner: Any, at: int
    ) -> None:
        plain = True
        for seg in segs:
            if isinstance(seg, Elem):
                label = str(at) if plain else "{}"
                index = layer if layer is not None else (at if plain else None)
                self.visit(seg.value, f"{name}.{label}", guard, loops, index, owner)
                at += 1
            elif isinstance(seg, Guarded):
                self._guarded(seg, name, guard, loops, layer, owner, at)
                inner = all(isinstance(s, Elem) for s in seg.segs)
                at += len(seg.segs) if inner else 0
            else:
                index = layer if layer is not None else mk("+", E("v", seg.var), at)
                inner_loops = (*loops, (seg.var, seg.count))
                for sub in seg.segs:
                    self._looped(sub, f"{name}.{{}}", guard, inner_loops, index, owner)
                plain = False

    def _guarded(
        self, seg: Guarded, name: str, guard: Any, loops: Any, layer: Any, owner: Any, at: int
    ) -> None:
        self._items(seg.segs, name, conj(guard, seg.cond), loops, layer, owner, at)

    def _looped(self, seg: Any, name: str, guard: Any, loops: Any, index: Any, owner: Any) -> None:
        if isinstance(seg, Elem):
            self.visit(seg.value, name, guard, loops, index, owner)
        elif isinstance(seg, Guarded):
            for sub in seg.segs:
                self._looped(sub, name, conj(guard, seg.cond), loops, index, owner)
        else:
            for sub in seg.segs:
                self._looped(sub, name, guard, (*loops, (seg.var, seg.count)), index, owner)

    def _model(self, obj: Obj, name: str) -> None:
        for word in getattr(obj.cls, "_keep_in_fp32_modules_strict", None) or ():
            self.strict.add(word)
        keys = obj.attrs.get("_tied_weights_keys", getattr(obj.cls, "_tied_weights_keys", None))
        if not keys:
            return
        self._tie(obj, name, keys, True)

    def _tie(self, obj: Obj, name: str, keys: Any, under: Any) -> None:
        if isinstance(keys, Choice):
            self._tie(obj, name, keys.yes, conj(under, keys.cond))
            self._tie(obj, name, keys.no, conj(under, negate(keys.cond)))
            return
        config = obj.attrs.get("config")
        from .builtins_table import _getattr

        try:
            cond = self.interp.truth(_getattr(self.interp, config, "tie_word_embeddings", False))
        except Raised:
            cond = False
        if isinstance(keys, dict) and cond is not False:
            plain = {_pattern(target): _pattern(source) for target, source in keys.items()}
            self.ties.append((name, conj(under, cond), plain))

    def share(self, word: str, there: Any, cond: Any) -> None:
        """Modules that every layer repeats and that are one and the same when tied (zamba)."""
        for group in [g for g in self.groups if word in g.name]:
            self.groups.append(
                Group(group.name, group.shape, conj(cond, there), (), None, group.kind, group.fp32)
            )
            group.guard = conj(group.guard, negate(cond))

    def apply_ties(self) -> list[tuple[Any, str, str]]:
        """Drop tied targets under the model's condition; sub-models' own are left for run time."""
        late = []
        for prefix, cond, keys in self.ties:
            dot = f"{prefix}." if prefix else ""
            for target, source in keys.items():
                rule_t, rule_s = (re.compile("^" + k.removeprefix("^")) for k in (target, source))
                sources = [
                    g
                    for g in self.groups
                    if g.name.startswith(dot) and _match(rule_s, g.name[len(dot) :], "0")
                ]
                targets = [
                    g
                    for g in self.groups
                    if g.name.startswith(dot) and _match(rule_t, g.name[len(dot) :])
                ]
                targets = [
                    g
                    for g in targets
                    if not any(g is s for s in sources) or (len(sources) > 1 and False)
                ]
                for group in targets:
                    group.guard = conj(group.guard, negate(cond))
                for group in sources:
                    group.tied = cond if group.tied is False else mk("or", group.tied, cond)
                if not targets or not sources:
                    late.append((cond, prefix, target, source))
        return late


def _pattern(key: Any) -> str:
    if isinstance(key, E) and key.op == "fstr":
        return "".join(part if isinstance(part, str) else r"\d+" for part in key.args)
    return str(key)


def _match(rule: re.Pattern[str], name: str, digit: str = "7") -> bool:
    return any(rule.search(name.replace("{}", d)) is not None for d in ("7", digit))


def template(key: Any) -> str:
    """An attribute name with the counter left open."""
    if isinstance(key, E) and key.op == "fstr":
        return "".join(a if isinstance(a, str) else "{}" for a in key.args)
    return "{}"


def walk(interp: Any, root: Obj) -> Walk:
    """All groups of a model."""
    out = Walk(interp)
    out.visit(root, "", True, (), None, None)
    return out


__all__ = ["MISSING", "Group", "Loop", "Ref", "Walk", "walk"]
