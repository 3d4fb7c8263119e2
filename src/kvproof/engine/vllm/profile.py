"""What vLLM's profiling run takes besides weights, in parts that add up.

Each part is a quantity that the run allocates (rows of logits, a batch's widest layer, experts'
intermediates, communication buffers) times a constant of `data/budget.json`, which
scripts/fit_vllm_budget.py fits to start-up logs. Source of the run: vLLM 0.32,
v1/worker/gpu_worker.py (determine_available_memory) and gpu_model_runner.py (profile_run).
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvproof.engine.vllm.blocks import settle_blocks
from kvproof.engine.vllm.captures import (
    batches_up_to,
    captures,
    captures_decodes,
    captures_pieces,
    compiles,
    largest_batch,
    named_batches,
)
from kvproof.engine.vllm.compressed import is_v4
from kvproof.engine.vllm.expert_kernels import expert_workspace, kernel_of
from kvproof.engine.vllm.images import held_bytes, image_bytes
from kvproof.engine.vllm.peaks import layer_bytes, sparse_workspace
from kvproof.engine.vllm.rocm import uses_aiter
from kvproof.engine.vllm.runners import on_second_runner, second_runner
from kvproof.engine.vllm.settings import Settings
from kvproof.engine.vllm.towers import profiles_towers
from kvproof.engine.vllm.versions import era_at
from kvproof.errors import UsageError
from kvproof.hardware import Accelerator
from kvproof.kinds import IndexerSlot, RecurrentSlot
from kvproof.model.types import Model
from kvproof.units import GIB, MIB

_LARGE_GPU = 40 * GIB
_MOST_GRAPHS = 512
_SCANNED, _CHUNK = ("gdn", "kda"), 64
"""Mixers whose prefill is a chunked scan, and its chunk."""
_ONE_START = "one start (DeepSeek-V4-Flash, 0.26.0, B300)"
_DATA = Path(__file__).with_name("data") / "budget.json"
_FLASHINFER_SAMPLER = 12.0
"""Logits in 16 bits, their f32 copy, probabilities: 38.6 less the 25 to 27 B that three models'
starts of 0.11.0 on H200 leave (srv-900da89b, srv-6ed5bda5, srv-b5b1da6d)."""

_FLASHINFER_SINCE, _FLASHINFER_PAST = (0, 8, 0), (0, 11, 1)
"""Releases whose V1 samples with FlashInfer's kernels where they are installed."""
_FLASHINFER_WORKSPACE = 394 * MIB
"""VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE."""
_FUSED_PAST = (0, 21, 0)
"""Starts of 0.18 to 0.20 hold workspaces of fused all-reduces. Two public ledgers of later releases
print 0.6 GiB outside torch on four ranks, which leaves no room for them: 0.23 on GH200, 0.25 on
H100 (vllm#48601)."""
_ONE_WORKSPACE = (0, 13, 0)
"""Since when kernels of experts and sparse attention share one buffer, as large as the larger need
(v1/worker/workspace.py)."""
_SAMPLER_DOUBT, _GRAPHS_DOUBT = 0.02, 1.0
"""Shares in doubt: 14 of 19 printed peaks of the sampler lie within 0.02 (17 within 0.03), while
estimates for the same 86 graphs on one GPU go from 0.27 to 1.65 GiB about a median of 0.54."""
_STATES_GRAPH, _ONE_STEP = round(0.4 * MIB), (0, 28, 0)
"""Bytes of a layer of states in a graph of a whole decode step, the median of five starts."""
_DATA_CENTER = 10
_HOST_SHARE, _HOST_DOUBT = 0.035, 0.02
"""Of memory shared with the CPU: log315 and four public logs of GB10 leave 5.9, 5.5, 5.0, 3.6 and
2.2 of 121.7 GiB to no other term."""
_AITER_SINCE, _AITER_PAST = (0, 12, 0), (0, 14, 0)
"""Releases that sample with AITER's kernels where those are asked for."""
_NO_COPY = (0, 28, 0)
"""Since when the second runner copies logits to f32 only where a request needs it."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the profiling run: its bytes and how they come about."""

    name: str
    value: int
    formula: str
    doubt: float
    """The part's uncertainty in bytes, one unit of the fitted interval."""


class Quantities(msgspec.Struct, frozen=True, kw_only=True):
    """What the run's parts are proportional to."""

    logits: int
    layer_bytes: int
    image_bytes: int
    held_bytes: int
    """An image's inputs and embeddings, held while the decoder runs."""
    mixed_streams: bool
    """Residual streams that a matrix mixes, whose copies were seen in one start alone."""
    experts: int
    """What kernels of routed experts keep."""
    workspace: int
    """What sparse attention gathers into, beyond what experts' kernels keep in the same buffer."""
    encoders: bool


@cache
def constants() -> dict[str, Any]:
    """The fitted constants with their provenance."""
    raw: dict[str, Any] = msgspec.json.decode(_DATA.read_bytes())
    return raw


def quantities(model: Model, settings: Settings) -> Quantities:
    """Logits of the dummy sampler, bytes of a layer's states, bytes of experts' inputs."""
    tokens = settings.max_num_batched_tokens
    rows = min(settings.max_num_seqs, tokens)
    experts, gathered = expert_workspace(model, settings), sparse_workspace(model, settings)
    if settings.rules.version >= _ONE_WORKSPACE:
        gathered = max(0, gathered - experts)
    return Quantities(
        logits=rows * model.vocab_size,
        layer_bytes=layer_bytes(model, settings),
        mixed_streams=int(model.text_config.get("hc_mult") or 1) > 1,
        image_bytes=image_bytes(model, settings),
        held_bytes=held_bytes(model, settings),
        experts=experts,
        workspace=gathered,
        encoders=_has_encoders(model) and profiles_towers(model, settings.flags),
    )


def _has_encoders(model: Model) -> bool:
    if any(group.role in ("vision", "audio") for group in model.tensors):
        return True
    return any(key in model.config for key in ("vision_config", "audio_config"))


def sampler_bytes(model: Model, settings: Settings) -> float:
    """Bytes per logit of the dummy sampler: sorting for top-p was dropped in 0.18."""
    known = known_sampler(model, settings)
    if known is not None:
        return known
    return _fitted_sampler(settings)


def _fitted_sampler(settings: Settings) -> float:
    table = constants()["sampler_bytes_per_logit"]
    return float(table["since_0.18" if settings.rules.version >= (0, 18, 0) else "before_0.18"])


def known_sampler(model: Model, settings: Settings) -> float | None:
    """Bytes per logit where the source gives them; None where starts have to.

    The second runner's dummies ask for no top-p: logits in 16 bits, gathered from several ranks and
    put in order, and until 0.27 copied to f32 (v1/worker/gpu/sample/sampler.py, read from 0.22 on).
    FlashInfer's kernels sort nothing. V1 took them up to 0.11.0 where they were installed, as in
    the images; only VLLM_USE_FLASHINFER_SAMPLER says so here. Nor do AITER's, which 0.12 and 0.13
    took beside its other kernels (v1/sample/ops/topk_topp_sampler.py).
    """
    if second_runner(model, settings):
        gathered = 2.0 if settings.ranks == 1 else 4.0 + 2.0 / settings.ranks
        return max(gathered, 6.0) if settings.rules.version < _NO_COPY else gathered
    asked = settings.flags.get("flashinfer_sampler") and settings.rules.v1
    aiter = uses_aiter(settings) and _AITER_SINCE <= settings.rules.version < _AITER_PAST
    if asked or aiter:
        return min(_FLASHINFER_SAMPLER, float(constants()["sampler_bytes_per_logit"]["since_0.18"]))
    return None


def other_ways(model: Model, settings: Settings, gpu: Accelerator) -> tuple[int, int]:
    """Bytes that the run takes less, and more, if the installation is another than assumed.

    Less: FlashInfer's sampler, which V1 took before 0.11.1 where the package was installed, or
    AITER's, which an image's environment may ask for (srv-2c445521: 3 GiB). More:
    the estimate of graphs and the other sampler, where options that are not read (plugins,
    processors of logits) send a model back to the first runner (0.26's config/vllm.py; log227);
    workspaces of fused all-reduces where no start shows whether they still count; where memory is
    the CPU's too and not NVIDIA's, what the host takes. Either: what another driver reports.
    """
    share = float(settings.flags.get("gpu_memory_utilization", settings.rules.utilization))
    memory = gpu.memory_bytes
    reported = (memory, *gpu.other_memory_bytes)
    less = round(share * (max(reported) - memory))
    more = round(share * (memory - min(reported)))
    if gpu.unified_memory and not settings.host_pages:
        more += round(_HOST_SHARE * memory)
    if _may_sort_nothing(settings):
        sizes = quantities(model, settings)
        less += _peak(sizes, sampler_bytes(model, settings)) - _peak(sizes, _FLASHINFER_SAMPLER)
    if settings.rules.version >= _FUSED_PAST and settings.ranks > 1 and _may_fuse(settings, memory):
        more += round(float(_communicators(settings).get("base", 0.0)) * GIB)
    told = settings.flags.get("use_v2_model_runner") is not None
    if on_second_runner(model, settings) and not told:
        sizes, part = quantities(model, settings), graph_part(model, settings)
        own = _peak(sizes, sampler_bytes(model, settings))
        more += _peak(sizes, _fitted_sampler(settings)) - own
        more += part.value if part is not None else 0
    return less, more


def _may_sort_nothing(settings: Settings) -> bool:
    """Whether kernels that are not said to be there may sample: FlashInfer's, on AMD AITER's."""
    version, flags = settings.rules.version, settings.flags
    if settings.platform == "rocm":
        return flags.get("rocm_aiter") is None and _AITER_SINCE <= version < _AITER_PAST
    asked = flags.get("flashinfer_sampler") is not None or settings.platform != "cuda"
    return settings.rules.v1 and not asked and _FLASHINFER_SINCE <= version < _FLASHINFER_PAST


def _peak(sizes: Quantities, each: float) -> int:
    """What the run holds at most with a sampler of so many bytes per logit."""
    decoder = max(round(sizes.logits * each), sizes.layer_bytes) + sizes.held_bytes
    return max(decoder, sizes.image_bytes)


def run_parts(model: Model, settings: Settings, memory: int) -> tuple[Part, ...]:
    """The parts of the profiling run on one rank of a GPU of `memory` bytes."""
    sizes = quantities(model, settings)
    each = sampler_bytes(model, settings)
    parts = [_activation(settings, sizes, each), _framework(settings)]
    if settings.ranks > 1:
        parts.append(_communication(settings, memory))
    if sizes.experts:
        parts.append(_experts(model, settings, sizes))
    if sizes.workspace:
        parts.append(_workspace(settings, sizes))
    if sizes.encoders:
        parts.append(_encoders())
    if settings.host_pages:
        parts.append(_host_pages(settings, memory))
    return tuple(parts)


def host_bytes(settings: Settings, memory: int) -> int:
    """What free memory loses to the system, mostly pages of the files that the load reads.

    Two looks at what is free take it for the engine's (utils/mem_utils.py, MemorySnapshot.measure).
    """
    return round(_HOST_SHARE * memory) if settings.host_pages else 0


def _host_pages(settings: Settings, memory: int) -> Part:
    formula = f"{_HOST_SHARE:g} of memory that is the CPU's too: files that are read (public logs)"
    held, doubt = host_bytes(settings, memory) / GIB, _HOST_DOUBT * memory / GIB
    return _part("pages of the host", held, formula, doubt)


def _part(name: str, gib: float, formula: str, doubt: float) -> Part:
    return Part(name=name, value=round(gib * GIB), formula=formula, doubt=doubt * GIB)


def _activation(settings: Settings, sizes: Quantities, each: float) -> Part:
    sampler = round(sizes.logits * each)
    decoder = max(sampler, sizes.layer_bytes) + sizes.held_bytes
    if sizes.image_bytes > decoder:
        formula = f"a largest image through the encoder: {sizes.image_bytes:,} B"
        return _activations(sizes.image_bytes, formula, 0.15)
    held = f" + {sizes.held_bytes:,} B of an image held meanwhile" if sizes.held_bytes else ""
    if sampler >= sizes.layer_bytes:
        formula = f"dummy sampler: {sizes.logits:,} logits x {each:g} B{held}"
        return _activations(decoder, formula, _SAMPLER_DOUBT)
    rests = f"; residual streams' copies rest on {_ONE_START}" if sizes.mixed_streams else ""
    formula = (
        f"a batch of {settings.max_num_batched_tokens:,} tokens through the layer that holds most: "
        f"{sizes.layer_bytes:,} B{held}{rests}"
    )
    return _activations(decoder, formula, 0.3 if sizes.mixed_streams else 0.15)


def _activations(value: int, formula: str, doubt: float) -> Part:
    return Part(name="activations", value=value, formula=formula, doubt=doubt * value)


def framework_era(settings: Settings) -> str:
    """The name of the constant for what the process takes outside torch.

    Since 0.21 graphs are captured once before memory is counted, and what that leaves counts in;
    two starts of 0.26 print it.
    """
    if early(settings):
        return "v0"
    if settings.radeon:
        return "radeon"
    late = settings.platform == "cuda" and communication_era(settings) == "since_0.26"
    return "cuda since 0.26" if late else settings.platform


def _framework(settings: Settings) -> Part:
    table = constants()["framework_gib"]
    key = framework_era(settings)
    value = float(table.get(key, table["cuda"]))
    return _part("framework", value, f"{value:g} GiB ({key}, fitted)", 0.12 + 0.15 * value)


def early(settings: Settings) -> bool:
    """Releases before 0.6.5, which charge all that the GPU holds, the CUDA context too."""
    return settings.rules.version < (0, 6, 5)


def minor_of(settings: Settings) -> str:
    """The release's first two numbers, as the constants list those that were seen."""
    return ".".join(str(part) for part in settings.rules.version[:2])


def communication_era(settings: Settings) -> str:
    """The name of the constants for the release: all-reduces are fused since 0.18.

    RCCL's are one on ROCm: starts of 0.11 to 0.18 agree within 0.1 GiB for each number of ranks.
    Over PCIe they hardly grow: there is no switch whose channels NCCL fills, and vLLM's own
    all-reduce is off beyond two ranks (until 0.26; the one later start prints both together).
    """
    if settings.platform == "rocm":
        return "rocm"
    era = era_at(settings.rules.version)
    return "pcie" if settings.pcie and era != "since_0.26" else era


def fused_reduce(settings: Settings, memory: float) -> bool:
    """Whether all-reduces are fused with what follows, in workspaces of FlashInfer's.

    Source: vLLM 0.20.2, config/vllm.py (enable_allreduce_rms_fusion): capability 9 and 10, without
    stages or replicas; a pass of the compiler makes them, so nothing does without it.
    """
    return settings.rules.version < _FUSED_PAST and _may_fuse(settings, memory)


def _may_fuse(settings: Settings, memory: float) -> bool:
    alone = settings.stages == 1 and settings.replicas == 1
    alone = alone and compiles(settings.flags)
    return alone and memory >= _LARGE_GPU and settings.capability[0] in (9, 10)


def _few_logs(settings: Settings) -> bool:
    """Whether the era's constant rests on the few starts that print memory outside torch."""
    return communication_era(settings) == "since_0.26"


def _communicators(settings: Settings) -> dict[str, Any]:
    table: dict[str, Any] = constants()["communication_gib"][communication_era(settings)]
    return table


def _communication(settings: Settings, memory: int) -> Part:
    """NCCL's growth and all-reduce workspaces; the fused ones of 0.18 on only on large GPUs."""
    steps = math.log2(settings.ranks)
    table = _communicators(settings)
    if "squared_ranks" in table:
        return _rccl(float(table["squared_ranks"]), settings.ranks)
    if "any_ranks" in table:
        return _few_channels(float(table["any_ranks"]))
    few = "; two logs of this era print it, on four ranks" if _few_logs(settings) else ""
    each = float(table["log2_ranks"])
    base = float(table["base"]) if fused_reduce(settings, memory) else 0.0
    value = base + each * steps
    formula = (
        f"NCCL's growth and all-reduce workspaces: {base:g} + {each:g} x log2({settings.ranks}) "
        f"GiB = {value:.2f} GiB (fitted{few})"
    )
    return _part("communication", value, formula, (0.5 if few else 0.25) * value + 0.1)


def _rccl(each: float, ranks: int) -> Part:
    """Channels and peers both grow with the ranks."""
    value = each * ranks**2
    formula = f"RCCL's buffers: {each:g} GiB x {ranks} ranks squared = {value:.2f} GiB (fitted)"
    return _part("communication", value, formula, 0.25 * value + 0.1)


def _few_channels(value: float) -> Part:
    formula = f"NCCL's buffers over PCIe: {value:.2f} GiB, with two ranks or more"
    return _part("communication", value, formula, 0.25 * value + 0.1)


def _experts(model: Model, settings: Settings, sizes: Quantities) -> Part:
    formula = (
        f"kept by the kernel ({kernel_of(model, settings)}) for "
        f"{settings.max_num_batched_tokens:,} tokens in {model.experts_per_token} experts each: "
        f"{sizes.experts:,} B"
    )
    doubt = 0.2 * sizes.experts
    return Part(name="experts' workspace", value=sizes.experts, formula=formula, doubt=doubt)


def _workspace(settings: Settings, sizes: Quantities) -> Part:
    formula = (
        f"rows gathered for sequences of up to {settings.max_model_len:,} tokens: "
        f"{sizes.workspace:,} B"
    )
    doubt = 0.2 * sizes.workspace
    return Part(name="sparse attention's workspace", value=sizes.workspace, formula=formula,
                doubt=doubt)  # fmt: skip


def _encoders() -> Part:
    value = float(constants()["encoders_gib"])
    return _part("encoder profiling", value, f"{value:g} GiB (fitted)", 0.5 * value)


def graph_count(settings: Settings) -> int:
    """Graphs of a start: of pieces for batches up to twice the sequences, of whole decode steps.

    Source: vLLM 0.20.2, config/vllm.py (_set_cudagraph_sizes).
    """
    pieces = len(_captured(settings)) if captures_pieces(settings.flags) else 0
    return pieces + whole_steps(settings)


def whole_steps(settings: Settings) -> int:
    """Graphs of whole decode steps among them: of batches that the sequences can make."""
    decode = _decoded(settings)
    return sum(size <= decode for size in _captured(settings) if captures_decodes(settings.flags))


def _decoded(settings: Settings) -> int:
    return settings.max_num_seqs * (1 + settings.draft.tokens)


def _captured(settings: Settings) -> list[int]:
    """The batches that graphs are captured for."""
    flags, bound = settings.flags, settings.max_num_batched_tokens
    named = [size for size in named_batches(flags) if size <= bound]
    most = largest_batch(flags) or min(2 * _decoded(settings), _MOST_GRAPHS)
    return named or batches_up_to(min(most, bound))


def scan_bytes(model: Model, settings: Settings) -> int:
    """What a prefill's scan of a whole batch takes, charged as if the first graph kept it.

    For every head and token: the states at chunks' ends, three rows of values, and the chunk's
    matrix in f32. Sources: reports vllm#50780, vllm#54775 (72 KiB a token of 48 heads), from 0.26
    on.
    """
    if settings.rules.version < (0, 26, 0):
        return 0
    slots = [s for s in model.slots if isinstance(s, RecurrentSlot) and s.mixer in _SCANNED]
    if not slots:
        return 0
    heads, keys, values = slots[0].shape
    each = keys * values * 2 // _CHUNK + 3 * values * 2 + _CHUNK * 4
    return settings.max_num_batched_tokens * heads // settings.ranks * each


def state_graphs(model: Model, settings: Settings) -> int:
    """What graphs of whole decode steps take for gated delta nets; graphs of pieces lack them.

    Report vllm#50780: 24 MiB a graph for 48 layers. Two more starts of that model print 1.55 GiB
    for 86 graphs, 35 of them whole (attention alone: 0.52), smaller ones 0.64, 0.78 and 0.93. Since
    0.28 CUDA has one kernel for the whole step.
    """
    if settings.rules.version >= _ONE_STEP and settings.platform == "cuda":
        return 0
    layers = sum(isinstance(s, RecurrentSlot) and s.mixer in _SCANNED for s in model.slots)
    return max(0, whole_steps(settings) - 1) * layers * _STATES_GRAPH


def workspace_bytes(model: Model, settings: Settings) -> int:
    """FlashInfer's workspace, made when the first whole decode step is captured.

    So it lies within what that graph is found to take (v1/attention/backends/flashinfer.py;
    log296 prints 0.47 GiB for three graphs). With drafts no whole step is captured, but on
    Blackwell's data-center chips.
    """
    if not settings.rules.v1 or (settings.draft.tokens and settings.capability[0] != _DATA_CENTER):
        return 0
    try:
        backend = settle_blocks(model, settings).backend
    except UsageError:  # the planner says why; nothing is captured then
        return 0
    return _FLASHINFER_WORKSPACE if backend.name == "FLASHINFER" else 0


def many_pieces(model: Model, settings: Settings) -> bool:
    """Whether indexers split a layer into more pieces, each a graph of its own.

    So with the first model runner (log225, log240: 4.13 GiB captured for 102 graphs); the second,
    default since 0.29, breaks none, and DeepSeek-V4's layers stay whole (1.57 and 1.94 GiB for as
    many: srv-3a25a248, srv-f645b14b).
    """
    first = settings.rules.version < (0, 29, 0)
    indexed = any(isinstance(slot, IndexerSlot) for slot in model.slots)
    return first and indexed and not is_v4(model)


def graph_part(model: Model, settings: Settings) -> Part | None:
    """CUDA graphs: a charge on the budget where the release estimates them.

    The estimate is the first graph, which sizes the pool, and a sample times the others (vllm
    v1/worker/gpu_model_runner.py, profile_cudagraph_memory), so it exceeds what is captured.
    """
    if not captures(settings.flags) or settings.platform == "cpu":
        return None
    table = constants()["graphs_gib"]
    count = graph_count(settings)
    each = float(table["each"]) + float(table["each_log2_ranks"]) * math.log2(settings.ranks)
    each += float(table["each_sparse"]) if many_pieces(model, settings) else 0.0
    value = float(table["first"]) + each / 1024 * (count - 1)
    scan, held = scan_bytes(model, settings), workspace_bytes(model, settings)
    states = state_graphs(model, settings)
    more = f" + {scan:,} B of a scan" if scan else ""
    more += f" + {held:,} B of FlashInfer's workspace" if held else ""
    more += f" + {states:,} B of states' layers" if states else ""
    value += (scan + held + states) / GIB
    formula = (
        f"first {float(table['first']):g} GiB + {each:.2f} MiB x {count - 1} others on "
        f"{settings.ranks} ranks{more} = {value:.2f} GiB (fitted)"
    )
    return _part("CUDA graphs", value, formula, _GRAPHS_DOUBT * value)
