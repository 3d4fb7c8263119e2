"""Which device holds what: layers over GPUs and host by -ngl, --tensor-split and --n-cpu-moe.

Source: llama_model_base::load_tensors (llama-model.cpp, b11549). The input embedding always
stays in host memory; the output counts as one more layer behind the last.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import msgspec

from kvproof.engine.llamacpp.flags import Flags
from kvproof.engine.llamacpp.layout import Piece
from kvproof.engine.llamacpp.overrides import HOST, Override, overridden
from kvproof.errors import UsageError
from kvproof.model.tensors import TensorGroup
from kvproof.model.types import Model
from kvproof.model.weights import stored_bytes


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The device of every layer (HOST or a GPU's number) and of the output behind them."""

    layers: tuple[int, ...]
    output: int
    gpus: int
    experts_on_host: int
    kv_on_host: bool
    sharded: bool
    edges: tuple[float, ...] = ()
    """The cumulated shares of the GPUs, which tensors are split by too."""
    overrides: tuple[Override, ...] = ()
    """Tensors that go elsewhere by name."""

    @property
    def devices(self) -> tuple[int, ...]:
        """GPUs first, the host last."""
        return (*range(self.gpus), HOST)

    @property
    def moves_tensors(self) -> bool:
        """Whether single tensors are not where their layer is."""
        return bool(self.experts_on_host or self.overrides)

    def expert_device(self, layer: int) -> int:
        """The device of a layer's routed experts, overrides aside."""
        return self.layers[layer] if layer >= self.experts_on_host else HOST


def placement(model: Model, flags: Flags, gpus: int) -> Placement:
    """Where `flags` put the layers of `model` on `gpus` GPUs."""
    layers = model.layers
    wanted = layers + 1 if flags.n_gpu_layers is None else flags.n_gpu_layers
    first = max(layers + flags.build.output_first - wanted, 0)
    count = min(wanted, layers + 1) if gpus else 0
    edges = _edges(flags, gpus)
    places = [
        bisect_right(edges, (i - first) / count) if first <= i < first + count else HOST
        for i in range(layers + 1)
    ]
    places = [min(place, gpus - 1) if place != HOST else HOST for place in places]
    if flags.split_mode == "none" and gpus:
        places = [HOST if place == HOST else flags.main_gpu for place in places]
    return Placement(
        layers=tuple(places[:-1]),
        output=places[-1],
        gpus=gpus,
        experts_on_host=layers if flags.cpu_moe else min(flags.n_cpu_moe, layers),
        kv_on_host=not flags.kv_offload,
        sharded=flags.split_mode in ("row", "tensor") and gpus > 1,
        edges=tuple(edges),
        overrides=_checked(flags.override_tensor, gpus),
    )


def _checked(rules: tuple[Override, ...], gpus: int) -> tuple[Override, ...]:
    """The rules, whose GPUs must be there; without a GPU all is on the host."""
    for rule in rules:
        if gpus and rule.device >= gpus:
            raise UsageError(
                f"override_tensor names GPU {rule.device} of {gpus}", hint="count from 0"
            )
    return rules if gpus else ()


def _edges(flags: Flags, gpus: int) -> list[float]:
    """The cumulated shares of the GPUs; without --tensor-split by free memory, here alike."""
    if not gpus:
        return []
    if flags.main_gpu >= gpus:
        raise UsageError(f"main_gpu is {flags.main_gpu} of {gpus} GPUs", hint="count from 0")
    shares = list(flags.tensor_split[:gpus]) + [0.0] * (gpus - len(flags.tensor_split))
    if not any(shares):
        shares = [1.0] * gpus
    whole = sum(shares)
    return [part / whole for part in accumulate(shares)]


def cache_pieces(parts: tuple[Piece, ...], place: Placement) -> dict[int, tuple[Piece, ...]]:
    """The cache's tensors by device: each with its layer, or all in host memory."""
    out: dict[int, list[Piece]] = {device: [] for device in place.devices}
    for piece in parts:
        device = HOST if place.kv_on_host else place.layers[piece.layer]
        out[device].append(piece)
    return {device: tuple(pieces) for device, pieces in out.items()}


def weight_bytes_by_device(model: Model, place: Placement) -> dict[int, int]:
    """Bytes of the weights on each device; a tied embedding lies on the host and at the output."""
    out = dict.fromkeys(place.devices, 0)
    for group in model.tensors:
        _add(out, model, group, place)
    if not model.tensors and model.stored_weight_bytes:
        for layer in place.layers:
            out[layer] += model.stored_weight_bytes // len(place.layers)
    return _spread(out, place) if place.sharded else out


def _add(out: dict[int, int], model: Model, group: TensorGroup, place: Placement) -> None:
    size = stored_bytes(model, group)
    if not group.layers and (moved := overridden(place.overrides, group, None)) is not None:
        out[moved] += size
        return
    if group.role in ("embedding", "position"):
        out[HOST] += size
        if group.tied and place.output != HOST:
            out[place.output] += size
        return
    layers = [layer for layer in group.layers if layer < len(place.layers)]
    if not layers:
        out[place.output] += size
        return
    for layer in layers:
        own = place.expert_device(layer) if group.role == "expert" else place.layers[layer]
        moved = overridden(place.overrides, group, layer)
        out[own if moved is None else moved] += size // len(layers)


def streamed_on_host(model: Model, place: Placement) -> tuple[int, int]:
    """Bytes of host weights that a decode step reads: of routed experts apart, behind the rest."""
    rest = experts = 0
    for group in model.tensors:
        if not model.is_streamed(group):
            continue
        out = dict.fromkeys(place.devices, 0)
        if group.role == "embedding":  # tied: the copy at the output is what is read
            out[place.output] += stored_bytes(model, group)
        else:
            _add(out, model, group, place)
        if group.role == "expert":
            experts += out[HOST]
        else:
            rest += out[HOST]
    return rest, experts


def _spread(out: dict[int, int], place: Placement) -> dict[int, int]:
    """Rows or heads of every tensor over all GPUs, by their shares.

    Source: ggml-cuda.cu (ggml_backend_cuda_split_buffer_type: --tensor-split, else by memory).
    """
    on_gpus = sum(size for device, size in out.items() if device != HOST)
    ends = [round(on_gpus * edge) for edge in place.edges]
    return {
        device: out[HOST] if device == HOST else ends[device] - (ends[device - 1] if device else 0)
        for device in place.devices
    }
