"""llama.cpp's command lines: `llama-server` and its kin, and the official images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvproof.engine.arguments import Grammar, Option, is_option
from kvproof.engine.command import Reader, Served, first_start
from kvproof.engine.llamacpp.bench import bench_words
from kvproof.engine.llamacpp.flags import canonical_flag, is_read
from kvproof.engine.shell import Words
from kvproof.errors import UsageError
from kvproof.model.types import Model

_PROGRAMS = ("llama-server", "llama-cli", "llama-completion", "server", "main")
# These run one sequence where the server runs four.
_ALONE = ("llama-cli", "llama-completion", "main")
_IMAGE = re.compile(r"(?:^|/)llama\.cpp:(?:server|full|light)(?:-[a-z0-9.]+)*?(?:-(b\d+))?$")
_MODEL_OPTIONS = ("model", "hf_repo", "hf_file", "model_url", "docker_repo")
_DEVICE = "device"
_ADDED = "adds vectors beside the weights"
_SEVERAL = "serves several models, each in a process of its own"
_UNCOMPUTED = {
    "override_kv": "changes what the file says of the model",
    "control_vector": _ADDED, "control_vector_scaled": _ADDED,
    "models_dir": _SEVERAL, "models_preset": _SEVERAL,
}  # fmt: skip
# Variables whose name is not LLAMA_ARG_ and the option (common/arg.cpp, set_env).
_PREFIX = "LLAMA_ARG_"
_VARIABLES = {"N_PARALLEL": "parallel", "BATCH": "batch_size", "UBATCH": "ubatch_size"}
# What `-hf org/name` stands for: the first of Q4_K_M, Q8_0, any (common/download.cpp).
_DEFAULT_TAG = ":latest"
_PLACEHOLDER = Served(
    "./MODEL.gguf", "./MODEL.gguf: the path of its GGUF file, or -hf ORG/NAME-GGUF in place of -m"
)
"""Stands for the model where only its config is known, which holds no GGUF weights."""


def _start(words: Words) -> int | None:
    return first_start(words, lambda found, at: at + 1 if _program(found[at]) else None, _IMAGE)


def _program(word: str) -> str | None:
    """The program that a word names: `server` and `main` only as `./server`."""
    name = re.split(r"[/\\]", word)[-1].removesuffix(".exe")
    if name not in _PROGRAMS or not (name.startswith("llama-") or word.startswith("./")):
        return None
    return name


def _option(word: str) -> Option:
    written, equals, given = word.partition("=")
    name, negated = canonical_flag(written)
    return Option(name=name, word=word, value=given if equals else None, negated=negated)


def _takes(option: Option, rest: Sequence[str]) -> int:
    return int(bool(rest) and not option.negated and not is_option(rest[0]))


def _read(option: Option, values: Sequence[str]) -> Any:
    if option.negated:
        return False
    if not values:
        return True
    return int(values[0]) if re.fullmatch(r"-?\d{1,9}", values[0]) else values[0]


def _model(named: Mapping[str, str], alone: Sequence[str]) -> str | None:
    """A file, a URL, or a hub repository with its file or tag."""
    repo, file = named.get("hf_repo"), named.get("hf_file")
    if named.get("docker_repo"):
        raise UsageError(
            f"{named['docker_repo'][:80]} lies in a container registry",
            hint="name its GGUF file or hub repository",
        )
    if repo and file:
        return f"{repo.partition(':')[0]}/{file}"
    if repo:
        return repo if ":" in repo else repo + _DEFAULT_TAG
    return named.get("model_url") or named.get("model") or (alone[0] if alone else None)


def _before(words: Words) -> list[str]:
    """LLAMA_ARG_ variables as options, and what the programs other than the server start with."""
    out = ["--parallel=1"] if any(_program(word) in _ALONE for word in words.words) else []
    for name, value in words.environment.items():
        key = name.removeprefix(_PREFIX)
        if key == name:
            continue
        written = _VARIABLES.get(key, key.lower())
        try:
            flag, _ = canonical_flag(written)
        except UsageError:
            continue
        if is_read(flag) or flag in _MODEL_OPTIONS:
            out.append(f"--{written.replace('_', '-')}={value}")
    return out


def _render(model: str, flags: Mapping[str, Any]) -> list[str]:
    """`llama-server` with the flags; settings of the C API alone have no spelling there."""
    words = ["llama-server", *_model_words(model)]
    for name, value in flags.items():
        key, negated = canonical_flag(name)
        if key in ("used", "host_bandwidth") or value is None:
            continue
        if key in ("n_outputs_max", "n_rs_seq", "gpu_memory", "host_memory"):
            raise UsageError(f"{key} is no flag of llama-server", hint="leave it out")
        option = f"--{key.replace('_', '-')}"
        if isinstance(value, bool) and key not in ("flash_attn", "fit"):
            words.append(option if value is not negated else f"--no-{key.replace('_', '-')}")
        else:
            words += [option, _spelled(value)]
    return words


def _model_words(model: str) -> list[str]:
    """The options that name the model: a file of a repository, a repository, or a path."""
    parts = model.split("/")
    hub = len(parts) >= 2 and all(parts) and parts[0] not in (".", "..", "~")
    if hub and model.endswith(".gguf") and len(parts) > 2:
        return ["-hf", "/".join(parts[:2]), "-hff", "/".join(parts[2:])]
    if model.endswith(".gguf") or model.startswith(("/", "./", "../", "~")):
        return ["-m", model]
    return ["-hf", model.removesuffix(_DEFAULT_TAG)]


def gguf_name(model: Model, named: str | None) -> str | None:
    """The name of GGUF weights: the model's own or a pasted command's; None where neither has one.

    `named` has one as a file, as a tag, or under a name that says so.
    """
    local = model.source.origin == "gguf"
    if not local and "general.architecture" in model.config:
        return model.name
    tagged = named is not None and "://" not in named and (":" in named or "gguf" in named.lower())
    if tagged:
        return named
    return model.name if not local and "gguf" in model.name.lower() else None


def _serves(model: Model, named: str | None) -> Served:
    if model.source.origin == "gguf":
        return Served(str(model.source.location))
    name = gguf_name(model, named)
    return _PLACEHOLDER if name is None else Served(name)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


READER = Reader(
    engine="llamacpp",
    start=_start,
    grammar=Grammar(
        option=_option,
        takes=_takes,
        decides=lambda name: is_read(name) or name == _DEVICE,
        read=_read,
        model=_model,
        model_options=_MODEL_OPTIONS,
        before=_before,
        image=_IMAGE,
        repeated=("override_tensor",),
        uncomputed=_UNCOMPUTED,
    ),
    render=_render,
    images=("llama.cpp:server", "llama.cpp:full"),
    entry=("llama-server",),
    device_option=_DEVICE,
    other_forms=bench_words,
    serves=_serves,
)
