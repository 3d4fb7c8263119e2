"""Parts of manifests that are no containers and start an engine all the same.

SkyPilot's tasks and services, models of Ray Serve, services of a Dynamo graph: each as the
container that it amounts to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from kvproof.engine.arguments import typed
from kvproof.engine.container import whole
from kvproof.engine.python_calls import as_options

_SKYPILOT_NAMES = {"A100": "A100-40GB"}
"""Accelerators that SkyPilot's catalogues call otherwise than the table (sky show-gpus)."""
_DYNAMO_POD = "extraPodSpec"


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """The container, and what stands beside it: `setup` is what installs the engine."""

    container: dict[str, Any]
    gpu: str | None = None
    said: str = ""
    """Where the GPU is named."""
    name: str = ""
    replicas: int | None = None
    nodes: int | None = None
    setup: str = ""


def form_of(node: Mapping[str, Any]) -> Form | None:
    """What a part of a manifest amounts to; None for one of no such form."""
    if isinstance(node.get("run"), str) and ("resources" in node or "setup" in node):
        return _skypilot(node)
    if isinstance(node.get("model_loading_config"), Mapping):
        return _ray(node)
    pod = node.get(_DYNAMO_POD)
    if isinstance(pod, Mapping) and isinstance(pod.get("mainContainer"), Mapping):
        return _dynamo(node, pod["mainContainer"])
    return None


def is_named_by_key(part: Any) -> bool:
    """Whether the key that a part stands under is its name: services of a Dynamo graph."""
    return isinstance(part, Mapping) and _DYNAMO_POD in part


def _skypilot(node: Mapping[str, Any]) -> Form:
    """A task, or a service of it. Source: SkyPilot, docs/source/reference/yaml-spec.rst."""
    found = dict(_accelerators(_mapping(node.get("resources"))))
    gpu = next(iter(found)) if len(found) == 1 else None
    count = next(iter(found.values())) if len(set(found.values())) == 1 else None
    nodes = whole(node.get("num_nodes")) or 1
    service = _mapping(node.get("service"))
    policy = _mapping(service.get("replica_policy"))
    setup = str(node.get("setup") or "")
    counts = {"SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NODE_RANK": 0}
    counts |= {"SKYPILOT_NUM_GPUS_PER_NODE": count} if count else {}
    return Form(
        container={
            "command": ["bash", "-c", node["run"]],
            "env": {**_mapping(node.get("envs")), **counts},
            "resources": {"limits": {"gpu": count or ""}},
        },
        gpu=_SKYPILOT_NAMES.get(gpu, gpu) if gpu else None,
        said="accelerators",
        name=str(node.get("name") or ""),
        replicas=whole(service.get("replicas")) or whole(policy.get("min_replicas")),
        nodes=nodes,
        setup=setup,
    )


def _accelerators(resources: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The accelerators that may be taken, each with its number on a node."""
    for key in ("any_of", "ordered"):
        rows = resources.get(key)
        for row in rows if isinstance(rows, list) else []:
            yield from _accelerators({"accelerators": _mapping(row).get("accelerators")})
    asked = resources.get("accelerators")
    for part in asked if isinstance(asked, list) else [asked]:
        if isinstance(part, Mapping):
            yield from ((str(name), whole(count) or 1) for name, count in part.items())
        elif isinstance(part, str) and part:
            name, _, count = part.partition(":")
            yield name, whole(count) or 1


def _ray(node: Mapping[str, Any]) -> Form:
    """A model of Ray Serve LLM, which starts vLLM with the keywords of its engine.

    Source: ray, python/ray/llm/_internal/serve/core/configs/llm_config.py (LLMConfig).
    """
    loading = _mapping(node["model_loading_config"])
    source = loading.get("model_source")
    name = str(loading.get("model_id") or "")
    setup = _mapping(node.get("deployment_config"))
    scaling = _mapping(setup.get("autoscaling_config"))
    options = as_options(_mapping(typed(node.get("engine_kwargs"))))
    command = ["vllm", "serve", source if isinstance(source, str) and source else name]
    gpu = str(node.get("accelerator_type") or "") or None
    return Form(
        container={"command": [*command, *(word for words in options for word in words)]},
        gpu=f"{gpu}B" if gpu is not None and gpu.endswith(("-40G", "-80G")) else gpu,
        said="accelerator_type",
        name=name,
        replicas=whole(setup.get("num_replicas")) or whole(scaling.get("min_replicas")),
    )


def _dynamo(node: Mapping[str, Any], main: Mapping[str, Any]) -> Form:
    """A service of a DynamoGraphDeployment, whose GPUs stand beside its pod."""
    nodes = whole(_mapping(node.get("multinode")).get("nodeCount"))
    own = {"resources": node["resources"]} if "resources" in node else {}
    return Form(container={**main, **own}, nodes=nodes)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
