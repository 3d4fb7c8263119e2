"""Layers that keep a state instead of a cache: Mamba, Mamba 2, gated delta, short convolutions.

Source: llama.cpp's src/models/mamba-base.cpp, delta-net-base.cpp, qwen35.cpp, lfm2.cpp
and llama-graph.cpp (build_rs), b11549.
"""

from __future__ import annotations

import math

from kvproof.engine.llamacpp.graph.blocks import Blocks
from kvproof.engine.llamacpp.graph.shape import Mixer
from kvproof.engine.llamacpp.graph.tensors import Tensor

_F32 = 4


def mixed(blocks: Blocks, mixer: Mixer, normed: Tensor) -> Tensor:
    """What a layer's mixer adds to the residual stream."""
    if mixer.kind == "mamba1":
        by_heads = blocks.shape.recipe.scans_heads
        return (_mamba_heads if by_heads else _mamba)(blocks, mixer, normed)
    if mixer.kind == "mamba2":
        return _mamba2(blocks, mixer, normed)
    if mixer.kind == "gdn":
        return _delta(blocks, mixer, normed)
    if mixer.kind in ("kda", "lightning"):
        return (_kimi_delta if mixer.kind == "kda" else _lightning)(blocks, mixer, normed)
    return _short_conv(blocks, mixer, normed)


def _rows(blocks: Blocks) -> Tensor:
    """Which states the batch's sequences read."""
    return blocks.input("states", blocks.shape.sequences)


def _kept(blocks: Blocks, numbers: int) -> Tensor:
    """The states of all sequences, `numbers` each, where they are kept."""
    return blocks.graph.view(blocks.graph.outside(1), numbers * blocks.shape.sequences)


def state(blocks: Blocks, *shape: int) -> Tensor:
    """The sequences' states, copied out of the cache at once."""
    read = blocks.graph.new(
        (*shape, blocks.shape.sequences), (_kept(blocks, math.prod(shape)), _rows(blocks))
    )
    blocks.graph.expand(read)
    return read


def stored(blocks: Blocks, source: Tensor, planes: int = 1, numbers: int = 1) -> None:
    """Copy `numbers` of each sequence's part of `source` back into the cache, for every plane."""
    for _ in range(planes):
        part = blocks.graph.view(source, numbers * blocks.shape.sequences)
        blocks.graph.expand(blocks.graph.view(blocks.graph.outside(1), 1, more=(part,)))


def _split(blocks: Blocks, source: Tensor, *shape: int) -> Tensor:
    """A part of every token's numbers: a view with gaps."""
    return blocks.graph.view(source, *shape, strides=source.strides)


def convolved(blocks: Blocks, mixer: Mixer, before: Tensor, entering: Tensor) -> Tensor:
    """States and new columns behind each other, kept, and the convolution over them."""
    graph, each = blocks.graph, blocks.shape.tokens // blocks.shape.sequences
    sequences, channels = blocks.shape.sequences, mixer.channels
    length = mixer.kernel - 1 + each
    whole = graph.new((length, channels, sequences), (
        graph.view(before, (mixer.kernel - 1) * channels * sequences), entering
    ))  # fmt: skip
    stored(blocks, whole, min(each, mixer.planes), (mixer.kernel - 1) * channels)
    made = graph.new((channels, each, sequences), (whole,))
    made.weight, made.scales = mixer.kernel * channels, True
    return made


def columns(blocks: Blocks, kept: int, channels: int, planes: int, entering: Tensor) -> Tensor:
    """`kept` columns of every sequence and the new ones behind; what is kept is copied first."""
    graph, shape = blocks.graph, blocks.shape
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    before = state(blocks, kept * channels)
    whole = graph.new((kept + each, channels, sequences), (
        graph.view(before, kept * channels * sequences), entering
    ))  # fmt: skip
    for _ in range(planes):
        end = graph.view(whole, kept, channels, sequences, strides=whole.strides)
        stored(blocks, blocks.contiguous(end), numbers=kept * channels)
    return whole


def _scan(blocks: Blocks, scanned: Tensor, elements: int) -> None:
    """Run a scan, copy the states that it did not read, and keep what it ended in."""
    others = blocks.shape.sequences - 1
    blocks.graph.expand(scanned)
    if others:
        rest = blocks.graph.new((elements, others), (_kept(blocks, elements), _rows(blocks)))
        blocks.graph.expand(rest)
        stored(blocks, rest, numbers=elements * others // blocks.shape.sequences)
    stored(blocks, scanned, numbers=elements)


def _mamba2(blocks: Blocks, mixer: Mixer, normed: Tensor) -> Tensor:
    graph, shape = blocks.graph, blocks.shape
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    heads, width, size = mixer.shape
    inner = heads * width
    before = state(blocks, (mixer.kernel - 1) * mixer.channels)
    projected = blocks.matmul(normed, inner + mixer.channels + heads)
    whole = graph.view(projected, projected.shape[0], each, sequences)
    signal = convolved(blocks, mixer, before, _split(blocks, whole, mixer.channels, each))
    values = _split(blocks, signal, width, heads, each, sequences)
    steps = blocks.contiguous(_split(blocks, whole, heads, each, sequences), heads, each, sequences)
    parts = [_split(blocks, signal, size, mixer.groups, each, sequences) for _ in "BC"]
    scanned = graph.new(
        (inner * shape.tokens + mixer.planes * inner * size * sequences,),
        (_kept(blocks, inner * size), values, steps, *parts, _rows(blocks)),
    )
    _scan(blocks, scanned, inner * size)
    gate = blocks.contiguous(_split(blocks, whole, width, heads, each, sequences),
                             width, heads, each, sequences)  # fmt: skip
    out = graph.view(scanned, width, heads, each, sequences)
    direct = graph.new((width, heads, each, sequences), (values,), reuses=True)
    total = graph.new(direct.shape, (out, direct), reuses=True)
    gated = graph.new(total.shape, (gate, total))
    if mixer.normed:
        groups = graph.view(gated, inner // mixer.groups, mixer.groups, each, sequences)
        gated = graph.new(groups.shape, (groups,), reuses=True)
    return blocks.matmul(graph.view(gated, inner, shape.tokens), shape.hidden)


def _mamba(blocks: Blocks, mixer: Mixer, normed: Tensor) -> Tensor:
    graph, shape = blocks.graph, blocks.shape
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    inner, size = mixer.shape[0], mixer.shape[1]
    before = state(blocks, (mixer.kernel - 1) * inner)
    entering = graph.view(normed, normed.shape[0], each, sequences)
    both = blocks.matmul(entering, 2 * inner)
    signal = convolved(blocks, mixer, before, _split(blocks, both, inner, each, sequences))
    parts = blocks.matmul(signal, mixer.rank + 2 * size)
    low = graph.new((mixer.rank, each, sequences), (_split(blocks, parts, 1),), reuses=True)
    steps = blocks.matmul(low, inner)
    pair = [_split(blocks, parts, size, 1, each, sequences) for _ in "BC"]
    if mixer.normed:
        pair = [graph.new(part.shape, (part,), reuses=True) for part in pair]
    scanned = graph.new(
        (inner * shape.tokens + inner * size * sequences,),
        (
            _kept(blocks, inner * size),
            graph.view(signal, 1, inner, each, sequences),
            steps,
            *pair,
            _rows(blocks),
        ),
    )
    _scan(blocks, scanned, inner * size)
    gate = blocks.contiguous(_split(blocks, both, inner, each, sequences), inner, each, sequences)
    out = graph.view(scanned, inner, each, sequences)
    total = graph.new(signal.shape, (out, graph.like(signal)), reuses=True)
    gated = graph.new(total.shape, (gate, total))
    return graph.view(blocks.matmul(gated, shape.hidden), shape.hidden, shape.tokens)


def _mamba_heads(blocks: Blocks, mixer: Mixer, normed: Tensor) -> Tensor:
    """PLaMo 2's: gate and input by head, one step for every head."""
    graph, shape, heads = blocks.graph, blocks.shape, mixer.rank
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    inner, size = mixer.shape[0], mixer.shape[1]
    width = inner // heads
    before = state(blocks, (mixer.kernel - 1) * inner)
    entering = graph.view(normed, normed.shape[0], each, sequences)
    both = graph.view(blocks.matmul(entering, 2 * inner), 2 * inner, sequences, each)
    whole = blocks.contiguous(both, 2 * width, heads, each, sequences)
    values = blocks.contiguous(
        _split(blocks, whole, width, heads, each, sequences), inner, each, sequences
    )
    signal = convolved(blocks, mixer, before, graph.view(values, each, inner, sequences))
    by_head = graph.view(signal, width, heads, each, sequences)
    low = max(_LOWEST_RANK, shape.hidden // _RANK_SHARE)
    parts = blocks.matmul(signal, low + 2 * size)
    steps = graph.new((low, each, sequences), (_split(blocks, parts, low),), reuses=True)
    pair = [
        graph.new((size, each, sequences), (_split(blocks, parts, size),), reuses=True)
        for _ in "BC"
    ]
    views = [graph.view(part, size, 1, each, sequences) for part in pair]
    scanned = graph.new(
        (inner * shape.tokens + inner * size * sequences,),
        (_kept(blocks, inner * size), by_head, blocks.matmul(steps, heads), *views, _rows(blocks)),
    )
    _scan(blocks, scanned, inner * size)
    gate = blocks.contiguous(_split(blocks, whole, width, heads, each, sequences))
    out = graph.view(scanned, width, heads, each, sequences)
    total = graph.new(out.shape, (out, graph.new(by_head.shape, (by_head,))), reuses=True)
    gated = graph.view(graph.new(total.shape, (gate, total)), inner, each, sequences)
    return graph.view(blocks.matmul(gated, shape.hidden), shape.hidden, shape.tokens)


def _lightning(blocks: Blocks, mixer: Mixer, normed: Tensor) -> Tensor:
    """Linear attention with a fixed decay, the batch's own part as a matrix of token by token."""
    graph, shape = blocks.graph, blocks.shape
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    heads, dim = mixer.shape[0], mixer.shape[1]
    by_token = (dim, heads, each, sequences)
    states = (dim, dim, heads, sequences)
    before = graph.view(state(blocks, dim * dim * heads), *states)
    entering = graph.view(normed, normed.shape[0], each, 1, sequences)
    whole = graph.like(blocks.matmul(entering, 3 * heads * dim))
    query, key, value = (_split(blocks, whole, *by_token) for _ in "qkv")
    decayed = graph.new(by_token, (query, _decay(blocks, "queries", 1, heads, each, sequences)))
    turned = graph.view(decayed, dim, each, heads, sequences, strides=decayed.strides)
    earlier = graph.new((dim, each, heads, sequences), (before, turned))
    upright = blocks.contiguous(_split(blocks, value, each, dim, heads, sequences))
    scores = graph.new((each, each, heads, sequences), (key, query))
    scores = graph.like(scores, _decay(blocks, "tokens", each, each, heads, sequences))
    total = graph.like(earlier, graph.new(earlier.shape, (upright, scores)))
    graph.expand(total)
    fading = graph.like(graph.like(blocks.input("slopes", heads)))
    kept = graph.new(states, (before, graph.view(fading, 1, 1, heads)))
    later = graph.new(by_token, (key, _decay(blocks, "keys", 1, heads, each, sequences)))
    flipped = blocks.contiguous(_split(blocks, later, each, dim, heads, sequences))
    later_state = graph.like(kept, graph.new(states, (flipped, upright)))
    stored(blocks, later_state, numbers=dim * dim * heads)
    gate = graph.like(blocks.matmul(entering, heads * dim))
    back = blocks.contiguous(_split(blocks, total, *by_token))
    flat = graph.view(back, heads * dim, each, 1, sequences)
    gated = graph.like(gate, graph.new(flat.shape, (flat,)))
    return graph.view(blocks.matmul(gated, shape.hidden), shape.hidden, shape.tokens)


def _decay(blocks: Blocks, name: str, *dims: int) -> Tensor:
    """An input that every layer scales for itself."""
    return blocks.graph.like(blocks.input(f"decay of {name}", *dims))


_LOWEST_RANK, _RANK_SHARE = 64, 16


def _short_conv(blocks: Blocks, mixer: Mixer, normed: Tensor) -> Tensor:
    graph, shape = blocks.graph, blocks.shape
    sequences, each, width = shape.sequences, shape.tokens // shape.sequences, mixer.channels
    entering = graph.view(normed, normed.shape[0], each, sequences)
    three = blocks.matmul(entering, 3 * width)
    parts = [_split(blocks, three, width, each, sequences) for _ in range(3)]
    before = state(blocks, (mixer.kernel - 1) * width)
    product = graph.new((width, each, sequences), parts[:2], reuses=True)
    signal = convolved(blocks, mixer, before, graph.view(product, each, width, sequences))
    gated = graph.new(signal.shape, (parts[2], signal), reuses=True)
    out = blocks.matmul(gated, shape.hidden)
    return graph.view(out, shape.hidden, shape.tokens)


def _delta(blocks: Blocks, mixer: Mixer, normed: Tensor) -> Tensor:
    """A gated delta rule: queries, keys and values through one convolution, a gated norm after."""
    graph, shape = blocks.graph, blocks.shape
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    heads, key, value = mixer.shape
    graph.expand(normed)
    signal = _delta_signal(blocks, mixer, normed)
    held = state(blocks, heads * key * value)
    query, keys = (_delta_heads(blocks, mixer, signal) for _ in "qk")
    values = _split(blocks, signal, value, heads, each, sequences)
    decay, strength = _delta_gates(blocks, mixer, normed)
    numbers = heads * value * (shape.tokens + mixer.planes * key * sequences)
    inside = graph.view(held, heads * key * value * sequences)
    made = graph.new((numbers,), (query, keys, values, decay, strength, inside))
    stored(blocks, made, numbers=heads * key * value)
    out = graph.view(made, value, heads, each, sequences)
    even = graph.new(out.shape, (out,), reuses=True)
    gate = graph.view(blocks.matmul(normed, heads * value), value, heads, each, sequences)
    product = graph.like(even, graph.new(gate.shape, (gate,), reuses=True))
    flat = graph.view(product, heads * value, each, sequences)
    return graph.view(blocks.matmul(flat, shape.hidden), shape.hidden, shape.tokens)


def _delta_signal(blocks: Blocks, mixer: Mixer, normed: Tensor) -> Tensor:
    """Queries, keys and values through their convolution."""
    graph, shape, channels = blocks.graph, blocks.shape, mixer.channels
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    copies = shape.recipe.streams == "gated"
    before = None if copies else state(blocks, (mixer.kernel - 1) * channels)
    three = graph.view(blocks.matmul(normed, channels), channels, each, sequences)
    entering = graph.view(three, each, channels, sequences)
    if before is not None:
        return convolved(blocks, mixer, before, entering)
    whole = columns(blocks, mixer.kernel - 1, channels, mixer.planes, entering)
    made = graph.new((channels, each, sequences), (whole,))
    made.weight, made.scales = mixer.kernel * channels, True
    return made


def _delta_heads(blocks: Blocks, mixer: Mixer, signal: Tensor) -> Tensor:
    """Normed queries or keys, repeated for the heads of values where the operation does not."""
    graph, shape = blocks.graph, blocks.shape
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    heads, key = mixer.shape[:2]
    part = _split(blocks, signal, key, mixer.groups, each, sequences)
    even = graph.new(part.shape, (part,), reuses=True)
    if not shape.recipe.joined_gates or heads == mixer.groups:
        return even
    repeated = graph.new((key, heads // mixer.groups, mixer.groups, shape.tokens),
                         (graph.view(even, key, 1, mixer.groups, shape.tokens),))  # fmt: skip
    return graph.view(repeated, key, heads, each, sequences)


def _delta_gates(blocks: Blocks, mixer: Mixer, normed: Tensor) -> tuple[Tensor, Tensor]:
    """How much of the state decays, and how much of the new value is written, for every head."""
    graph, shape = blocks.graph, blocks.shape
    sequences, each, heads = shape.sequences, shape.tokens // shape.sequences, mixer.shape[0]
    if shape.recipe.joined_gates:
        both = blocks.matmul(normed, 2 * heads)
        decay, strength = (
            blocks.contiguous(_split(blocks, both, heads, each, sequences), heads, each, sequences)
            for _ in "ab"
        )
        return decay, strength
    made = []
    for _ in "ab":
        flat = graph.view(blocks.matmul(normed, heads), heads, each, sequences)
        made.append(graph.new(flat.shape, (flat,), reuses=True))
    return made[0], made[1]


def _kimi_delta(blocks: Blocks, mixer: Mixer, normed: Tensor) -> Tensor:
    """Kimi's delta attention: a convolution each for queries, keys and values, a decay a number.

    Source: src/models/kimi-linear.cpp and bailingmoe3.cpp, whose gates have no low rank.
    """
    graph, shape = blocks.graph, blocks.shape
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    heads, dim = mixer.shape[0], mixer.shape[2]
    wide, by_head = heads * dim, (dim, heads, each, sequences)
    if shape.recipe.low_gates == "both":
        graph.expand(normed)
    before = state(blocks, (mixer.kernel - 1) * mixer.channels)
    columns = [_kept_columns(blocks, mixer, before, normed) for _ in "qkv"]
    held = state(blocks, wide * dim)
    parts = []
    for name, whole in zip("qkv", columns, strict=True):
        signal = graph.new((wide, each, sequences), (whole,))
        active = graph.new((wide, shape.tokens), (graph.view(signal, wide, shape.tokens),))
        part = graph.view(active, *by_head)
        parts.append(part if name == "v" else graph.new(by_head, (part,), reuses=True))
    low = shape.recipe.low_gates
    decay = _gate(blocks, normed, dim, heads, low=low != "no")
    strength = graph.view(blocks.matmul(normed, heads), 1, heads, each, sequences)
    strength = graph.new(strength.shape, (strength,), reuses=True)
    numbers = wide * (shape.tokens + mixer.planes * dim * sequences)
    made = graph.new((numbers,), (*parts, graph.view(decay, *by_head), strength,
                                  graph.view(held, wide * dim * sequences)))  # fmt: skip
    stored(blocks, made, numbers=wide * dim)
    out = blocks.contiguous(graph.view(made, *by_head), *by_head)
    even = graph.new((dim, heads, shape.tokens), (graph.view(out, dim, heads, shape.tokens),),
                     reuses=True)  # fmt: skip
    product = graph.like(even, _gate(blocks, normed, dim, heads, low=low == "both"))
    return blocks.matmul(blocks.contiguous(product, wide, shape.tokens), shape.hidden)


def _kept_columns(blocks: Blocks, mixer: Mixer, before: Tensor, normed: Tensor) -> Tensor:
    """The last columns of one third of the convolution's state and the batch's behind them."""
    graph, shape = blocks.graph, blocks.shape
    sequences, each = shape.sequences, shape.tokens // shape.sequences
    wide = mixer.channels // 3
    entering = graph.view(blocks.matmul(normed, wide), wide, each, sequences)
    columns = graph.view(entering, each, wide, sequences)
    width = mixer.kernel - 1 + each
    whole = graph.new((width, wide, sequences), (
        graph.view(before, (mixer.kernel - 1) * wide * sequences), columns
    ))  # fmt: skip
    stored(blocks, whole, min(each, mixer.planes), (mixer.kernel - 1) * wide)
    return whole


def _gate(blocks: Blocks, normed: Tensor, dim: int, heads: int, *, low: bool) -> Tensor:
    """A gate for every number of every head, with `low` through a rank of one head's width."""
    flat = blocks.matmul(blocks.matmul(normed, dim) if low else normed, dim * heads)
    shaped = blocks.graph.view(flat, dim, heads, blocks.shape.tokens)
    return blocks.graph.new(shaped.shape, (shaped,), reuses=True)
