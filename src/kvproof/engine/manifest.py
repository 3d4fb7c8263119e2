"""Kubernetes manifests and compose files: find the one container that serves a model.

Needs PyYAML (extra [manifests]); documents are loaded safely, bounded, and nothing is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.command import Command, read_command
from kvproof.errors import InputError, UsageError

_LONGEST = 2_000_000
_MOST_NODES = 100_000

# Images whose entry point is the server: only its arguments stand in the manifest.
_ENTRY_POINTS = (
    ("vllm-openai", "vllm serve"),
    ("vllm/vllm", "vllm serve"),
    ("llama.cpp:server", "llama-server"),
    ("llama.cpp:full", "llama-server"),
    ("ollama/ollama", "ollama serve"),
)
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash")


def read_manifest(text: str, gpu: str | None = None, **flags: Any) -> Command:
    """The deployment that the only serving container of `text` starts.

    Raises InputError when the text is no manifest, or holds no or several serving containers.
    """
    found: list[Command] = []
    reasons: list[str] = []
    for container in _containers(text):
        line = command_line(container)
        if line is None:
            continue
        try:
            found.append(_of_release(read_command(line, gpu, **flags), container))
        except UsageError as error:
            reasons.append(error.message)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(command.model) for command in found)
        raise InputError(f"the manifest serves several models: {names}", hint="give one of them")
    why = f" ({reasons[0]})" if reasons else ""
    raise InputError(
        f"no container of the manifest starts a known engine{why}",
        hint="paste its command after --",
    )


def _of_release(command: Command, container: Mapping[str, Any]) -> Command:
    """The command with the release that the image's tag names, when its engine names none."""
    tag = re.search(r":v?(\d+\.\d+(?:\.\d+)?)", str(container.get("image", "")))
    given = command.deployment
    if tag is None or given.engine.version is not None:
        return command
    released = Deployment(f"{given.engine.name}@{tag[1]}", given.gpu, **given.flags)
    return msgspec.structs.replace(command, deployment=released)


def _containers(text: str) -> Iterator[Mapping[str, Any]]:
    """Every mapping with an image or a command, wherever it stands."""
    if len(text) > _LONGEST:
        raise InputError(f"the manifest has {len(text):,} characters", hint="give the one part")
    try:
        import yaml
    except ImportError:
        raise UsageError(
            "reading manifests needs an extra", hint="pip install 'kvproof[manifests]'"
        ) from None
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        line = str(error).splitlines()[0]
        raise InputError(f"the manifest is no YAML: {line[:120]}", hint="check the file") from None
    stack, seen = list(reversed(documents)), 0
    visited: set[int] = set()
    while stack:
        node = stack.pop()
        seen += 1
        if seen > _MOST_NODES:
            raise InputError("the manifest has too many parts", hint="give the one part")
        if not isinstance(node, dict | list) or id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, list):
            stack.extend(reversed(node))
            continue
        if "image" in node or "command" in node:
            yield node
        stack.extend(reversed(list(node.values())))


def command_line(container: Mapping[str, Any]) -> str | None:
    """The command line of one container: command and args, or the image's entry point and args."""
    words = [
        *_words(container.get("entrypoint")),
        *_words(container.get("command")),
        *_words(container.get("args")),
    ]
    if words and words[0] in _SHELLS:
        script = [word for word in words[1:] if not word.startswith("-")]
        return _with_environment(container, " ".join(script)) if script else None
    image = container.get("image")
    starts_itself = words and not words[0].startswith("-")
    if not starts_itself and isinstance(image, str):
        entry = next((line for sign, line in _ENTRY_POINTS if sign in image), None)
        if entry is None:
            return None
        return _with_environment(container, f"{entry} {shlex.join(words)}")
    return _with_environment(container, shlex.join(words)) if words else None


def _words(value: Any) -> list[str]:
    """A command's words: a list as it is, a string (compose) split as a shell does."""
    if isinstance(value, list):
        return [str(word) for word in value]
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError:
            return []
    return []


def _with_environment(container: Mapping[str, Any], line: str) -> str:
    """The line with the container's plain environment variables in front, as a shell has them."""
    pairs: list[tuple[str, str]] = []
    given = container.get("env", container.get("environment"))
    if isinstance(given, Mapping):
        pairs = [(str(k), str(v)) for k, v in given.items()]
    elif isinstance(given, list):
        for item in given:
            if isinstance(item, Mapping) and "value" in item:
                pairs.append((str(item.get("name")), str(item["value"])))
            elif isinstance(item, str) and "=" in item:
                name, _, value = item.partition("=")
                pairs.append((name, value))
    for name, value in pairs:
        line = line.replace(f"$({name})", value)
    front = [f"{name}={shlex.quote(value)}" for name, value in pairs if name.isidentifier()]
    return " ".join([*front, line])
