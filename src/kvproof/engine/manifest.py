"""Kubernetes manifests, chart values and compose files: the servers that they start.

Workloads of any kind (Deployment, StatefulSet, LeaderWorkerSet, Pod, List, InferenceService,
LLMInferenceService, ...), docker compose, the values of charts that list models, SkyPilot's tasks,
Ray Serve's models, Dynamo's graphs. Needs PyYAML (extra [manifests]); documents are bounded, and
nothing is run. A file that is none of these is read as a script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from kvproof.engine.base import Deployment, ranks_of
from kvproof.engine.bounded_yaml import load_yaml
from kvproof.engine.command import Command, in_release, installed, read_command, read_words
from kvproof.engine.container import (
    command_of,
    gpus_of,
    is_container,
    runtime_of,
    slice_of,
    whole,
)
from kvproof.engine.mixed import by_device
from kvproof.engine.node_labels import LABEL, gpu_of, products_of
from kvproof.engine.shell import Words
from kvproof.engine.task_forms import Form, form_of, is_named_by_key
from kvproof.errors import InputError, UsageError

_MOST_NODES = 100_000
_COPIES = ("replicas", "replicaCount", "minReplicas")
# Parts that repeat another one of the same group on its other nodes.
_WORKERS = {"workerTemplate": "leaderTemplate", "worker": "template"}
_PARALLEL = {
    "tensor": "tensor-parallel-size", "pipeline": "pipeline-parallel-size",
    "data": "data-parallel-size",
}  # fmt: skip
_MANIFEST = re.compile(r"^[ \t-]{0,80}(?:kind|image|services|containers|resources|args):", re.M)
"""Keys that no script has at the beginning of a line."""
_RAY_SERVICE = "serveConfigV2"
"""The text of Ray Serve's own file in a RayService."""
# Where containers that serve nothing stand.
_HELPERS = ("initContainers", "initContainer", "ephemeralContainers")


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One container that starts an engine: where it stands, and how often it runs.

    `gpus` of one container (None: the manifest does not say), `nodes` containers of one group
    that serve together, `replicas` groups.
    """

    name: str
    command: Command
    gpus: int | None = None
    nodes: int = 1
    replicas: int = 1


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts above a container say of it."""

    name: str = ""
    replicas: int = 1
    nodes: int = 1
    model: str | None = None
    words: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    label: str = LABEL
    setup: str = ""


def read_manifest(
    text: str,
    gpu: str | None = None,
    *,
    server: str | None = None,
    engine: str | None = None,
    **flags: Any,
) -> Command:
    """The deployment that a server of `text` starts: the only one, or the one called `server`.

    `engine` (`vllm@0.8.5`) says which release runs it, whatever the image. Replicas multiply a GPU
    that is given without a number. Raises InputError when the text is no manifest, holds no
    server, or several and none is chosen.
    """
    try:
        found = servers(text, gpu, **flags)
    except InputError as error:
        return _as_script(text, gpu, engine, flags, error)
    chosen = [row for row in found if row.name == server]
    chosen = chosen or [row for row in found if server and server == row.command.model]
    if server is None:
        chosen = [row for row in found if row.command.model is not None] or list(found)
    names = ", ".join(row.name for row in found)
    if not chosen:
        raise InputError(f"the manifest has no server {str(server)[:60]!r}", hint=f"it has {names}")
    if len(chosen) > 1:
        raise InputError(
            f"the manifest starts {len(chosen)} servers: {names}", hint="choose one by --server"
        )
    passed = [row.name for row in found if row not in chosen] if server is None else []
    return in_release(_with_copies(chosen[0], passed), engine)


def _as_script(
    text: str, gpu: str | None, engine: str | None, flags: dict[str, Any], reason: InputError
) -> Command:
    """What a script, a unit or a Modelfile starts. Raises `reason` for text that starts nothing,
    and for a manifest.
    """
    if _MANIFEST.search(text):
        raise reason
    try:
        return read_command(text, gpu, engine=engine, **flags)
    except UsageError:
        raise reason from None


def servers(text: str, gpu: str | None = None, **flags: Any) -> tuple[Server, ...]:
    """Every server of a manifest, names made unique; some (Ollama's) name no model.

    Raises InputError when there is none.
    """
    try:
        documents = load_yaml(text)
    except RecursionError:
        raise InputError("the manifest is nested too deeply", hint="give the one part") from None
    files = _files(documents)
    found: list[Server] = []
    reasons: list[str] = []
    for container, place in _containers(documents):
        words = command_of(container, files, place.model, place.words)
        if words is None:
            continue
        try:
            command = _read(words, gpu, place, slice_of(container), flags)
        except UsageError as error:
            reasons.append(str(error))
            continue
        if command is not None:
            found.append(_server(command, container, place, [row.name for row in found]))
    if not found:
        if reasons:
            raise InputError(f"a server of the manifest can't be read: {reasons[0]}")
        raise InputError(
            "no container of the manifest starts a known engine", hint="paste its command after --"
        )
    return tuple(found)


def _read(
    words: Words, gpu: str | None, place: _Place, profile: str | None, flags: dict[str, Any]
) -> Command | None:
    """The command on the GPU that is given, else on the one that its nodes must have, or on the MIG
    slice of it that the container asks for.
    """
    notes: list[str] = []
    if gpu is None and place.products:
        gpu, note = gpu_of(place.products, place.label)
        notes += [note] if note else []
    if gpu is not None and profile is not None and ":" not in gpu and " MIG " not in gpu:
        gpu = f"{gpu}:{profile}"
        notes.append(f"the container asks for MIG slices {profile}: {gpu} is planned")
    command = read_words(words, gpu, **flags)
    if command is None:
        return None
    if place.setup and command.deployment.engine.version is None:
        command = in_release(command, installed(place.setup, command.deployment.engine.name))
    return msgspec.structs.replace(command, notes=(*command.notes, *notes))


def _server(
    command: Command, container: Mapping[str, Any], place: _Place, taken: list[str]
) -> Server:
    own = str(container.get("name") or container.get("container_name") or "")
    name = place.name or own or str(command.model)
    if name in taken and own:
        name = f"{name}/{own}"
    if name in taken:
        name = f"{name}-{sum(other.startswith(name) for other in taken) + 1}"
    gpus, copies = gpus_of(container)
    return Server(
        name=name,
        command=command,
        gpus=gpus,
        nodes=place.nodes,
        replicas=max(1, place.replicas) * copies,
    )


def _with_copies(server: Server, passed: list[str]) -> Command:
    """The command with the GPUs of all replicas, and a word where the limits do not suit.

    `passed` are the servers that were not chosen though nobody chose among them.
    """
    deployment = server.command.deployment
    notes = list(server.command.notes)
    if passed:
        notes.append(f"{server.name} is read; servers without a model too: {', '.join(passed)}")
    limit = None if server.gpus is None else server.gpus * server.nodes
    if by_device(deployment):
        return _counted(server.command, limit or 1, notes)
    ranks = ranks_of(deployment)
    if limit is not None and limit < ranks:
        notes.append(f"{server.name} gets {limit} GPUs, its engine wants {ranks}: it won't start")
    elif limit is not None and limit > ranks:
        notes.append(f"{server.name} gets {limit} GPUs, its engine uses {ranks} of them")
    if server.replicas > 1:
        notes.append(f"{server.name} runs {server.replicas} replicas, each on GPUs: {ranks}")
    return _counted(server.command, server.replicas * ranks, notes)


def _counted(command: Command, count: int, notes: list[str]) -> Command:
    """The command on `count` GPUs, unless their number was given with their name."""
    given = command.deployment
    if count > 1 and given.gpu is not None and given.gpu_count is None:
        given = Deployment(str(given.engine), f"{count}x{given.gpu}", **given.flags)
    elif given.gpu_count is not None and given.gpu_count != count:
        notes.append(f"{given.gpu_count} GPUs are given, the manifest starts {count}")
    return msgspec.structs.replace(command, deployment=given, notes=tuple(notes))


def _containers(documents: list[Any]) -> Iterator[tuple[Mapping[str, Any], _Place]]:
    """Every mapping with an image or a command, with what stands above it."""
    stack: list[tuple[Any, _Place]] = [(part, _Place()) for part in reversed(documents)]
    seen: set[int] = set()
    while stack:
        node, place = stack.pop()
        if not isinstance(node, dict | list) or id(node) in seen:
            continue
        seen.add(id(node))
        if len(seen) > _MOST_NODES:
            raise InputError("the manifest has too many parts", hint="give the one part")
        if isinstance(node, list):
            stack.extend((part, place) for part in reversed(node))
            continue
        off = str(node.get("create", node.get("enabled", ""))).lower() == "false"
        if off or node.get("kind") == "CustomResourceDefinition":
            continue
        place = _below(node, place)
        if isinstance(node.get(_RAY_SERVICE), str):
            stack.extend((part, place) for part in reversed(load_yaml(node[_RAY_SERVICE])))
        form = form_of(node)
        if form is not None:
            yield form.container, _as_formed(form, place)
            continue
        runtime = runtime_of(node)
        if runtime is not None or is_container(node, place.model):
            yield runtime or node, place
        stack.extend(
            (part, _named(place, key, part))
            for key, part in reversed(node.items())
            if key not in _HELPERS
            and _WORKERS.get(key) not in node
            and not (runtime is not None and key == "model")
        )


def _as_formed(form: Form, place: _Place) -> _Place:
    """`place` with what a form says beside its container."""
    said: dict[str, Any] = {
        "name": form.name, "replicas": form.replicas, "nodes": form.nodes, "setup": form.setup,
        "products": (form.gpu,) if form.gpu else (), "label": form.said,
    }  # fmt: skip
    return msgspec.structs.replace(place, **{key: value for key, value in said.items() if value})


def _named(place: _Place, key: str, part: Any) -> _Place:
    """Compose names its services, and llm-d its roles, by their keys."""
    if is_named_by_key(part):
        return msgspec.structs.replace(place, name=key)
    service = isinstance(part, Mapping) and ("image" in part or "command" in part)
    service = service or key in ("decode", "prefill")
    return msgspec.structs.replace(place, name=key) if service and not place.name else place


def _below(node: Mapping[str, Any], place: _Place) -> _Place:
    """`place` with what `node` says for everything below it."""
    changes: dict[str, Any] = {}
    about = node.get("metadata")
    if "kind" in node and isinstance(about, Mapping) and about.get("name"):
        changes["name"] = str(about["name"])
    elif "modelURL" in node and node.get("name"):
        changes["name"] = str(node["name"])
    setup = node.get("deploymentConfig")
    copying = {**(setup if isinstance(setup, Mapping) else {}), **node}
    copies = next((whole(copying[key]) for key in _COPIES if key in copying), None)
    if copies is not None:
        changes["replicas"] = copies
    if "leaderWorkerTemplate" in node:
        template = node["leaderWorkerTemplate"]
        changes["nodes"] = whole(template.get("size")) or 1 if isinstance(template, Mapping) else 1
    products = products_of(node)
    if products:
        changes["products"] = products
    model = _model_of(node)
    if model is not None:
        changes["model"] = model
    sizes = node.get("parallelism")
    if isinstance(sizes, Mapping):
        changes["words"] = tuple(
            f"--{option}={sizes[key]}" for key, option in _PARALLEL.items() if whole(sizes.get(key))
        )
    return msgspec.structs.replace(place, **changes) if changes else place


def _model_of(node: Mapping[str, Any]) -> str | None:
    """The model that KServe's and llm-d's own fields name: by address, else by its name."""
    for part in (node, node.get("modelArtifacts"), node.get("model")):
        if not isinstance(part, Mapping):
            continue
        address = str(part.get("storageUri") or part.get("uri") or "")
        if address.startswith("hf://"):
            return address.removeprefix("hf://")
        name = str(part.get("name", ""))
        if "uri" in part and "/" in name and not name.startswith("/"):
            return name
    return None


def _files(documents: list[Any]) -> dict[str, str]:
    """The files that ConfigMaps of the manifest hold, by name."""
    out: dict[str, str] = {}
    for part in documents:
        items = part.get("items", [part]) if isinstance(part, Mapping) else []
        for row in items if isinstance(items, list) else []:
            data = row.get("data") if isinstance(row, Mapping) else None
            if isinstance(data, Mapping) and row.get("kind") == "ConfigMap":
                out |= {str(name): value for name, value in data.items() if isinstance(value, str)}
    return out
