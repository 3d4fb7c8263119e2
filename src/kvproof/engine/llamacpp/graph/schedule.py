"""How a graph is split over GPUs and host, and what each device's part of it takes.

ggml's scheduler gives every node a device, cuts the graph where the device changes, and copies
what a part reads from elsewhere: inputs, the stream, and weights or caches that stay in host memory
where a large batch is computed on a GPU all the same. Source: ggml-backend.cpp
(ggml_backend_sched_split_graph), ggml-cuda.cu (offload_op), b11549.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvproof.engine.llamacpp.graph.allocator import ALIGNMENT, GPU_ALIGNMENT, Pool, repeats
from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor
from kvproof.engine.llamacpp.overrides import HOST

# GGML_OP_OFFLOAD_MIN_BATCH: fewer rows are computed where the weight lies.
LEAST_BATCH = 32
# GGML_SCHED_MAX_COPIES: inputs are kept so many times where GPUs work on batches in turn.
_COPIES = 4
_ENTRY = -1
"""The layer number of what comes before the first layer."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one layer's tensors by their number of elements.

    `each`: of an element of other tensors; `expert`: of experts'.
    """

    sizes: tuple[tuple[int, int], ...] = ()
    each: float = 2.0
    expert: float = 2.0

    def bytes(self, tensor: Tensor) -> int:
        """Bytes of a node's weight."""
        each = self.expert if tensor.expert else self.each
        return next((size for count, size in self.sizes if count == tensor.weight),
                    int(each * tensor.weight))  # fmt: skip


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """The device of every layer's weights, of its cache and of its experts, and of the output.

    `weights`: of every layer, then of the output. `offloads`: large batches leave the host.
    `pipelined`: GPUs work on several batches in turn. `norms_stay`: norms are on their own layer's
    device. `kv_on_host`: so are all caches, and without flash attention what reads them
    (build_attn_mha, llama-graph.cpp). A dry run, as --fit makes it, forgets both (`norms_stay`).
    """

    layers: tuple[int, ...]
    caches: tuple[int, ...]
    experts: tuple[int, ...]
    output: int
    gpus: int
    weights: tuple[Weights, ...] = ()
    offloads: bool = True
    pipelined: bool = False
    kv_on_host: bool = False
    norms_stay: bool = True

    @property
    def whole(self) -> bool:
        """Whether no layer and no output stays on the host."""
        return HOST not in (*self.layers, self.output)

    @property
    def several(self) -> bool:
        """Whether more than one device computes a part of the graph."""
        places = (*self.layers, *self.caches, *self.experts, self.output)
        return len(set(places)) > 1 or HOST in places

    def mark(self, layer: int) -> tuple[int, ...]:
        """What tells the devices of a layer from those of another."""
        return self.layers[layer], self.caches[layer], self.experts[layer]

    def device(self, tensor: Tensor) -> int:
        """The device of a node's weight."""
        if tensor.layer == _ENTRY:
            return HOST
        if tensor.layer >= len(self.layers):
            return self.output
        return (self.experts if tensor.expert else self.layers)[tensor.layer]

    def size(self, tensor: Tensor) -> int:
        """Bytes of a node's weight."""
        layer = min(tensor.layer, len(self.layers))
        return self.weights[layer].bytes(tensor) if self.weights else 2 * tensor.weight


def device_bytes(
    graph: Graph, where: Where, tokens: int, ends: Iterable[tuple[int, int]] = ()
) -> dict[int, int] | None:
    """Bytes of every device's compute buffer for `graph`, a batch of `tokens`.

    None where memory is not free alike after both layers of a pair of `ends`.
    """
    _assign(graph, where, tokens)
    pools = {device: Pool(ALIGNMENT if device == HOST else GPU_ALIGNMENT)
             for device in (*range(where.gpus), HOST)}  # fmt: skip
    plan = _Plan(graph, where)
    if not repeats(plan.leaves, plan.nodes, pools, ends):
        return None
    return {device: pool.peak for device, pool in pools.items()}


def _assign(graph: Graph, where: Where, tokens: int) -> None:
    """A device for every tensor."""
    for leaf in graph.leaves:
        leaf.device = None if leaf.blank else HOST
    forced = where.norms_stay and (where.whole or tokens < LEAST_BATCH)
    for node in graph.nodes:
        node.device = _wanted(node, where, forced)
    work = [node for node in graph.nodes if not _shows(node)]
    for host_too in (False, True):
        _spread(work, host_too=host_too)
        _spread(reversed(work), host_too=host_too)
    for node in graph.nodes:
        _settle(node)


def _wanted(node: Tensor, where: Where, forced: bool) -> int | None:
    """The device that a node's weight, cache or name asks for; None for any."""
    if node.base is not None and node.base.outside:
        return where.caches[node.layer]
    if node.looks_up or (node.beside_cache and where.kv_on_host and where.norms_stay):
        return HOST
    if node.weight:
        device = where.device(node)
        if device == HOST and where.offloads and where.gpus and _rows(node) >= LEAST_BATCH:
            return 0
        return device
    if node.normed and forced and 0 <= node.layer < len(where.layers):
        return where.layers[node.layer]
    return None


def _rows(node: Tensor) -> int:
    """Rows of a batch as offloading counts them."""
    if node.expert:
        return node.shape[2]
    return node.shape[1] * (node.shape[2] * node.shape[3] if node.scales else 1)


def _shows(node: Tensor) -> bool:
    """Whether a node only shows another tensor's memory."""
    return node.base is not None and len(node.sources) == 1


def _spread(nodes: Iterable[Tensor], *, host_too: bool) -> None:
    """Give nodes without a device that of the node before them."""
    device: int | None = None
    for node in nodes:
        if node.device is None:
            node.device = device
        else:
            device = None if node.device == HOST and not host_too else node.device


def _settle(node: Tensor) -> None:
    """Views are where what they show is; sources without a device where they are read."""
    if node.device is None and node.base is not None:
        node.device = node.base.device
    for source in node.sources:
        if source.device is None:
            source.device = source.base.device if source.base is not None else node.device
    if node.device is None:
        node.device = 0


class _Plan:
    """The graph with its copies: leaves, and nodes in the order in which memory is given."""

    def __init__(self, graph: Graph, where: Where) -> None:
        self.where, self.nodes = where, list[Tensor]()
        self.copies: dict[tuple[int, int], Tensor] = {}
        self.split: list[Tensor] = []
        self.start = self.inputs = 0
        self.turns: list[Tensor] = []
        self.current: int | None = None
        for node in graph.nodes:
            if not _shows(node):
                self._add(node)
            self.split.append(node)
        self._close()
        self.leaves = [*self.turns, *graph.leaves]
        if where.pipelined:
            inputs = [leaf for leaf in graph.leaves if not (leaf.outside or leaf.blank)]
            for leaf in inputs:
                leaf.kept = True
            kept = [_like(leaf, HOST, kept=True) for leaf in inputs if not leaf.unread
                    for _ in range(_COPIES - 1)]  # fmt: skip
            self.leaves = [*kept, *inputs, *self.turns, *graph.leaves]

    def _close(self) -> None:
        self.nodes += self.split
        self.split, self.inputs = [], 0

    def _add(self, node: Tensor) -> None:
        """Start a new part where the device changes, or where another weight is brought in."""
        device = node.device if node.device is not None else HOST
        away = node.weight and not node.looks_up and self.where.device(node) != device
        if device != self.current or (away and self.inputs):
            if self.current is not None:
                self._close()
            self.current = device
        sources = [self._here(source, device) for source in node.sources]
        if away:
            made = _sized(self.where.size(node), device)
            self._bring(made, None)
            sources.insert(0, made)
        node.sources = tuple(sources)

    def _here(self, source: Tensor, device: int) -> Tensor:
        """A source, or its copy on the device that reads it."""
        if source.device == device or (source.outside and not source.size):
            return source
        key = (id(source), device)
        if key not in self.copies:
            made = _like(source, device, kept=self.where.pipelined)
            self.copies[key] = made
            self._bring(made, source)
        return self.copies[key]

    def _bring(self, made: Tensor, source: Tensor | None) -> None:
        """Hold the source until the part starts, and the copy from then on."""
        self.inputs += 1
        if source is not None:
            reader = Tensor(source.shape, source.strides, (source,), size=0)
            reader.base, reader.waits = source.base or source, True
            reader.device = source.device
            self.nodes.append(reader)
        if self.where.pipelined:
            made.kept = True
            extra = [_like(made, made.device, kept=True) for _ in range(_COPIES - 1)]
            self.turns += [made, *extra]
        self.nodes.append(made)


def _like(source: Tensor, device: int | None, *, kept: bool = False) -> Tensor:
    made = Tensor(source.shape, source.strides, (), size=source.size or source.shown)
    made.device, made.kept = device, kept
    return made


def _sized(size: int, device: int) -> Tensor:
    made = Tensor((size, 1, 1, 1), (1, size, size, size), (), size=size)
    made.device = device
    return made
