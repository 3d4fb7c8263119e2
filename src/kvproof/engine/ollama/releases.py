"""What changed between Ollama's releases: runners, defaults, flash attention.

Read from the repository at every tag up to 0.32.15 (envconfig/config.go, server/sched.go,
server/routes.go, llm/server.go, llm/llama_server.go, fs/ggml/ggml.go, kvcache/causal.go,
Makefile.sync, LLAMA_CPP_VERSION).
"""

from __future__ import annotations

import bisect

from kvproof.engine.release import padded, release_number
from kvproof.model.gguf_arch import architecture_of
from kvproof.model.types import Model
from kvproof.units import GIB

Release = tuple[int, int, int]

SERVER: Release = (0, 30, 0)
"""From here on every GGUF runs in llama.cpp's own server."""
CUT: Release = (0, 9, 3)
"""From here on a context beyond the trained length is cut to it."""
AUTO_FLASH: Release = (0, 13, 4)
"""From here on llama.cpp decides about flash attention where nobody asked."""
OWN_UBATCH: Release = (0, 13, 3)
"""From here on a micro-batch is num_batch; before, llama.cpp's 512 at most."""
_CACHE_TYPES: Release = (0, 5, 0)
_QUANTIZED = ("q8_0", "q4_0")
_NO_SINKS: Release = (0, 11, 5)
_SINKS: Release = (0, 12, 4)
_OWN_PADDING: Release = (0, 13, 2)
_OWN_WINDOWS: Release = (0, 6, 3)

# llama.cpp's code in each release; builds before 0.30 by the day of the commit that was taken.
_BUILDS: tuple[tuple[Release, int], ...] = (
    ((0, 0, 0), 0), ((0, 7, 0), 5360), ((0, 11, 5), 6160), ((0, 12, 4), 6646), ((0, 12, 6), 6750),
    ((0, 12, 11), 6840), ((0, 13, 2), 7108), ((0, 13, 5), 7460), ((0, 30, 0), 9452),
    ((0, 30, 1), 9479), ((0, 30, 4), 9493), ((0, 30, 5), 9509), ((0, 30, 9), 9626),
    ((0, 30, 10), 9672), ((0, 30, 11), 9781), ((0, 31, 0), 9840), ((0, 31, 2), 9888),
    ((0, 32, 2), 10069), ((0, 32, 3), 10091), ((0, 32, 6), 10242), ((0, 32, 8), 10353),
    ((0, 32, 10), 10380), ((0, 32, 14), 10434), ((0, 32, 15), 10488),
)  # fmt: skip
NEWEST: Release = (0, 32, 15)

# Architectures that run on Ollama's own engine from a release on, until 0.30.
_OWN_ENGINE: dict[Release, str] = {
    (0, 6, 0): "gemma3", (0, 6, 5): "mistral3", (0, 6, 7): "llama4", (0, 7, 0): "mllama qwen25vl",
    (0, 9, 3): "gemma3n", (0, 11, 0): "gptoss", (0, 12, 0): "qwen3", (0, 12, 2): "qwen3moe",
    (0, 12, 7): "qwen3vl qwen3vlmoe", (0, 13, 0): "deepseek2 deepseekocr", (0, 13, 4): "olmo3",
    (0, 13, 5): "bert", (0, 14, 3): "glm4moelite lfm2", (0, 15, 5): "glmocr qwen3next",
    (0, 17, 1): "lfm2moe nemotronh nemotronhmoe qwen35 qwen35moe", (0, 20, 0): "gemma4",
    (0, 22, 0): "laguna nemotronhomni",
}  # fmt: skip
# Architectures with flash attention by default on that engine.
_FLASH: dict[Release, str] = {
    (0, 11, 8): "gptoss", (0, 12, 4): "qwen3 qwen3moe", (0, 12, 6): "gemma3",
    (0, 12, 8): "qwen3vl qwen3vlmoe", (0, 13, 2): "mistral3", (0, 13, 4): "olmo3",
    (0, 13, 5): "bert", (0, 14, 3): "glm4moelite lfm2", (0, 15, 5): "glmocr qwen3next",
    (0, 17, 1): "lfm2moe nemotronh nemotronhmoe qwen35 qwen35moe", (0, 20, 4): "gemma4",
    (0, 22, 0): "nemotronhomni",
}  # fmt: skip
# Architectures that only ever get one slot.
_ONE_SLOT: dict[Release, str] = {
    (0, 4, 1): "mllama", (0, 12, 7): "qwen3vl qwen3vlmoe", (0, 15, 5): "qwen3next lfm2 lfm2moe",
    (0, 17, 1): "qwen35 qwen35moe nemotronh nemotronhmoe", (0, 22, 0): "nemotronhomni",
}  # fmt: skip
# Sliding layers of these keep this many tokens on Ollama's own engine (NewSWAMemCache).
_KEPT = {"gptoss": 4096, "gemma4": 4096}

_CONTEXTS: tuple[tuple[Release, int], ...] = (
    ((0, 0, 0), 512), ((0, 0, 6), 2_048), ((0, 6, 7), 4_096),
)  # fmt: skip
_BY_MEMORY: Release = (0, 15, 5)
# Detected memory of all GPUs, a GiB below the nominal 48 and 24, and the default context.
_MEMORY_CONTEXTS = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4_096))
_SLOTS: tuple[tuple[Release, int], ...] = (
    ((0, 0, 0), 1), ((0, 2, 0), 4), ((0, 6, 7), 2), ((0, 10, 0), 1),
)  # fmt: skip


def release_of(version: str | None) -> Release:
    """A release as numbers; unnamed, beyond the newest."""
    return (999, 0, 0) if version is None else padded(release_number(version) or (0,))


def _last(table: tuple[tuple[Release, int], ...], release: Release) -> int:
    return table[bisect.bisect_right([first for first, _ in table], release) - 1][1]


def _in(table: dict[Release, str], release: Release, name: str) -> bool:
    return any(release >= first and name in names.split() for first, names in table.items())


def architecture(model: Model) -> str:
    """The architecture's name without marks: Ollama and llama.cpp spell some differently."""
    return (architecture_of(model) or "").replace("-", "").replace("_", "")


def build_name(release: Release) -> str | None:
    """The llama.cpp build whose code a release has; None is the newest."""
    return None if release > NEWEST else f"b{_last(_BUILDS, release)}"


def own_engine(release: Release, name: str) -> bool:
    """Whether an architecture runs on Ollama's own engine."""
    if release == (0, 12, 5) and name == "qwen3":
        return False
    return release < SERVER and _in(_OWN_ENGINE, release, name)


def own_engine_build(release: Release) -> str | None:
    """The build whose layout the own engine's cache has: one stream, sliding layers cut.

    Windows are kept since 0.6.3; cells were padded to 32 without flash attention before 0.13.2.
    """
    if release < _OWN_WINDOWS:
        return "b0"
    return "b5434" if release < _OWN_PADDING else build_name(release)


def flash_by_default(release: Release, name: str) -> bool:
    """Whether an architecture has flash attention though nobody asked, before the server."""
    return _in(_FLASH, release, name)


def cache_type(release: Release, name: str, asked: str) -> str:
    """The cache type that a start ends up with where `asked` is wanted; f16 for those refused.

    Since 0.5.0 q8_0 and q4_0 beside f16, gpt-oss without them from 0.11.5 to 0.12.3
    (fs/ggml/ggml.go, SupportsKVCacheType); the server takes all of llama.cpp's.
    """
    if release >= SERVER:
        return asked
    plain = release < _CACHE_TYPES or (name == "gptoss" and _NO_SINKS <= release < _SINKS)
    return asked if asked in _QUANTIZED and not plain else "f16"


def kept_window(release: Release, name: str, window: int) -> int:
    """Tokens that a sliding layer keeps for a sequence."""
    if not own_engine(release, name):
        return window
    return max(window, _KEPT.get(name, 0))


def default_context(release: Release, memory: int) -> int:
    """Tokens of a context that nobody asked for; `memory` of all GPUs as detected."""
    if release < _BY_MEMORY:
        return _last(_CONTEXTS, release)
    return next(tokens for least, tokens in _MEMORY_CONTEXTS if memory >= least)


def slots(release: Release, name: str, asked: int) -> int:
    """Requests at a time: as asked (0: the default), one where the architecture can't do more.

    The defaults of 4 and 2, from 0.2.0 to 0.9.6, fell back to 1 where the model didn't fit.
    """
    if release < (0, 2, 0) or _in(_ONE_SLOT, release, name):
        return 1
    return asked or _last(_SLOTS, release)
