"""Ollama's command lines: `ollama serve` and `ollama run` with the environment in front."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvproof.engine.arguments import Grammar, Option, number_or_text, one_value
from kvproof.engine.command import Reader, Served, first_start
from kvproof.engine.llamacpp.command import gguf_name
from kvproof.engine.ollama.flags import NAMES, TO_LLAMACPP
from kvproof.engine.shell import Words
from kvproof.errors import UsageError
from kvproof.model.ollama_store import manifest_path
from kvproof.model.types import Model

_PREFIX = "OLLAMA_"
_VERBS = ("run", "pull", "show", "launch", "serve", "start")
_IMAGE = re.compile(r"(?:^|/)ollama/ollama(?::v?(\d+\.\d+[\w.]*)(?:-[\w.]+)?|:[\w.-]+)?$")
_STORE = "models"
_PLACEHOLDER = Served("MODEL", "MODEL: its name in Ollama (ollama list), or hf.co/ORG/NAME-GGUF")
"""Stands for the model where only its config is known, which holds no GGUF weights."""


def _start(words: Words) -> int | None:
    return first_start(words, _begins, _IMAGE)


def _begins(words: Sequence[str], at: int) -> int | None:
    """Behind the program, before its verb."""
    verb = next(iter(words[at + 1 : at + 2]), None)
    return at + 1 if words[at].rsplit("/", 1)[-1] == "ollama" and verb in _VERBS else None


def _option(word: str) -> Option:
    """Options of the program; those that name a setting are read, the others change nothing."""
    written, equals, value = word.lstrip("-").partition("=")
    name = written.replace("-", "_").lower()
    return Option(name=name, word=word, value=value if equals else None)


def _takes(option: Option, rest: Sequence[str]) -> int:
    switches = ("verbose", "nowordwrap", "insecure", "hidethinking", "experimental", "help", "v")
    return 0 if option.name in switches else one_value(rest)


def _decides(name: str) -> bool:
    return name in NAMES or name in TO_LLAMACPP


def _read(option: Option, values: Sequence[str]) -> Any:
    return number_or_text(values)


def _model(named: Mapping[str, str], alone: Sequence[str]) -> str | None:
    """The model of `run`, in the local store (another one where OLLAMA_MODELS is set)."""
    if len(alone) < 2 or alone[0] not in _VERBS[:4]:
        return None
    store = Path(named.get(_STORE) or "/nowhere")
    return str(manifest_path(alone[1], store)) if store.is_dir() else f"ollama:{alone[1]}"


def _before(words: Words) -> list[str]:
    """OLLAMA_ variables as options."""
    return [
        f"--{name.removeprefix(_PREFIX).lower().replace('_', '-')}={value}"
        for name, value in words.environment.items()
        if name.startswith(_PREFIX)
    ]


# Options of a request alone, and settings that are kvproof's own.
_OF_REQUESTS = ("num_batch", "num_gpu", "main_gpu", "num_thread")
_OWN = ("used", "gpu_memory")


def _render(model: str, flags: Mapping[str, Any]) -> list[str]:
    """The server's environment and the model; options of a request belong into a Modelfile.

    num_ctx is said as the server's default, which a model without its own follows.
    """
    settings = []
    for name, value in flags.items():
        if value is None or name in _OWN:
            continue
        if name in _OF_REQUESTS:
            raise UsageError(
                f"{name} is an option of a request", hint=f"PARAMETER {name} {value} in a Modelfile"
            )
        key = "context_length" if name == "num_ctx" else name
        said = int(value) if isinstance(value, bool) else value
        settings.append(f"{_PREFIX}{key.upper()}={said}")
    return [*settings, "ollama", "run", model.removeprefix("ollama:")]


def _serves(model: Model, named: str | None) -> Served | None:
    """The model under its name in Ollama.

    None for one whose Modelfile has a context of its own: no command line overrides that.
    """
    if "num_ctx" in model.settings:
        return None
    local = model.source.origin == "gguf"
    if local and (model.settings or not model.name.endswith(".gguf")):
        return Served(model.name)
    name = gguf_name(model, named)
    return _PLACEHOLDER if name is None else Served(name)


READER = Reader(
    engine="ollama",
    start=_start,
    grammar=Grammar(
        option=_option,
        takes=_takes,
        decides=_decides,
        read=_read,
        model=_model,
        model_options=(_STORE,),
        before=_before,
        image=_IMAGE,
    ),
    render=_render,
    images=("ollama/ollama",),
    entry=("ollama", "serve"),
    serves=_serves,
)
