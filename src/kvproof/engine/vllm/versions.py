"""Which vLLM release plans by which rules: one dated table, oldest first.

Each row holds the first release in which a rule was found and the module that shows it. The
sources were read release by release (0.8.5, 0.9.2, 0.10.1, 0.10.2, 0.11.2 ... 0.32.0); a rule
that changed between two releases that were read is dated by the start-up logs in between.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from functools import cache
from typing import Literal

import msgspec

from kvproof.engine.release import padded, release_number

Version = tuple[int, int, int]
NEWEST: Version = (0, 33, 0)
_PATCHES = {
    4: 3, 5: 5, 6: 6, 7: 3, 8: 5, 9: 2, 10: 2, 11: 2, 14: 1, 15: 1, 17: 1, 18: 1, 19: 1, 20: 2,
    22: 1, 25: 1, 27: 1,
}  # fmt: skip
"""The last patch of each 0.x on PyPI (November 2026); the others have none."""
V0_MODULE, V0_LAST, _V1_MODULES = "vllm/worker/worker.py", "0.7.3", "vllm/v1/"
BOTH_ENGINES: tuple[Version, Version] = ((0, 8, 0), (0, 11, 0))
"""The releases that have V0 beside V1: from the first, up to the second."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The planning rules of one release."""

    version: Version
    known: bool = True
    """False for a release newer than the newest whose rules were read."""
    v1: bool = True
    """The V1 engine; V0 prints `# GPU blocks` and keeps every layer at full length."""
    groups: bool = True
    """The hybrid manager: layers of different kinds in groups of equal size."""
    token_line: Literal["blocks", "concurrency"] = "concurrency"
    """The printed token count: blocks // groups x block size, or concurrency x length."""
    group_ratio: float | None = 1.5
    """Buckets whose sizes differ by less than this factor are padded to the larger one."""
    uniform_type: bool = True
    """Layers of one type with different page sizes share one group."""
    sliding_own_block: bool = True
    """Sliding layers choose their own block size."""
    in_flight: bool = True
    """Sliding and chunked layers reserve for every batch in flight, not for one."""
    pad_pages: bool = True
    """Attention pages that do not divide the largest are padded to it."""
    null_reserved: bool = True
    """The fit check leaves out the null block."""
    packed: Literal["none", "tuples", "layout"] = "layout"
    """How several page sizes in one block are handled (DeepSeek-V4)."""
    width: Literal["tuples", "buckets", "widest"] = "widest"
    """A block of several page sizes: whole tuples, each size as often as any group has it, or
    the widest group's pages."""
    state_blocks: Literal["length", "mode"] = "mode"
    """State blocks of a request: ceil(length / state block), or by the cache mode."""
    checkpoint_blocks: bool = True
    """Mamba 2 and KDA keep one block more for a prefill checkpoint."""
    state_modes: tuple[str, ...] = ("align", "none")
    """Mamba cache modes; "all" keeps the state of every block."""
    hybrid_prefix_caching: bool = True
    """Prefix caching is on by default for models with states."""
    mamba_prefix_caching: bool = True
    """Prefix caching works at all for models with states."""
    async_default: bool = True
    """Asynchronous scheduling is on by default on CUDA."""
    pp_async: bool = True
    """It stays on with pipeline parallelism (Model Runner V2)."""
    runner_v2: bool = True
    utilization: float = 0.92
    """Default gpu_memory_utilization."""
    large_gpu_batch: bool = True
    """GPUs of 160 GiB and more batch 16,384 tokens by default."""
    seqs_v1: tuple[int, int] = (1024, 256)
    """Default max_num_seqs on large and other GPUs."""
    large_by_name: bool = False
    """A GPU is large as an H100 or H200 by its name, and not by its memory."""
    concurrency: Literal["bytes", "blocks"] = "blocks"
    """A request's blocks: its bytes over the first group's page, or the sum over groups."""
    graphs_charged: bool = True
    """The estimate of CUDA graph memory is taken off the budget."""
    others_charged: bool = False
    """Memory that other processes use is taken off the budget; where it isn't, the start is
    refused when less than the requested share is free."""
    latent: bool = True
    """Multi-head latent attention keeps the latent and not expanded heads."""
    block_by_backend: bool = True
    """The block size follows the backend's smallest kernel block; before, fixed by name."""
    picture_backends: bool = True
    """Pictures that are read in both directions have attention backends of their own."""
    a100_small: bool = True
    """An A100 batches as a small GPU whatever its memory."""
    short_gather: bool = True
    """Sparse attention gathers two of the longest sequences where they are very long, not five."""
    short_longrope: bool = True
    """Models with LongRoPE start at the length before scaling when none is given."""
    yarn_is_scaled: bool = True
    """max_position_embeddings hold YaRN's scaled length; before, it was the original's multiple."""
    checkpoint_kv_dtype: bool = True
    """A checkpoint's own kv cache type is taken when none is given."""


class Change(msgspec.Struct, frozen=True):
    """From `since` on, `values` hold; `source` says where that was read."""

    since: Version
    values: dict[str, object]
    source: str


_FIRST = Rules(
    version=(0, 0, 0),
    v1=False,
    groups=False,
    token_line="blocks",
    group_ratio=None,
    uniform_type=False,
    sliding_own_block=False,
    in_flight=False,
    pad_pages=False,
    null_reserved=False,
    packed="none",
    state_blocks="length",
    checkpoint_blocks=False,
    short_longrope=False,
    state_modes=("none",),
    hybrid_prefix_caching=False,
    mamba_prefix_caching=False,
    async_default=False,
    pp_async=False,
    runner_v2=False,
    utilization=0.90,
    large_gpu_batch=False,
    seqs_v1=(256, 256),
    concurrency="bytes",
    graphs_charged=False,
    others_charged=True,
    latent=False,
    block_by_backend=False,
    picture_backends=False,
    a100_small=False,
    short_gather=False,
    yarn_is_scaled=False,
    checkpoint_kv_dtype=False,
)

CHANGES: tuple[Change, ...] = (
    Change(
        (0, 6, 5),
        {"others_charged": False},
        "worker/worker.py: growth since the first snapshot (0.6.5; not in 0.6.4)",
    ),
    Change((0, 7, 0), {"latent": True}, "release 0.7.1: MLA keeps the latent; log182 (0.7)"),
    Change(
        (0, 8, 0),
        {"v1": True},
        "release 0.8.0: V1 by default; v1/core/kv_cache_utils.py",
    ),
    Change(
        (0, 8, 0),
        {"others_charged": True},
        "v1/worker/gpu_worker.py: total - free - torch's own (0.8.5, 0.9.0)",
    ),
    Change(
        (0, 8, 0),
        {"seqs_v1": (1024, 1024), "large_by_name": True},
        "engine/arg_utils.py, _set_default_args_v1 (0.8.0 to 0.8.3)",
    ),
    Change(
        (0, 8, 4),
        {"seqs_v1": (1024, 256)},
        "engine/arg_utils.py, _set_default_args_v1 (0.8.4)",
    ),
    Change(
        (0, 8, 5),
        {"large_by_name": False},
        "engine/arg_utils.py, _set_default_args_v1: 70 GiB and more (0.8.5)",
    ),
    Change(
        (0, 9, 0),
        {"a100_small": True},
        "engine/arg_utils.py, PR 17885 (0.9)",
    ),
    Change(
        (0, 9, 2),
        {"groups": True},
        "v1/core/kv_cache_utils.py: _get_kv_cache_config_uniform_page_size (0.9.2)",
    ),
    Change(
        (0, 9, 2),
        {"others_charged": False},
        "v1/worker/gpu_worker.py: init_snapshot, requested_memory <= free (0.9.2)",
    ),
    Change(
        (0, 11, 1),
        {"uniform_type": True, "mamba_prefix_caching": True, "state_modes": ("all", "none")},
        "v1/kv_cache_interface.py (UniformTypeKVCacheSpecs), models/config.py (0.11.2)",
    ),
    Change((0, 11, 1), {"short_longrope": True}, "config/model.py, PR 27431 (October 2025)"),
    Change((0, 12, 0), {"group_ratio": 1.25}, "v1/core/kv_cache_utils.py (0.12.0)"),
    Change((0, 14, 0), {"async_default": True}, "config/vllm.py: async_scheduling None (0.14.1)"),
    Change((0, 15, 0), {"checkpoint_kv_dtype": True}, "log113 (0.15.1): fp8 from the checkpoint"),
    Change(
        (0, 16, 0),
        {"state_blocks": "mode", "state_modes": ("align", "all", "none")},
        "v1/kv_cache_interface.py: MambaSpec.max_memory_usage_bytes (0.16.0)",
    ),
    Change(
        (0, 18, 0),
        {"group_ratio": 1.5, "block_by_backend": True},
        "v1/core/kv_cache_utils.py, platforms/interface.py (0.18.0)",
    ),
    Change(
        (0, 20, 0), {"utilization": 0.92, "graphs_charged": True}, "config/cache.py, envs.py (0.20)"
    ),
    Change(
        (0, 20, 1),
        {"token_line": "concurrency", "packed": "tuples", "width": "tuples"},
        "v1/core/kv_cache_utils.py (0.20.1); srv-2fec82ef (0.20.0) prints the old line",
    ),
    Change((0, 24, 0), {"width": "buckets"}, "v1/core/kv_cache_utils.py (0.24.0); log228"),
    Change((0, 25, 0), {"pad_pages": True}, "v1/core/kv_cache_utils.py (0.25.1)"),
    Change(
        (0, 26, 0),
        {"in_flight": True, "hybrid_prefix_caching": True},
        "v1/kv_cache_interface.py, PR 47728; config/model.py (0.26.0)",
    ),
    Change((0, 27, 0), {"concurrency": "blocks"}, "v1/core/kv_cache_utils.py (0.27.0)"),
    Change(
        (0, 28, 0),
        {"large_gpu_batch": True, "sliding_own_block": True},
        "engine/arg_utils.py, model_executor/layers/attention/attention.py (0.28.0)",
    ),
    Change(
        (0, 29, 0),
        {"packed": "layout", "width": "widest", "null_reserved": True, "checkpoint_blocks": True},
        "v1/core/kv_cache_utils.py, v1/kv_cache_interface.py (0.29.0)",
    ),
    Change((0, 30, 0), {"runner_v2": True, "pp_async": True}, "config/vllm.py (0.30.0)"),
    Change((0, 30, 0), {"yarn_is_scaled": True}, "config/model.py (0.30.0; not in 0.29.0)"),
    Change(
        (0, 31, 0),
        {"short_gather": True},
        "config/vllm.py: sparse_mla_prefill_workspace_factor (0.32.0; not in 0.30.0)",
    ),
    Change((0, 32, 0), {"state_modes": ("align", "none")}, "config/cache.py (0.32.0)"),
    Change(
        (0, 32, 0),
        {"picture_backends": True},
        "v1/attention/backends/composite.py, PR 56305 of September 2026 (0.32.0)",
    ),
)


ERAS: tuple[tuple[str, Version], ...] = (
    ("since_0.26", (0, 26, 0)), ("since_0.18", (0, 18, 0)), ("before_0.18", (0, 8, 0)),
    ("v0", (0, 0, 0)),
)  # fmt: skip
"""Releases whose communicators and activations take memory alike, the newest first: V0, V1,
all-reduces fused since 0.18; data/budget.json has a row for each."""


def parse_version(text: str | None) -> Version:
    """The base release of `0.11.2+rhai1`, `0.18.1.dev8`, `0.20` ...; None is the newest."""
    number = release_number(text)
    return NEWEST if number is None else padded(number)


@cache
def rules_at(version: Version) -> Rules:
    """The rules of `version`: the first ones with every change up to it applied."""
    values: dict[str, object] = {}
    for change in CHANGES:
        if change.since <= version:
            values.update(change.values)
    known = version[:2] <= NEWEST[:2]
    return msgspec.structs.replace(_FIRST, version=version, known=known, **values)


def releases() -> tuple[str, ...]:
    """Every release that can have printed a log, oldest first.

    0.4 is the first whose lines are read.
    """
    return tuple(
        f"0.{minor}.{patch}"
        for minor in range(4, NEWEST[1] + 1)
        for patch in range(_PATCHES.get(minor, 0) + 1)
    )


def era_at(version: Version) -> str:
    """The span of releases that profile memory alike, to which `version` belongs."""
    return next(name for name, since in ERAS if version >= since)


def utilizations() -> tuple[float, ...]:
    """Every default of gpu_memory_utilization there has been."""
    found = (_FIRST.utilization, *(change.values.get("utilization") for change in CHANGES))
    return tuple(share for share in found if isinstance(share, float))


def planned_by(release: str, modules: Collection[str]) -> str:
    """The release whose rules a start of `release` followed, by the modules that printed its lines.

    V0 outlived 0.7, unchanged: a start of 0.8 to 0.10 that it printed went by its last rules.
    """
    later = parse_version(release) >= BOTH_ENGINES[0]
    return V0_LAST if later and V0_MODULE in modules else release


def printed_by_v1(release: str, modules: Collection[str]) -> bool:
    """Whether V1's modules printed the lines of a start of `release`, which has both engines."""
    both = BOTH_ENGINES[0] <= parse_version(release) < BOTH_ENGINES[1]
    return both and any(module.startswith(_V1_MODULES) for module in modules)


def rules_for(text: str | None) -> Rules:
    """The rules of the release called `text`; warns for one newer than the newest known."""
    rules = rules_at(parse_version(text))
    if not rules.known:
        newest = ".".join(str(part) for part in NEWEST)
        warnings.warn(
            f"vLLM {text} is newer than the newest rules known ({newest}); using those",
            stacklevel=2,
        )
    return rules
