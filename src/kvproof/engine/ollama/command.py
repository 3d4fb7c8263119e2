"""Ollama's command lines: `ollama serve` with its environment, `ollama create`, `ollama run`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvproof.engine.arguments import Grammar, Option, number_or_text, one_value
from kvproof.engine.command import Reader, Served, first_start
from kvproof.engine.llamacpp.command import gguf_name
from kvproof.engine.ollama.flags import NAMES, TO_LLAMACPP
from kvproof.engine.ollama.settings import other_forms, together
from kvproof.engine.shell import Words
from kvproof.errors import unknown_name
from kvproof.model.ollama_store import manifest_path
from kvproof.model.types import Model

_PREFIX = "OLLAMA_"
_VERBS = ("run", "pull", "show", "launch", "serve", "start", "create")
_SWITCHES = (
    "verbose", "nowordwrap", "insecure", "hidethinking", "experimental", "help", "v", "h", "yes",
    "version", "truncate",
)  # fmt: skip
# The server's settings that bear on memory or where it lies, and options of a request that do.
_SERVERS = (
    "num_ctx", "context_length", "num_parallel", "kv_cache_type", "flash_attention", "new_engine",
    "gpu_overhead", "sched_spread", "max_loaded_models",
)  # fmt: skip
_TYPED = ("num_ctx",)
"""Settings that no variable gives."""
_OF_REQUESTS = ("num_batch", "num_gpu", "main_gpu", "draft_num_predict")
_OWN = ("used", "gpu_memory")
# Options of the program's verbs that change nothing that is computed here (cmd/cmd.go).
_IGNORED = (
    *_SWITCHES, "format", "keepalive", "think", "dimensions", "experimental_yolo", "width",
    "height", "steps", "negative", "file", "f", "quantize", "q", "config", "model",
)  # fmt: skip
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
    """Options of the program, and settings as such; unknown ones raise UsageError."""
    written, equals, value = word.lstrip("-").partition("=")
    name = written.replace("-", "_").lower()
    if name not in (*_IGNORED, *NAMES) and not _decides(name):
        known = [f"--{other.replace('_', '-')}" for other in (*NAMES, *TO_LLAMACPP, *_IGNORED)]
        raise unknown_name(
            "Ollama option", word.partition("=")[0], known, see="see docs/engines/ollama.md"
        )
    return Option(name=name, word=word, value=value if equals else None)


def _takes(option: Option, rest: Sequence[str]) -> int:
    return 0 if option.name in _SWITCHES else one_value(rest)


def _decides(name: str) -> bool:
    return name in TO_LLAMACPP or name in (*_SERVERS, *_OF_REQUESTS)


def _read(option: Option, values: Sequence[str]) -> Any:
    return number_or_text(values)


def _model(named: Mapping[str, str], alone: Sequence[str]) -> str | None:
    """The model of `run`, in the local store (another one where OLLAMA_MODELS is set)."""
    if len(alone) < 2 or alone[0] not in _VERBS[:4]:
        return None
    name, store = alone[1], Path(named.get(_STORE) or "/nowhere")
    if name.endswith(".gguf") or name.startswith(("/", "./", "../", "~")):
        return name  # what a Modelfile is made from
    return str(manifest_path(name, store)) if store.is_dir() else f"ollama:{name}"


def _before(words: Words) -> list[str]:
    """OLLAMA_ variables as options; those that name no setting change nothing here."""
    found = {
        name.removeprefix(_PREFIX).lower(): value
        for name, value in words.environment.items()
        if name.startswith(_PREFIX)
    }
    return [
        f"--{name.replace('_', '-')}={value}"
        for name, value in found.items()
        if (name in _SERVERS and name not in _TYPED) or name == _STORE
    ]


_MADE = "planned"
"""The name of the model that a printed Modelfile makes."""


def _render(model: str, flags: Mapping[str, Any]) -> list[str] | str:
    """The server with its environment, and the model, with a Modelfile for options of a request.

    num_ctx is said as the server's default, which a model without its own follows.
    """
    name = model.removeprefix("ollama:")
    told = {
        key: value
        for key, value in flags.items()
        if value is not None and _decides(key) and key not in _OWN
    }
    chosen = {key: value for key, value in told.items() if key in _OF_REQUESTS}
    settings = [
        f"{_PREFIX}{('context_length' if key == 'num_ctx' else key).upper()}="
        f"{int(value) if isinstance(value, bool) else value}"
        for key, value in told.items()
        if key not in chosen
    ]
    if not settings and not chosen:
        return ["ollama", "run", name]
    lines = [f"{shlex.join(settings)} ollama serve &"] if settings else []
    if chosen:
        lines += ["cat > Modelfile <<'EOF'", f"FROM {name}"]
        lines += [f"PARAMETER {key} {value}" for key, value in chosen.items()]
        lines += ["EOF", f"ollama create {_MADE} -f Modelfile"]
    return "\n".join([*lines, shlex.join(["ollama", "run", _MADE if chosen else name])])


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
    together=together,
    other_forms=other_forms,
    serves=_serves,
)
