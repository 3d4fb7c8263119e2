"""What an Ollama server's own settings say of a runner whose lines don't.

The server prints its environment once (`server config env="map[OLLAMA_CONTEXT_LENGTH:8192 ...`); a
request or a Modelfile may ask for another context, which only the runner's lines tell.
"""

from __future__ import annotations

import re
from typing import Any

from kvproof.engine.ollama import releases
from kvproof.observe.figures import Log

SERVER_CONTEXT = "ollama_context_length"
_PARALLEL, _TYPE = "ollama_num_parallel", "ollama_kv_cache_type"
_FLASH = "ollama_flash_attention"


_SAID = {"enabled": "on", "disabled": "off"}
# Options of a runner's command line and llama.cpp's names of them; a batch is a micro-batch there.
_RUNNER = {
    "ctx-size": ("n_ctx",), "parallel": ("parallel",), "batch-size": ("ubatch_size",),
    "kv-cache-type": ("cache_type_k", "cache_type_v"),
}  # fmt: skip
_OPTION = re.compile(r" --(flash-attn(?![\w-])|[a-z-]{1,40}(?=[ =]))(?:[ =]([\w.]{1,20}))?")


def runner_flags(words: str) -> dict[str, Any]:
    """The flags of llama.cpp in the rest of a line with which a server starts its runner."""
    flags: dict[str, Any] = {}
    for name, value in _OPTION.findall(words):
        if name == "flash-attn":
            flags["flash_attn"] = "on"
        for own in _RUNNER.get(name, ()):
            if value.isdigit() != own.startswith("cache"):
                flags[own] = int(value) if value.isdigit() else value
    return flags


def served(log: Log, assumptions: list[str]) -> dict[str, Any]:
    """The log's flags with the server's settings as llama.cpp's, where the runner names none."""
    server = (SERVER_CONTEXT, _PARALLEL, _TYPE, _FLASH)
    flags = {name: value for name, value in log.flags.items() if name not in server}
    if "n_ctx" in flags:  # what the context came to, whatever a command asked for
        flags.pop("ctx_size", None)
    context, kind = log.flags.get(SERVER_CONTEXT), log.flags.get(_TYPE)
    flash = str(log.flags.get(_FLASH, "")).lower() in ("1", "true")
    said = str(flags.get("flash_attn", "")).lower()
    if said in _SAID:  # as a request for a load prints it
        flags["flash_attn"] = _SAID[said]
    release = releases.release_of(log.version)
    if context and not {"n_ctx", "ctx_size"} & flags.keys():
        slots = releases.slots(release, "", int(log.flags.get(_PARALLEL) or 0))
        flags |= {"ctx_size": int(context) * slots, "parallel": slots}
        many = f" for each of {slots} requests" if slots > 1 else ""
        assumptions.append(f"num_ctx: the server's OLLAMA_CONTEXT_LENGTH of {context:,}{many}")
    if flash:
        flags.setdefault("flash_attn", "on")
    if kind and "cache_type_k" not in flags and (flash or release >= releases.SERVER):
        kept = releases.cache_type(release, "", str(kind).lower())
        flags |= {"cache_type_k": kept, "cache_type_v": kept}
    return flags
