"""One container of a manifest: the command line it runs, its variables, its GPUs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kvproof.engine.command import entry_point, starts_engine
from kvproof.engine.shell import SHELL, Words, simple_commands
from kvproof.errors import UsageError

_CHART_ENTRY = ("vllm", "serve")
"""What KServe's runtime and charts without an image of their own run."""
_KUBERNETES = re.compile(r"\$\(([\w.-]{1,200})\)")
_COMPOSE = re.compile(r"\$\{(\w{1,100}):?[-=?]?([^{}]*)\}")
_GPU = re.compile(r"^(?:nvidia\.com/(?:gpu|mig-[\w.-]+)|amd\.com/gpu|gpu\.intel\.com/\w+|gpu)$")
_SLICE = re.compile(r"^nvidia\.com/mig-(\d{1,2}g\.\d{1,3}gb)(?:\.[\w.]{1,12})?$")


def image_of(container: Mapping[str, Any]) -> str:
    """The image with its tag, however it is written; empty without one."""
    image = container.get("image")
    if isinstance(image, Mapping):
        container, image = image, None
    if isinstance(image, str) and image:
        return _COMPOSE.sub(lambda match: match[2], image)
    name, tag = container.get("repository"), container.get("tag")
    return f"{name}:{tag}" if name and tag else str(name or "")


def is_container(node: Mapping[str, Any], model: str | None) -> bool:
    """Whether a part of a manifest runs something: an image, a command, or a model's runtime."""
    if image_of(node) or "command" in node or "modelFormat" in node or _url(node):
        return True
    return model is not None and "resources" in node and "name" in node


def runtime_of(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """A VLLMRuntime of the production stack's operator as one model of its chart's values."""
    model, setup = node.get("model"), node.get("deploymentConfig")
    if not isinstance(model, Mapping) or not _url(model):
        return None
    setup = setup if isinstance(setup, Mapping) else {}
    image = setup.get("image")
    return {
        **{key: model[key] for key in ("modelURL", "modelRevision") if key in model},
        "vllmConfig": {**model, **_mapping(node.get("vllmConfig"))},
        "image": str(_mapping(image).get("name", "")),
        "resources": {"limits": _mapping(setup.get("resources"))},
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _url(node: Mapping[str, Any]) -> str | None:
    value = node.get("modelURL")
    return value if isinstance(value, str) else None


def command_of(
    container: Mapping[str, Any],
    files: Mapping[str, str],
    model: str | None,
    further: Sequence[str] = (),
) -> Words | None:
    """The simple command that starts an engine; None when the container runs something else.

    `model` is what the parts above name; it counts where the command names none itself.
    `further` are options that they add.
    """
    variables = _variables(container)
    words = _all_words(container, variables)
    if words is None:
        return None
    if model is not None and not _names_model(words):
        words = [*words, f"--model={model}"]
    words = [*words, *further]
    script = _script_of(words)
    if script is None:
        return Words(tuple(words), variables, files)
    try:
        commands = simple_commands(script, variables)
    except UsageError:
        return None
    for command in commands:
        if starts_engine(command):
            return Words((image_of(container), *command.words), command.environment, files, 1)
    return None


def _all_words(container: Mapping[str, Any], variables: Mapping[str, str]) -> list[str] | None:
    """The image, then the whole command: the image's entry point where only arguments stand."""
    if _url(container) is not None:
        return _chart_words(container)
    image = container.get("image")
    inner = image if isinstance(image, Mapping) else {}
    entry = _words(container.get("entrypoint"))
    command = _words(container.get("command") or inner.get("command"))
    arguments = _words(container.get("args")) or _words(container.get("extraArgs"))
    words = [_filled(word, variables) for word in (*entry, *command, *arguments)]
    if words and not words[0].startswith("-") and not _is_compose_arguments(container, words):
        return [image_of(container), *words]
    name = image_of(container) or str(container.get("modelCommand") or "")
    if container.get("modelCommand") in ("vllmServe", "imageDefault"):
        return [name, "vllm", "serve", *words]
    found = entry_point(name)
    kserve = _kserve(container)
    bare = not name and not words and "resources" in container
    if found is None and not kserve and not bare:
        return None
    return [name, *(found or _CHART_ENTRY), *(kserve or words)]


def _is_compose_arguments(container: Mapping[str, Any], words: list[str]) -> bool:
    """Whether a compose command continues an image's entry point with a model's name."""
    known = entry_point(image_of(container)) is not None
    named = "/" in words[0] and not words[0].startswith(("/", "./"))
    return known and named and not SHELL.match(words[0])


def _kserve(container: Mapping[str, Any]) -> list[str]:
    """Arguments of KServe's own runtime for Hugging Face models, as vLLM's."""
    form = container.get("modelFormat")
    if not isinstance(form, Mapping) or form.get("name") not in ("huggingface", "vLLM", "vllm"):
        return []
    words = _words(container.get("args")) or ["--trust-remote-code"]
    named = [re.sub(r"^--model_?-?id\b", "--model", word) for word in words]
    dropped = ("--model_name", "--model-name", "--backend", "--dtype=auto")
    return [word for word in named if not word.startswith(dropped)]


def _chart_words(container: Mapping[str, Any]) -> list[str]:
    """One model of the vLLM production stack's values as the command its chart writes.

    Source: vllm-project/production-stack, helm/templates/deployment-vllm-multi.yaml.
    """
    words = [image_of(container), "vllm", "serve", str(container["modelURL"])]
    config = container.get("vllmConfig")
    given = _mapping(config)
    for key in ("maxModelLen", "dtype", "tensorParallelSize", "maxNumSeqs",
                "gpuMemoryUtilization", "maxLoras"):  # fmt: skip
        if key in given:
            option = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", key).lower()
            words.append(f"--{option}={given[key]}")
    caching = str(given.get("enablePrefixCaching", "")).lower() == "true"
    words.append("--enable-prefix-caching" if caching else "--no-enable-prefix-caching")
    if "enableChunkedPrefill" in given:
        chunked = str(given["enableChunkedPrefill"]).lower() == "true"
        words.append("--enable-chunked-prefill" if chunked else "--no-enable-chunked-prefill")
    if container.get("modelRevision"):
        words.append(f"--revision={container['modelRevision']}")
    return [*words, *_words(given.get("extraArgs"))]


def _script_of(words: list[str]) -> str | None:
    """The script of `sh -c SCRIPT ...`; None for a plain command."""
    at = 1 if words and not SHELL.match(words[0]) else 0
    if len(words) <= at or not SHELL.match(words[at]):
        return None
    rest = [word for word in words[at + 1 :] if not re.match(r"-\w+$", word)]
    return rest[0] if rest else None


def _names_model(words: list[str]) -> bool:
    """Whether a command says what it serves."""
    if any(re.match(r"--?(?:model|model[-_]path|hf-repo|hf|m)(?:=|$)", word) for word in words):
        return True
    if "serve" not in words:
        return False
    behind = words[words.index("serve") + 1 :]
    return bool(behind) and not behind[0].startswith("-")


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


def _variables(container: Mapping[str, Any]) -> dict[str, str]:
    """The container's plain environment variables."""
    given = container.get("env", container.get("environment"))
    if isinstance(given, Mapping):
        return {str(k): str(v) for k, v in given.items() if not isinstance(v, dict | list)}
    out: dict[str, str] = {}
    for item in given if isinstance(given, list) else []:
        if isinstance(item, Mapping) and "value" in item:
            out[str(item.get("name"))] = str(item["value"])
        elif isinstance(item, str) and "=" in item:
            name, _, value = item.partition("=")
            out[name] = value
    return out


def _filled(word: str, variables: Mapping[str, str]) -> str:
    """A word with Kubernetes' `$(NAME)` and compose's `${NAME:-default}` filled in."""
    out = _KUBERNETES.sub(lambda m: variables.get(m[1], m[0]), word)
    if "\n" in out or " " in out:
        return out  # a script: the shell fills in its own
    return _COMPOSE.sub(lambda m: variables.get(m[1]) or m[2] or m[0], out).replace("$$", "$")


def gpus_of(container: Mapping[str, Any]) -> tuple[int | None, int]:
    """(GPUs of one container, how many such containers compose starts)."""
    deploy = container.get("deploy")
    copies = 1
    resources = container.get("resources")
    if isinstance(deploy, Mapping):
        copies = max(1, whole(deploy.get("replicas")) or 1)
        resources = deploy.get("resources") or resources
    if "requestGPU" in container:
        return whole(container["requestGPU"]) or None, copies
    found = _limits(resources) if isinstance(resources, Mapping) else None
    return found, copies


def _limits(resources: Mapping[str, Any]) -> int | None:
    """The GPUs of a resources section, of Kubernetes or of compose."""
    for part in ("limits", "requests", "reservations"):
        section = resources.get(part)
        if not isinstance(section, Mapping):
            continue
        counts = [whole(value) for key, value in section.items() if _GPU.match(str(key))]
        devices = section.get("devices")
        for device in devices if isinstance(devices, list) else []:
            if isinstance(device, Mapping):
                ids = device.get("device_ids")
                counts.append(len(ids) if isinstance(ids, list) else whole(device.get("count")))
        known = [count for count in counts if count]
        if known:
            return sum(known)
    return None


def slice_of(container: Mapping[str, Any]) -> str | None:
    """The MIG profile that a container's resources ask for, as NVIDIA's device plugin names it."""
    resources = container.get("resources")
    for part in ("limits", "requests"):
        section = resources.get(part) if isinstance(resources, Mapping) else None
        for key in section if isinstance(section, Mapping) else ():
            if match := _SLICE.match(str(key)):
                return match[1]
    return None


def whole(value: Any) -> int | None:
    """A whole number of a manifest, however it is quoted; None for anything else."""
    text = str(value)
    return int(text) if text.isdigit() and len(text) < 6 else None
