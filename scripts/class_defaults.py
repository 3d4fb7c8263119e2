"""Write the class defaults of every config class of the installed transformers.

Published config.json files leave out what equals a class's default, so the defaults are facts a
reader needs. This script asks the classes themselves (no hand-typed tables):

    python scripts/class_defaults.py        # with the extra [oracle] installed

One file per first letter lies in src/kvproof/model/data/architectures/classes/. A class is named
by its model_type, or by its class name where it has none of its own. Its row holds `defaults`
(those of PreTrainedConfig, the row "", left out), `alias` (attribute_map), `subs` (nested
configs: class, init values, whether chosen by model_type, whether optional), `ints` (fields
annotated as whole numbers) and `parent` (the config class it derives from, if not the base).
base.json holds the base row and the model types that generate text, per family, with the class
that does.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import pkgutil
import string
import types
import typing
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FAMILIES = {
    "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "image_text": auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "multimodal": auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    "seq2seq": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "speech": auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
}
OUT = Path(__file__).resolve().parent.parent / "src/kvproof/model/data/architectures/classes"
DROPPED = {"id2label", "label2id", "transformers_version", "problem_type", "return_dict"}


def plain(value: Any) -> Any:
    """`value` as JSON can hold it; None where it can't."""
    if isinstance(value, PreTrainedConfig):
        return plain({k: v for k, v in value.to_dict().items() if k not in DROPPED})
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else None


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return plain(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return plain(field.default_factory())
    return None


def whole(annotation: Any) -> bool:
    """Whether an annotation admits whole numbers (and None) only."""
    if isinstance(annotation, str):
        return set(annotation.replace(" ", "").split("|")) in ({"int"}, {"int", "None"})
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return set(typing.get_args(annotation)) <= {int, type(None)}
    return annotation is int


def row(cls: type[Any], base: dict[str, Any]) -> dict[str, Any]:
    fields = dataclasses.fields(cls)
    defaults = {f.name: default_of(f) for f in fields if f.name not in DROPPED}
    out: dict[str, Any] = {
        "defaults": {k: v for k, v in defaults.items() if k not in base or base[k] != v}
    }
    parent = next((c for c in cls.__mro__[1:] if c.__name__.endswith("Config")), PreTrainedConfig)
    if parent is not PreTrainedConfig and issubclass(parent, PreTrainedConfig):
        out["parent"] = name_of(parent)
    if cls.attribute_map:
        out["alias"] = dict(cls.attribute_map)
    subs = {key: sub_row(spec) for key, spec in cls.sub_configs_defaults.items()}
    if subs:
        out["subs"] = subs
    ints = [f.name for f in fields if whole(f.type) and not f.name.endswith(("_id", "_index"))]
    if ints:
        out["ints"] = sorted(ints)
    return out


def sub_row(spec: Any) -> dict[str, Any]:
    fixed = isinstance(spec.config_class, type) and issubclass(spec.config_class, PreTrainedConfig)
    out: dict[str, Any] = {"class": name_of(spec.config_class) if fixed else spec.model_type}
    if spec.init_kwargs:
        out["init"] = plain(spec.init_kwargs)
    if not fixed:
        out["auto"] = True
    if spec.optional:
        out["optional"] = True
    return out


def name_of(cls: type[Any]) -> str:
    kind = cls.model_type
    registered = kind and kind in CONFIG_MAPPING and CONFIG_MAPPING[kind] is cls
    return kind if registered else cls.__name__


def classes() -> dict[str, type[Any]]:
    """Every config class by name: the registered ones and all that their modules define."""
    found: dict[str, type[Any]] = {kind: CONFIG_MAPPING[kind] for kind in CONFIG_MAPPING}
    for package in pkgutil.iter_modules(transformers.models.__path__):
        name = f"transformers.models.{package.name}.configuration_{package.name}"
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        for value in vars(module).values():
            is_config = isinstance(value, type) and issubclass(value, PreTrainedConfig)
            if is_config and value.__module__ == name:
                found.setdefault(name_of(value), value)
    return found


def main() -> None:
    empty = {f.name: default_of(f) for f in dataclasses.fields(PreTrainedConfig)}
    base = {k: v for k, v in empty.items() if k not in DROPPED}
    rows = {name: row(cls, base) for name, cls in sorted(classes().items())}
    shards: dict[str, dict[str, Any]] = {letter: {} for letter in string.ascii_lowercase}
    for name, content in rows.items():
        shards[name[0].lower() if name[0].isalpha() else "x"][name] = content
    OUT.mkdir(parents=True, exist_ok=True)
    for letter, content in shards.items():
        lines = [
            f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in content.items()
        ]
        (OUT / f"{letter}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    families = {
        family: {
            kind: names if isinstance(names, str) else names[0] for kind, names in table.items()
        }
        for family, table in FAMILIES.items()
    }
    head = {"transformers": transformers.__version__, "base": base, "families": families}
    (OUT / "base.json").write_text(json.dumps(head, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
