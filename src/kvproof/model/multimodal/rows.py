"""The table of media rules: which rule a model type has and where its numbers come from.

data/multimodal.json has one row a model type with `image`, `audio` and `video`. A row names its
rule, `settings` (what the model's published preprocessor has), `keys` (where the model's config
says otherwise; the first path that is there wins) and the `source` of the settings. `like` takes
another row; `when` chooses among rows by a value of the config.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from kvproof.errors import ModelError
from kvproof.model.multimodal.preprocessor import PREPROCESSOR_KEYS

Medium = Literal["image", "audio", "video"]


@cache
def table() -> Mapping[str, Any]:
    """All rows of data/multimodal.json by model type."""
    text = files("kvproof.model").joinpath("data/multimodal.json").read_text("utf-8")
    rows: Mapping[str, Any] = json.loads(text)["rows"]
    return rows


def row(config: Mapping[str, Any], model_type: str, name: str, medium: Medium) -> dict[str, Any]:
    """The rule of `medium` for a model type; raises ModelError where none is known."""
    rows = table()
    if model_type not in rows:
        raise ModelError(
            f"{name}: no rule is known for the tokens of media in {model_type!r}",
            hint="docs/multimodal.md lists the families; give the tokens in the context instead",
        )
    found = _followed(rows, model_type, config).get(medium)
    if found is None:
        kinds = ", ".join(known(model_type, config)) or "nothing"
        raise ModelError(f"{name}: no rule is known for {medium} in {model_type!r} (only {kinds})")
    return dict(found)


def known(model_type: str, config: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The media that a model type has rules for."""
    if model_type not in table():
        return ()
    found = _followed(table(), model_type, config or {})
    return tuple(medium for medium in ("image", "audio", "video") if medium in found)


def _followed(
    rows: Mapping[str, Any], model_type: str, config: Mapping[str, Any]
) -> dict[str, Any]:
    entry = dict(rows[model_type])
    if "like" in entry:
        entry = {**_followed(rows, entry.pop("like"), config), **entry}
    for case in entry.pop("when", ()):
        if any(value_at(config, case["key"]) == wanted for wanted in case["is"]):
            return {**entry, **case}
    return entry


def settings(
    found: Mapping[str, Any], config: Mapping[str, Any], preprocessor: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """The numbers of a row: its own, over them the config's, over them the preprocessor's.

    The second value says whether the preprocessor was asked for any.
    """
    values = dict(found.get("settings", {}))
    for name, paths in found.get("keys", {}).items():
        _take(values, name, config, paths)
    asked = [
        _take(values, name, preprocessor, paths)
        for name, paths in PREPROCESSOR_KEYS.get(found["rule"], {}).items()
    ]
    return values, any(asked)


def _take(
    values: dict[str, Any], name: str, config: Mapping[str, Any], paths: str | Sequence[str]
) -> bool:
    """Put the first value that is there at one of the dotted paths."""
    for path in (paths,) if isinstance(paths, str) else paths:
        value = value_at(config, path)
        if value is not None:
            values[name] = value
            return True
    return False


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, of the thinker where the config has one; None if absent."""
    for root in (config, config.get("thinker_config")):
        value: Any = root
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None
