"""What CUDA graphs take: the estimate that a start makes of them, term by term.

Source: vLLM 0.20 to 0.32, v1/worker/gpu_model_runner.py (profile_cudagraph_memory).
"""

from __future__ import annotations

import math

from kvproof.engine.vllm.blocks import settle_blocks
from kvproof.engine.vllm.captures import (
    batches_up_to,
    captures,
    captures_decodes,
    captures_pieces,
    largest_batch,
    named_batches,
)
from kvproof.engine.vllm.compressed import is_v4
from kvproof.engine.vllm.parts import Part, constants, part
from kvproof.engine.vllm.settings import Settings
from kvproof.errors import UsageError
from kvproof.kinds import IndexerSlot, RecurrentSlot
from kvproof.model.types import Model
from kvproof.units import GIB, MIB

_MOST_GRAPHS = 512
_SCANNED, _CHUNK = ("gdn", "kda"), 64
"""Mixers whose prefill is a chunked scan, and its chunk."""
_FLASHINFER_WORKSPACE = 394 * MIB
"""VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE."""
_GRAPHS_DOUBT = 1.0
"""Share in doubt: estimates for the same 86 graphs on one GPU go from 0.27 to 1.65 GiB about a
median of 0.54."""
_STATES_GRAPH, _ONE_STEP = round(0.4 * MIB), (0, 28, 0)
"""Bytes of a layer of states in a graph of a whole decode step, the median of five starts."""
_DATA_CENTER = 10


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
    return part("CUDA graphs", value, formula, _GRAPHS_DOUBT * value)
