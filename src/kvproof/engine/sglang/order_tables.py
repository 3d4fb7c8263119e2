"""Tables of the order of inputs that stay beside packed experts on AMD's GPUs.

compressed-tensors' experts of four-bit integers are made with four tables: of every input of an
expert its group and its place, for the inputs of gate and up and for those of down. What prepares
them for Marlin puts empty ones in their place; for Triton, on AMD, they are left. Source:
layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa16_moe.py
(CompressedTensorsWNA16TritonMoE), 0.5.9 to 0.5.23. Kimi-K2.5 over eight MI355X: 1.27 GiB each.
"""

from __future__ import annotations

from kvproof.engine.base import Deployment
from kvproof.engine.sglang.flags import Flags
from kvproof.model.quantization import Quantization
from kvproof.model.tensors import TensorGroup
from kvproof.model.types import Model

_ENTRY = 2 * 4
"""A group and a place of 32 bits each."""
_STACKED = 3
"""Dimensions of a layer's experts in one tensor."""


def order_tables(model: Model, deployment: Deployment, flags: Flags) -> int:
    """Bytes of one rank's tables; 0 where no such experts are kept so."""
    gpu, packed = deployment.accelerator, model.quantization
    if gpu is None or gpu.vendor.lower() != "amd" or packed is None:
        return 0
    if packed.method != "compressed-tensors":
        return 0
    total = 0
    for group in model.tensors:
        if group.role == "expert" and len(group.shape) == _STACKED and _packed(packed, group):
            held = sum(flags.layers is None or layer in flags.layers for layer in group.layers)
            total += held * _entries(group, flags) * _ENTRY
    return total


def _packed(packed: Quantization, group: TensorGroup) -> bool:
    scheme = packed.scheme(group.name.replace("{}", str(group.layers[0]), 1))
    return scheme is not None and scheme.name.startswith("int4")


def _entries(group: TensorGroup, flags: Flags) -> int:
    """Inputs of one layer's experts on a rank: of gate and up all, of down the rank's own."""
    experts, _, inputs = group.shape
    replicas = int(flags.get("ep_size", 1))
    own = inputs if "down" not in group.name else -(-inputs * replicas // flags.tp)
    return -(-experts // replicas) * own
