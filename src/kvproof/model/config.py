"""Resolve a published config.json: class defaults, other names, nested configs, computed fields.

A published config leaves out what equals its class's defaults, may write fields under older
names and may leave lists to the class. `resolve` gives the complete config that the model is
built from, or one ModelError that names what is wrong or missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvproof.errors import ModelError, unknown_name
from kvproof.model.checks import (
    bad_value,
    check_count,
    check_plain,
    check_rotary,
    check_sizes,
    plain_copy,
)
from kvproof.model.classes import Row, SubRow, base, class_row, known_types
from kvproof.model.foreign import translate
from kvproof.model.rules import find_rule
from kvproof.model.rules.after import AFTER, EARLY
from kvproof.model.rules.before import BEFORE
from kvproof.model.rules.layer_types import LAYER_TYPES, LEGACY
from kvproof.model.rules.parts import PARTS
from kvproof.model.rules.wrappers import WRAPPERS

Config = dict[str, Any]
TEXT_KEYS = ("decoder", "decoder_config", "generator", "text_config", "thinker_config")
_RULE_FAULTS = (
    TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError, OverflowError,
)  # fmt: skip


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A complete config: `root` of the whole model, `text` of its decoder (often the same).

    `model_type` is the class that transformers builds; `published_type` what the config said.
    `text_model_type` is the decoder's. `notes` tell what was translated; `exact_weights` is False
    when only the cache of the translated config is that of the published model.
    """

    root: Config
    text: Config
    model_type: str
    text_model_type: str
    architecture: str
    published_type: str
    exact_weights: bool = True
    notes: tuple[str, ...] = ()


def resolve(config: Mapping[str, Any]) -> Resolved:
    """The complete config behind a parsed config.json; ModelError names what is wrong."""
    if not isinstance(config, Mapping):
        raise ModelError("the config is no object", hint="give a model's own config.json")
    check_plain(config)
    try:
        translated = translate(plain_copy(config))
    except _RULE_FAULTS as error:
        raise _fault("the config", config, error) from None
    given = translated.config
    kind = given.get("model_type")
    if kind is None:
        raise ModelError("the config lacks 'model_type'", hint="give the complete config.json")
    if not isinstance(kind, str) or class_row(kind) is None:
        raise _unknown(kind)
    architecture = _architecture(given, kind)
    root = _build(kind, given)
    text = _text_of(root)
    return Resolved(
        root=root,
        text=text,
        model_type=kind,
        text_model_type=text["model_type"],
        architecture=architecture,
        published_type=str(config.get("model_type", kind)),
        exact_weights=translated.exact,
        notes=translated.notes,
    )


def _unknown(kind: Any) -> ModelError:
    if not isinstance(kind, str):
        return bad_value("model_type", kind, "a name")
    offer = unknown_name("model_type", kind, known_types(), see="see kvproof models --coverage")
    return ModelError(f"unknown architecture: {offer.message}", hint=offer.hint)


def _architecture(given: Config, kind: str) -> str:
    names = given.get("architectures")
    if names is not None and not (
        isinstance(names, list) and all(isinstance(name, str) for name in names)
    ):
        raise bad_value("architectures", names, "a list of class names")
    if names:
        return str(names[0])
    for family in ("seq2seq", "speech", "image_text", "multimodal", "causal"):
        name = base().families[family].get(kind)
        if name is not None:
            return name
    return kind


def _build(name: str, given: Config, depth: int = 0) -> Config:
    """The complete config of class `name` from the fields `given`."""
    row = class_row(name)
    if row is None:
        raise _unknown(name)
    if depth > 6:
        raise ModelError("the config is nested too deeply", hint="give a model's own config.json")
    given = dict(given)
    _apply(BEFORE, name, given)
    out: Config = {**base().base, **plain_copy(row.defaults), **_spelled(row, given)}
    out["model_type"] = name
    for key in row.ints:
        check_count(key, out.get(key), name)
    check_rotary(out, name)
    for key, sub in row.subs.items():
        out[key] = _nested(key, sub, out.get(key), depth)
    for key, value in out.items():
        if key not in row.subs and isinstance(value, dict) and "config" in key:
            out[key] = _unlisted(value, depth)
    _compute(name, row, out)
    extra = given.keys() - base().base.keys() - row.defaults.keys() - row.alias.keys()
    for key in extra - _POPPED:  # what a class does not declare is set last, over what it computes
        out[key] = given[key]
    return out


# Undeclared fields that classes take away or that stand for something computed.
_POPPED = frozenset({
    "layer_types", "layers_block_type", "model_type", "per_layer_config", "dtype", "torch_dtype",
    "text_config", "vision_config",
})  # fmt: skip


def _spelled(row: Row, given: Config) -> Config:
    """The given fields under the class's own names; a standard name beats the class's own."""
    out = {key: value for key, value in given.items() if key not in row.alias}
    out |= {row.alias[key]: value for key, value in given.items() if key in row.alias}
    if out.get("dtype") is None and out.get("torch_dtype") is not None:
        out["dtype"] = out["torch_dtype"]
    return out


def _nested(key: str, sub: SubRow, value: Any, depth: int) -> Config | None:
    if value is None:
        if sub.optional:
            return None
        value = plain_copy(sub.init)
    if not isinstance(value, dict):
        raise bad_value(key, value, "an object")
    name = sub.class_
    if sub.auto:
        name = value.get("model_type") or sub.class_
    if not isinstance(name, str):
        raise ModelError(f"the config lacks 'model_type' in {key!r}", hint="add it")
    return _build(name, value, depth + 1)


def _unlisted(value: Config, depth: int) -> Config:
    """A nested config that the class does not list: resolved when its type is known."""
    kind = value.get("model_type")
    known = isinstance(kind, str) and class_row(kind) is not None
    return _build(str(kind), value, depth + 1) if known else value


def _apply(rules: Mapping[str, Any], name: str, config: Config) -> None:
    rule = find_rule(dict(rules), name)
    if rule is None:
        return
    try:
        rule(config)
    except _RULE_FAULTS as error:
        raise _fault(name, config, error) from None


def _fault(where: str, config: Mapping[str, Any], error: Exception) -> ModelError:
    """What a rule stumbled over: the field with no number where a size is due, if there is one."""
    check_sizes(config, where)
    what = f"lacks {error.args[0]!r}" if isinstance(error, KeyError) else f"is broken: {error}"
    return ModelError(f"{where}: the config {what[:160]}", hint="give the complete config.json")


def _compute(name: str, row: Row, config: Config) -> None:
    """Fill computed fields, then put every field under its standard name as well."""
    _add_aliases(row, config)
    _apply(EARLY, name, config)
    _set_layer_types(name, config)
    _fill_heads(config)
    before = {key: config.get(key) for key in row.alias}
    _apply(AFTER, name, config)
    _apply(PARTS, name, config)
    _apply(WRAPPERS, name, config)
    for key, old in before.items():
        if config.get(key) != old:
            config[row.alias[key]] = config[key]
    _add_aliases(row, config)
    _check_layers(name, config)


def _add_aliases(row: Row, config: Config) -> None:
    for key, own in row.alias.items():
        if own in config:
            config[key] = config[own]
        elif key in config:  # a class that declares the standard name and renames it all the same
            config[own] = config[key]


def _set_layer_types(name: str, config: Config) -> None:
    kinds = config.get("layer_types")
    if kinds is None and "layers_block_type" not in row_names(name):
        kinds = config.get("layers_block_type")
    if kinds is None and name in LAYER_TYPES:
        try:
            kinds = LAYER_TYPES[name](config)
        except _RULE_FAULTS as error:
            raise _fault(name, config, error) from None
    if kinds is None:
        return
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise bad_value("layer_types", kinds, "a list of layer kinds", name)
    config["layer_types"] = [LEGACY.get(kind, kind) for kind in kinds]


def row_names(name: str) -> set[str]:
    """The fields that class `name` declares."""
    row = class_row(name)
    return set(row.defaults) if row else set()


def _fill_heads(config: Config) -> None:
    """The two defaults that nearly every class computes: KV heads and head width."""
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if "num_key_value_heads" in config and config["num_key_value_heads"] is None:
        config["num_key_value_heads"] = heads
    if "head_dim" not in config or config["head_dim"] is not None:
        return
    if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        config["head_dim"] = hidden // heads


def _check_layers(name: str, config: Config) -> None:
    per_layer = config.get("per_layer_config")
    if per_layer is None:
        return
    if not isinstance(per_layer, dict):
        raise bad_value("per_layer_config", per_layer, "an object", name)
    try:
        rows = {int(key): value for key, value in per_layer.items()}
    except ValueError:
        raise bad_value("per_layer_config", per_layer, "layer numbers as keys", name) from None
    if not all(isinstance(value, dict) for value in rows.values()):
        raise bad_value("per_layer_config", per_layer, "an object per layer", name)
    config["per_layer_config"] = rows


def _text_of(root: Config) -> Config:
    """The config of the decoder inside a composite model's, as get_text_config finds it."""
    current = root
    for _ in range(4):
        found = next((current[k] for k in TEXT_KEYS if isinstance(current.get(k), dict)), None)
        if found is None or "model_type" not in found:
            return current
        current = found
    return current
