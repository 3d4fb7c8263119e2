"""The JSON document that every command prints with --json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import msgspec

SCHEMA_VERSION = 1
# Where a command's context keeps the warnings that the library gave while it ran.
HEARD = "kvproof.heard"

# Derived values that belong in the document beside the stored fields.
_PROPERTIES = {
    "StepTime": ("bytes", "kv_share", "tokens_per_second_per_user", "tokens_per_second"),
    "Term": ("exact",),
}
_HIDDEN = {"blocks_held"}


def plain(value: Any) -> Any:
    """`value` as JSON's own types: structs by their fields, derived values included."""
    if isinstance(value, msgspec.Struct):
        name = type(value).__name__
        fields = [f for f in value.__struct_fields__ if f not in _HIDDEN]
        out = {f: plain(getattr(value, f)) for f in fields}
        kind = getattr(type(value), "kind", None)
        if isinstance(kind, str):
            out = {"kind": kind, **out}
        return {**out, **{p: plain(getattr(value, p)) for p in _PROPERTIES.get(name, ())}}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def document(
    command: str,
    *,
    inputs: Mapping[str, tuple[Any, str]],
    result: Any,
    assumptions: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
) -> str:
    """One JSON document; `inputs` are (value, origin) pairs.

    Origins: flag, config, default, hub, catalog.
    """
    from kvproof import __version__

    whole = {
        "schema_version": SCHEMA_VERSION,
        "kvproof": __version__,
        "command": command,
        "inputs": {k: {"value": plain(v), "origin": o} for k, (v, o) in inputs.items()},
        "assumptions": list(assumptions),
        "result": plain(result),
        "warnings": list(dict.fromkeys([*_heard(), *warnings])),
    }
    return _written(whole)


def _heard() -> list[str]:
    context = click.get_current_context(silent=True)
    return [] if context is None else list(context.meta.get(HEARD, ()))


def error_document(message: str, hint: str | None, code: int, command: str = "") -> str:
    """The JSON form of an error, for standard error: `code` is the exit status."""
    from kvproof import __version__

    error = {"code": code, "message": message, "hint": hint}
    head = {"schema_version": SCHEMA_VERSION, "kvproof": __version__, "command": command}
    return _written({**head, "error": error})


def _written(whole: Mapping[str, Any]) -> str:
    from kvproof.surfaces.terminal import json_for_stream

    return json_for_stream(msgspec.json.format(msgspec.json.encode(whole), indent=2).decode())
