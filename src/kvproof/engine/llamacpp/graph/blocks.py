"""The building blocks of llama.cpp's graphs: norms, projections, attention, feed-forward, experts.

Element-wise steps that always work in place (biases, weights of norms, scales) take no memory and
are left out. Source: llama-graph.cpp, llama-kv-cache.cpp, b11549.
"""

from __future__ import annotations

from kvproof.engine.llamacpp.graph.pools import Pools
from kvproof.engine.llamacpp.graph.shape import Layer, Shape
from kvproof.engine.llamacpp.graph.tensors import Graph, Tensor
from kvproof.kinds.elements import element_type

_F16, _F32, _I32, _I64 = 2, 4, 4, 8
_NORMED = 2  # queries and keys


class Blocks:
    """Builds one graph; every method returns the tensor it ends in."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.graph = shape, Graph()
        self.inputs: dict[str, Tensor] = {}
        self.chosen: Tensor | None = None  # cells that the last indexer chose
        self.entering: Tensor
        self.pools: Pools | None = None  # of cells that an indexer ranks together
        self.normed_by_rows = not shape.mean_norm

    # inputs

    def input(self, name: str, *shape: int, element: int = _F32) -> Tensor:
        """An input that several layers read; made once."""
        if name not in self.inputs:
            self.inputs[name] = self.graph.input(*shape, element=element)
        return self.inputs[name]

    def embedding(self) -> Tensor:
        """Rows of the token table, beside the ways in for vectors and for both mixed."""
        graph, tokens, shape = self.graph, self.shape.tokens, self.shape
        width = shape.hidden * (1 + shape.stacked)
        rows = (width, tokens)
        chosen = self.looked_up(shape.hidden, self.token_numbers())
        mixed = self.looked_up(shape.hidden, graph.input(tokens, element=_I32))
        graph.expand(chosen)
        if shape.inputs == "mixed":
            graph.expand(mixed)
        if shape.stacked:  # vectors of a picture carry more; a table's rows are filled up
            chosen, mixed = graph.new(rows, (chosen,)), graph.new(rows, (mixed,))
            graph.expand(chosen)
        if shape.inputs != "tokens":
            vectors = graph.input(*rows)
            vectors.unread = shape.inputs == "either"
            graph.expand(vectors)
        if shape.inputs == "mixed":
            graph.expand(mixed)
            slots = graph.input(tokens, element=_I64)
            graph.expand(slots)
            copied = graph.new(rows, (graph.input(*rows),))
            graph.expand(graph.view(copied, *rows, more=(mixed, slots)))
        self.entering = chosen
        return self.stacked_part() if shape.stacked else chosen

    def stacked_part(self) -> Tensor:
        """One layer's part of the vectors that came in."""
        entering, hidden = self.entering, self.shape.hidden
        return self.graph.view(entering, hidden, self.shape.tokens, strides=entering.strides)

    def looked_up(self, width: int, numbers: Tensor) -> Tensor:
        """Rows of a table by their numbers; such tables stay on the host."""
        made = self.graph.new((width, self.shape.tokens), (numbers,))
        made.looks_up = True
        return made

    def token_numbers(self) -> Tensor:
        """The number of every token."""
        return self.input("tokens", self.shape.tokens, element=_I32)

    def positions(self) -> Tensor:
        """Position of every token (several, where the positions have parts)."""
        return self.input("positions", self.shape.tokens * self.shape.position_parts, element=_I32)

    def chosen_rows(self, tensor: Tensor) -> Tensor:
        """The rows of the tokens that have an output."""
        rows = self.input("outputs", self.shape.outputs, element=_I32)
        return self.graph.new((tensor.shape[0], self.shape.outputs), (tensor, rows))

    def mask(self, layer: Layer) -> Tensor:
        """The mask of a layer's cache."""
        shape = self.shape
        dims = (shape.cells_of(layer), shape.tokens // shape.streams, 1, shape.streams)
        name = f"mask {layer.masked_apart}"
        if not shape.flash or shape.half_masks:
            return self.input(name, *dims, element=_F16 if shape.flash else _F32)
        if name not in self.inputs:
            self.inputs[name] = self.graph.new(dims, (self.graph.input(*dims),), element=_F16)
        return self.inputs[name]

    # plain operations

    def norm(self, tensor: Tensor) -> Tensor:
        """A norm by rows may work in place, one with a mean may not; weights and bias follow."""
        if self.normed_by_rows:
            return self.rms_norm(tensor)
        return self._weighed(self.graph.new(tensor.shape, (tensor,)))

    def rms_norm(self, tensor: Tensor) -> Tensor:
        """Root-mean-square norm, its weight multiplied in place."""
        return self._weighed(self.graph.like(tensor))

    def _weighed(self, tensor: Tensor) -> Tensor:
        """A norm times its weight."""
        tensor.normed = True
        made = self.graph.like(tensor)
        made.weight, made.scales = tensor.shape[0], True
        return made

    def matmul(self, tensor: Tensor, width: int) -> Tensor:
        """Every row of `tensor` through a weight of `width` outputs."""
        made = self.graph.new((width, *tensor.shape[1:]), (tensor,))
        made.weight = width * tensor.shape[0]
        return made

    def add(self, tensor: Tensor, other: Tensor) -> Tensor:
        """The sum, in place of whichever nobody else reads."""
        return self.graph.like(tensor, other)

    def contiguous(self, tensor: Tensor, *shape: int) -> Tensor:
        """A copy without gaps."""
        return self.graph.new(shape or tensor.shape, (tensor,))

    def rope(self, tensor: Tensor) -> Tensor:
        """Rotated by position."""
        return self.graph.like(tensor, self.positions())

    # attention

    def heads_of(self, tensor: Tensor, layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a layer, by head."""
        tokens = self.shape.tokens
        widths = ((layer.k_dim, layer.heads), (layer.k_dim, layer.kv_heads),
                  (layer.v_dim, layer.kv_heads))  # fmt: skip
        total, made = self.shape.fused_width, []
        norm_rows = self.shape.queries_norm == "row"
        if total:
            whole = self.matmul(tensor, total)
            made = [
                self.graph.view(whole, dim, heads, tokens, strides=(
                    _F32, dim * _F32, total * _F32, total * tokens * _F32))
                for dim, heads in widths
            ]  # fmt: skip
            if norm_rows:
                made = [*map(self._normed_row, made[:_NORMED]), made[_NORMED]]
            return made[0], made[1], made[2]
        for index, (dim, heads) in enumerate(widths):
            current = self.matmul(tensor, dim * heads)
            if norm_rows and index < _NORMED:
                current = self.norm(current)
            made.append(self.graph.view(current, dim, heads, tokens))
        return made[0], made[1], made[2]

    def _normed_row(self, heads: Tensor) -> Tensor:
        """All heads of a token normed together."""
        flat = self.graph.view(heads, heads.shape[0] * heads.shape[1], heads.shape[2])
        return self.graph.view(self.norm(flat), *heads.shape)

    def attention(
        self, layer: Layer, query: Tensor, key: Tensor | None, value: Tensor | None, *,
        project: bool = True, mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Store keys and values, attend to the cache, and project the result.

        `mask`: another than the layer's own.
        """
        graph, shape = self.graph, self.shape
        turned_key, turned_value = shape.rotation(layer)
        if turned_key:
            query = self.rotate(query, f"key rotation {layer.sliding}", turned_key)
            key = self.rotate(key, f"key rotation {layer.sliding}", turned_key) if key else None
        if turned_value and value is not None:
            value = self.rotate(value, f"value rotation {layer.sliding}", turned_value)
        order = (query, key, value) if shape.windowed else (query, value, key)
        for tensor in order:
            if tensor is not None:
                graph.expand(tensor)
        self.store(layer, key, value)
        current = self.attend(layer, query, mask or self.mask(layer))
        if turned_value:
            current = self.rotate(current, f"value rotation {layer.sliding}", turned_value)
        if not project:
            return current
        if shape.recipe.inner_norms:
            current = self.norm(current)
        return self.matmul(current, shape.hidden)

    def rotate(self, tensor: Tensor, name: str, size: int) -> Tensor:
        """Multiplied by a Hadamard matrix, which spreads outliers before quantizing."""
        matrix = self.input(f"{name} {size}", size, size)
        count = tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3] // size
        plain = tensor.strides[1:3] == (
            tensor.shape[0] * _F32, tensor.shape[0] * tensor.shape[1] * _F32
        )  # fmt: skip
        flat = self.graph.view(tensor, size, count) if plain else self.contiguous(
            tensor, size, count
        )  # fmt: skip
        turned = self.graph.new((size, count), (matrix, flat))
        return self.graph.view(turned, *tensor.shape)

    def store(self, layer: Layer, key: Tensor | None, value: Tensor | None) -> None:
        """Copy the batch's keys and values into the cache."""
        graph, shape = self.graph, self.shape
        tokens, kind = shape.tokens, layer.sliding
        if key is not None:
            flat = graph.view(key, key.shape[0] * key.shape[1], tokens)
            self._into_cells(flat, f"key rows {kind}", tokens)
        if value is None:
            return
        width = value.shape[0] * value.shape[1]
        if shape.flash:
            flat, count = graph.view(value, width, tokens), tokens
        else:
            plain = value.strides[2] == width * _F32
            flat = graph.view(value, width, tokens) if plain else self.contiguous(
                value, width, tokens
            )  # fmt: skip
            if width < shape.widest_value:
                flat = graph.new((shape.widest_value, tokens), (flat,))
            count = tokens * shape.widest_value
            flat = graph.view(flat, 1, count)
        self._into_cells(flat, f"value rows {kind}", count)

    def _into_cells(self, source: Tensor, name: str, count: int) -> None:
        """Rows of `source` to their cells: by a list of `count` numbers, or a plain copy."""
        rows = (self.input(name, count, element=_I64),) if self.shape.indexed_rows else ()
        cells = self.graph.view(self.graph.outside(1), 1, more=(source, *rows))
        self.graph.expand(cells)

    def cached(self, kind: str, numbers: int) -> Tensor:
        """So many numbers of a layer's cache, as they are read."""
        return self.graph.view(self.graph.outside(1, element=1), element_type(kind).bytes(numbers))

    def attend(self, layer: Layer, query: Tensor, mask: Tensor) -> Tensor:
        """Attention over all cells of a layer's cache."""
        graph, shape = self.graph, self.shape
        streams, tokens, cells = shape.streams, shape.tokens, shape.cells_of(layer)
        each = tokens // streams
        dim, heads = query.shape[0], query.shape[1]
        split = graph.view(query, dim, heads, each, streams, strides=query.strides)
        turned = graph.view(split, dim, each, heads, streams, strides=query.strides)
        keys = self.cached(shape.k, layer.k_dim * layer.kv_heads * cells * streams)
        values = self.cached(shape.v, layer.v_dim * layer.kv_heads * cells * streams)
        if shape.flash:
            reads = [turned]
            for type_, width, cache in ((shape.k, layer.k_dim, keys),
                                        (shape.v, layer.v_dim, values)):  # fmt: skip
                if type_ == "f32":
                    whole = (width, cells, layer.kv_heads, streams)
                    reads.append(graph.new(whole, (cache,), element=_F16))
                else:
                    reads.append(cache)
            made = graph.new((layer.v_dim, heads, each, streams), (*reads, mask))
            current = graph.view(made, layer.v_dim * heads, tokens)
        else:
            scores = graph.new((cells, each, heads, streams), (keys, turned))
            soft = graph.like(scores, mask)
            made = graph.new((layer.v_dim, each, heads, streams), (values, soft))
            permuted = graph.view(made, layer.v_dim, heads, each, streams, strides=made.strides)
            current = self.contiguous(permuted, layer.v_dim * heads, tokens)
            current.beside_cache = True
        graph.expand(current)
        return current

    # feed-forward

    def feed_forward(self, tensor: Tensor, width: int, form: str, out: int = 0) -> Tensor:
        """Gate and up and their product ("gated"), up alone ("plain") or both in one ("fused")."""
        if form == "gated" and not self.shape.joint_gates:
            form = "product"
        if form == "plain":
            inner = self.matmul(tensor, width)
        elif form == "fused":
            both = self.matmul(tensor, 2 * width)
            inner = self.graph.new((width, *tensor.shape[1:]), (both,))
        elif form == "closed":
            inner = self.closed(self.matmul(tensor, width), self.matmul(tensor, width))
        elif form == "product":  # activation in place, then multiplied in place
            gate = self.graph.like(self.matmul(tensor, width))
            inner = self.graph.like(gate, self.matmul(tensor, width))
        else:
            gate, up = self.matmul(tensor, width), self.matmul(tensor, width)
            inner = self.graph.new(up.shape, (gate, up))
        if self.shape.recipe.inner_norms:
            inner = self.norm(inner)
        return self.matmul(inner, out or self.shape.hidden)

    def closed(self, gate: Tensor, up: Tensor) -> Tensor:
        """Gate, times a sigmoid of itself, times up, both bent towards bounds (SiTU)."""
        bent = self.graph.like(gate)
        return self.graph.like(self.graph.like(bent, self.graph.like(gate)), up)

    def routed(
        self, tensor: Tensor, logits: Tensor | None = None, *, grouped: bool = False,
        clamped: bool = False, hashed: bool = False,
    ) -> Tensor:  # fmt: skip
        """The chosen experts of every token, added up; `logits`: the router's, made before."""
        graph, experts, tokens = self.graph, self.shape.experts, tensor.shape[1]
        used, hidden = experts.used, tensor.shape[0]
        width = experts.grouped_width if grouped else experts.width
        logits = logits or self.matmul(tensor, experts.count)
        chosen, weights = self.route(logits, tokens, grouped=grouped, hashed=hashed)
        graph.expand(weights)
        current = graph.view(tensor, hidden, 1, tokens)
        if experts.weighs_first:
            repeated = graph.new((hidden, used, tokens), (current,))
            current = graph.like(repeated, weights)
        inner = self.inside_experts(current, width, chosen, clamped=clamped)
        made = self.through_experts(inner, hidden, chosen, scaled=self.shape.scaled)
        if not experts.weighs_first:
            made = graph.like(made, weights)
        graph.expand(made)
        return self.added_up(made)

    def inside_experts(
        self, tensor: Tensor, width: int, chosen: Tensor, *, clamped: bool
    ) -> Tensor:
        """Gate times up of every chosen expert."""
        graph, experts, scaled = self.graph, self.shape.experts, self.shape.scaled
        if experts.merged:
            both = self.through_experts(tensor, 2 * width, chosen)
            halves = [graph.view(both, width, *both.shape[1:3], strides=both.strides) for _ in "gu"]
            return graph.new(halves[0].shape, halves)
        up = self.through_experts(tensor, width, chosen, scaled=scaled)
        if experts.form == "plain":
            return up
        gate = self.through_experts(tensor, width, chosen, scaled=scaled)
        if experts.form == "closed":
            return self.closed(gate, up)
        if clamped or not self.shape.joint_gates:
            return graph.like(graph.like(gate), graph.like(up))
        return graph.new(up.shape, (gate, up))

    def added_up(self, made: Tensor) -> Tensor:
        """The sum over a token's experts."""
        graph, (hidden, used, tokens, _) = self.graph, made.shape
        row = hidden * used * _F32
        strides = (_F32, row, row * tokens, row * tokens)
        views = [graph.view(made, hidden, tokens, strides=strides) for _ in range(used)]
        for view in views:
            graph.expand(view)
        total = views[0]
        for view in views[1:]:
            total = graph.like(total, view)
            graph.expand(total)
        return self.contiguous(total) if used == 1 else total

    def through_experts(
        self, tensor: Tensor, width: int, chosen: Tensor, *, scaled: bool = False
    ) -> Tensor:
        """Each token's rows through the weights of its experts."""
        graph, experts = self.graph, self.shape.experts
        tokens = tensor.shape[2]
        made = graph.new((width, experts.used, tokens), (tensor, chosen))
        made.weight, made.expert = width * tensor.shape[0] * experts.count, True
        if not scaled:
            return made
        scales = graph.new((1, experts.count, tokens), (graph.view(graph.outside(1), 1),))
        return graph.like(made, graph.new((1, experts.used, tokens), (scales, chosen)))

    def route(
        self, logits: Tensor, tokens: int, *, grouped: bool = False, hashed: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Which experts every token goes to, and with what weights."""
        graph, experts = self.graph, self.shape.experts
        count, used = experts.count, experts.used
        probabilities = logits if experts.gating == "late" else graph.like(logits)
        if hashed:
            chosen = graph.new((used, tokens), (self.token_numbers(),), element=_I32)
        else:
            chosen = self.ranked(probabilities, tokens)
        if grouped:  # the group of each chosen expert: converted, divided, converted back
            single = graph.like(graph.new(chosen.shape, (chosen,)))
            chosen = graph.new(chosen.shape, (single,))
        rows = graph.view(probabilities, 1, count, tokens)
        weights = graph.new((1, used, tokens), (rows, chosen))
        if experts.gating == "late":
            soft = graph.like(graph.view(weights, used, tokens))
            weights = graph.view(soft, 1, used, tokens)
        if experts.normed:
            flat = graph.view(weights, used, tokens)
            total = graph.like(graph.new((1, tokens), (flat,)))
            weights = graph.view(graph.like(flat, total), 1, used, tokens)
        if experts.scaled:
            weights = graph.like(weights)
        return chosen, weights

    def ranked(self, probabilities: Tensor, tokens: int) -> Tensor:
        """The experts that rank first."""
        graph, experts = self.graph, self.shape.experts
        count = experts.count
        selection = graph.like(probabilities) if experts.biased else probabilities
        if experts.groups > 1:
            selection = self.by_groups(selection, tokens)
        order = graph.new((count, tokens), (selection,), element=_I32)
        return graph.view(order, experts.used, tokens, strides=(
            _I32, count * _I32, count * tokens * _I32, count * tokens * _I32))  # fmt: skip

    def by_groups(self, selection: Tensor, tokens: int) -> Tensor:
        """Only the best groups of experts stay in the choice."""
        graph, experts = self.graph, self.shape.experts
        groups, each = experts.groups, experts.count // experts.groups
        grouped = graph.view(selection, each, groups, tokens)
        order = graph.new((each, groups, tokens), (grouped,), element=_I32)
        two = graph.view(order, 2, groups, tokens)
        best = graph.new(
            (1, 2, groups, tokens), (graph.view(grouped, 1, each, groups, tokens), two)
        )
        summed = graph.new((1, groups, tokens), (graph.view(best, 2, groups, tokens),))
        ranks = graph.new((groups, tokens), (graph.view(summed, groups, tokens),), element=_I32)
        kept = graph.view(ranks, experts.groups_used, tokens)
        rows = graph.new((each, experts.groups_used, tokens), (grouped, kept))
        blank = graph.like(grouped)
        masked = graph.view(blank, each, groups, tokens, more=(rows, kept))
        return graph.view(masked, experts.count, tokens)
