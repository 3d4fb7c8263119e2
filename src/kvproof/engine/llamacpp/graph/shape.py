"""What a graph is built from: widths of the model's layers and the batch that is reserved."""

from __future__ import annotations

import msgspec

from kvproof.engine.llamacpp.graph.recipes import Recipe
from kvproof.kinds.elements import element_type

_ROTATED = 64
_QUANTIZED = frozenset({"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"})


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Widths of latent attention and of its indexer (0: none).

    `absorbed`: the latent is what is cached; else every head's keys and values are.
    """

    absorbed: bool
    query_rank: int
    rank: int
    rope: int
    nope: int
    value: int
    index_dim: int = 0
    index_heads: int = 0
    index_top: int = 0


class Pooling(msgspec.Struct, frozen=True, kw_only=True):
    """An indexer that ranks `each` cells together and chooses `top` cells.

    `tail`: cells in no pool are chosen as well. `masked`: an input says which of them hold a token.
    """

    each: int
    dim: int
    heads: int
    top: int
    tail: bool
    masked: bool


class Hashed(msgspec.Struct, frozen=True, kw_only=True):
    """A table of hashed neighbours: rows of a token and their width, and a spread convolution.

    Its `taps` lie `span` tokens apart; `planes` states of it are kept.
    """

    heads: int
    width: int
    taps: int
    span: int
    planes: int


class Mixer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer with a state: its convolution and its recurrence.

    `planes`: states that are kept of each sequence. `normed`: its parts have norms.
    """

    kind: str
    channels: int
    kernel: int
    shape: tuple[int, ...]
    groups: int
    rank: int
    planes: int
    normed: bool


class Compressed(msgspec.Struct, frozen=True, kw_only=True):
    """Compressed attention: one entry for `ratio` tokens (0: a window alone), and its indexer.

    `cells`: compressed entries of one sequence. `planes`: states kept of each sequence.
    `groups`, `rank`: of the output's first weight.
    """

    ratio: int
    cells: int
    planes: int
    query_rank: int
    groups: int
    rank: int
    index_dim: int
    index_heads: int
    index_top: int


class Blockwise(msgspec.Struct, frozen=True, kw_only=True):
    """An indexer that chooses blocks of cells: its widths, and how many blocks of what size."""

    dim: int
    heads: int
    top: int
    block: int


class Wkv(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of RWKV: numbers of a head, kept tokens, and the ranks of its low-rank parts."""

    version: int
    size: int
    shifts: int
    decay: int
    rate: int
    value: int
    gate: int
    extra: int
    leads: bool


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: its heads and widths, which cache it reads, its feed-forward.

    `masked_apart`: its window has a mask of its own, whatever cache it is in. `hashed`: which
    experts a token goes to follows from its number. `stacks`: it adds vectors that came in beside
    the tokens.
    """

    index: int
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    sliding: bool
    stores: bool
    wide: int
    clamped: bool
    routed: bool
    rotates: bool
    latent: Latent | None = None
    mixer: Mixer | None = None
    compressed: Compressed | None = None
    blockwise: Blockwise | None = None
    wkv: Wkv | None = None
    pooled: Pooling | None = None
    neighbours: Hashed | None = None
    masked_apart: bool = False
    hashed: bool = False
    stacks: bool = False
    attends: bool = True


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """Experts of a layer and how they are chosen; a `count` of 0 is a model without.

    `latent`: the width of the space they work in, 0 for the stream's own.
    """

    count: int = 0
    used: int = 0
    width: int = 0
    shared_width: int = 0
    gating: str = "softmax"
    normed: bool = False
    scaled: bool = False
    biased: bool = False
    groups: int = 0
    groups_used: int = 0
    weighs_first: bool = False
    form: str = "gated"
    merged: bool = False
    latent: int = 0
    grouped_count: int = 0
    grouped_width: int = 0


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model and the batch whose graph llama.cpp reserves memory for.

    `ends`: pairs of layers after which memory must be free alike, where repetitions are left out.
    `inputs`: ways into the graph, by build. `checkpoints`: every so many layers the stream is kept.
    `residuals`: streams beside each other. `stacked`: so many layers add vectors of a picture.
    `stream_rank`: the rank of what gates the streams.
    """

    recipe: Recipe
    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    ends: tuple[tuple[int, int], ...]
    experts: Experts
    inputs: str
    indexed_rows: bool
    half_masks: bool
    rotates: bool
    joint_gates: bool
    tokens: int
    outputs: int
    sequences: int
    streams: int
    cells: int
    sliding_cells: int
    windowed: bool
    flash: bool
    k: str
    v: str
    widest_value: int
    position_parts: int
    scaled: bool
    mean_norm: bool
    queries_norm: str
    fused_width: int
    second_norm: bool
    layer_width: int
    layer_count: int
    checkpoints: int
    residuals: int
    stacked: int
    stream_rank: int

    def cells_of(self, layer: Layer) -> int:
        """Cells of one stream of the cache that a layer reads."""
        return self.sliding_cells if layer.sliding else self.cells

    def k_bytes(self, numbers: int) -> int:
        """Bytes of so many numbers in the type of keys."""
        return element_type(self.k).bytes(numbers)

    def rotation(self, layer: Layer) -> tuple[int, int]:
        """Sizes of the matrices that turn keys and values before they are quantized, 0 for none."""
        key = value = 0
        if not self.rotates:
            return key, value
        if self.k in _QUANTIZED and layer.k_dim % _ROTATED == 0:
            key = _ROTATED
            while layer.k_dim % (2 * key) == 0:
                key *= 2
        if self.v in _QUANTIZED and layer.v_dim % _ROTATED == 0:
            value = _ROTATED
        return key, value
