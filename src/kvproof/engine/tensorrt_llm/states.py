"""Models that keep states alone: one slot for each of max_batch_size sequences, and no pool.

Source: TensorRT-LLM 1.x, _torch/pyexecutor/mamba_cache_manager.py: the slots of a full batch are
taken before anything is served; a start without room for all of them fails.
"""

from __future__ import annotations

from kvproof.engine.base import Capacity, Group
from kvproof.engine.tensorrt_llm.flags import Flags
from kvproof.kinds import ConvSlot, RecurrentSlot
from kvproof.model.types import Model
from kvproof.terms import Term
from kvproof.units import show_bytes

_SOURCE = "TensorRT-LLM 1.x, tensorrt_llm/_torch/pyexecutor/mamba_cache_manager.py"


def state_capacity(model: Model, flags: Flags, one: int, kv_bytes: int, length: int) -> Capacity:
    """What `kv_bytes` hold of states that take `one` bytes a sequence on one GPU.

    A block is one sequence's states, good for `length` tokens.
    """
    batch = flags.max_batch_size
    fits = one > 0 and batch * one <= kv_bytes
    count = batch if fits else 0
    layers = {s.layer for s in model.slots if isinstance(s, ConvSlot | RecurrentSlot)}
    held = layers if flags.layers is None else layers & set(flags.layers)
    group = Group(
        kind="recurrent",
        layers=len(held),
        block_size=length,
        page_bytes=one // max(1, len(held)),
        blocks_per_sequence=1,
    )
    whole = show_bytes(batch * one)
    misfit = f"the states of max_batch_size {batch:,} sequences take {whole}: there is no room"
    return Capacity(
        num_blocks=count,
        block_size=length,
        bytes_per_block=one,
        groups=(group,),
        blocks_per_sequence=1,
        tokens=count * length,
        max_concurrency=float(count),
        max_model_len=length,
        fits=fits,
        error=None if fits else misfit,
        terms=(
            Term(
                name="states of a sequence",
                value=one,
                unit="B",
                formula=f"{len(held)} layers, one GPU = {one:,} B",
                source=_SOURCE,
            ),
        ),
        usable_blocks=count,
        max_num_seqs=batch,
        blocks_held=lambda context: 1,
    )
