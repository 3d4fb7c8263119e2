"""What an Ollama server's own settings say of a runner whose lines don't.

The server prints its environment once (`server config env="map[OLLAMA_CONTEXT_LENGTH:8192 ...`); a
request or a Modelfile may ask for another context, which only the runner's lines tell.
"""

from __future__ import annotations

from typing import Any

from kvproof.engine.ollama import releases
from kvproof.observe.figures import Log

SERVER_CONTEXT = "ollama_context_length"
_PARALLEL, _TYPE = "ollama_num_parallel", "ollama_kv_cache_type"
_FLASH = "ollama_flash_attention"


def served(log: Log, assumptions: list[str]) -> dict[str, Any]:
    """The log's flags with the server's settings as llama.cpp's, where the runner names none."""
    server = (SERVER_CONTEXT, _PARALLEL, _TYPE, _FLASH)
    flags = {name: value for name, value in log.flags.items() if name not in server}
    context, kind = log.flags.get(SERVER_CONTEXT), log.flags.get(_TYPE)
    flash = str(log.flags.get(_FLASH, "")).lower() in ("1", "true")
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
