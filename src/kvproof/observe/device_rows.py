"""The compute buffers of GPUs and host, by where a llama.cpp log says that the layers are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.llamacpp.context import Context, context_of
from kvproof.engine.llamacpp.devices import placement
from kvproof.engine.llamacpp.flags import Flags, flags_of
from kvproof.engine.llamacpp.graph import split_bytes
from kvproof.engine.llamacpp.graph.schedule import Where
from kvproof.engine.llamacpp.overrides import HOST
from kvproof.engine.llamacpp.split import where_of
from kvproof.engine.ollama.flags import as_llamacpp
from kvproof.model.gguf_mixes import file_type, mix_of
from kvproof.model.gguf_named import typed
from kvproof.model.types import Model
from kvproof.observe.compare import Comparison, compared
from kvproof.observe.devices import HOSTS, NUMBER, gpus_in_use
from kvproof.observe.figures import Figure, Log

# What logs printed over their graphs: 1.00, and to 1.09 on Vulkan.
_LOW, _HIGH = 0.99, 1.10
# Shares of sixteen bits: q6_K (outputs of most files), and what other types take at least or most.
_USUAL, _TWO_BITS, _FOUR_BITS, _EIGHT_BITS = 210 / 512, 0.13, 0.28, 34 / 64
_BATCHES = (512, 1024, 2048, 4096, 256, 128)
_ROUNDED = 0.0005
_CAUSE = "compute buffers differ by backend and build"


def device_rows(log: Log, model: Model, deployment: Deployment) -> list[Comparison] | None:
    """Compute buffers printed or refused; None where no GPU holds any or the graph is unknown."""
    printed = {
        figure.device: figure
        for name in ("compute_refused", "compute_buffer") for figure in log.all(name)
        if figure.device
    }  # fmt: skip
    gpus = gpus_in_use(log)
    if not printed or not gpus or len({NUMBER.sub("", name) for name in gpus}) > 1:
        return None
    hosts = [name for name in printed if HOSTS.search(name)]
    figures = {number: printed[name] for number, name in enumerate(gpus) if name in printed}
    if hosts:
        figures[HOST] = printed[max(hosts, key=lambda name: printed[name].value)]
    if deployment.engine.name == "ollama":
        deployment = as_llamacpp(deployment, model)
    flags = flags_of(deployment)
    file = _as_file(log, model)
    places = _Places.of(model, file, lambda it: _where(log, it, flags, gpus))
    best = _nearest((_answer(file, context, places)
                     for context in _contexts(log, file, flags)), figures)  # fmt: skip
    if best is None:
        return None
    return [_row(figure, device, best, gpus) for device, figure in figures.items()
            if device in best.sizes]  # fmt: skip


def _as_file(log: Log, model: Model) -> Model:
    """The model with the types of the file that the log names, where only a config is known."""
    kind = file_type(log.model) if log.model and model.source.origin != "gguf" else None
    return model if kind is None else typed(model, kind)


class _Places(msgspec.Struct, frozen=True):
    """Where the parts are, with weights as the file is taken to hold them, and at their bounds."""

    usual: Where
    least: Where
    most: Where

    @classmethod
    def of(cls, model: Model, file: Model, where: Callable[[Model], Where]) -> _Places:
        """A file's own, or one type for all that its name says; of a mix, or nothing, bounds."""
        usual = where(file)
        kind = file.quantization.method if file.quantization and file is not model else None
        alike = kind is not None and not mix_of(kind).rules
        if not usual.weights or alike or (kind is None and model.quantization is not None):
            return cls(usual, usual, usual)
        plain = where(typed(model, "F16"))
        if kind is None:
            return cls(_weighing(plain, _USUAL), _weighing(plain, _FOUR_BITS), plain)
        low = _TWO_BITS if any(digit in kind[:3] for digit in "123") else _FOUR_BITS
        return cls(usual, _weighing(plain, low), _weighing(plain, _EIGHT_BITS))


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by device, their bounds by how many bits a file may have, and the micro-batch."""

    sizes: dict[int, int]
    least: dict[int, int]
    most: dict[int, int]
    batch: int


def _nearest(answers: Iterable[_Answer | None], figures: dict[int, Figure]) -> _Answer | None:
    """The answer nearest to what is printed; one that meets it ends the search."""
    best = None
    for answer in answers:
        if answer is None:
            return None
        if best is None or _distance(answer, figures) < _distance(best, figures):
            best = answer
        if _meets(answer, figures):
            break
    return best


def _meets(answer: _Answer, figures: dict[int, Figure]) -> bool:
    """Whether every printed buffer is the answer's, but for the digits that a log leaves out."""
    return all(
        abs(answer.sizes.get(device, 0) - figure.value) <= _ROUNDED * figure.value
        for device, figure in figures.items()
    )


def _where(log: Log, model: Model, flags: Flags, gpus: list[str]) -> Where:
    """Layers by the shares of the caches' buffers, or by how many are offloaded, as the output."""
    count = model.layers
    moved = log.get("offloaded_layers")
    if moved is not None:
        flags = msgspec.structs.replace(flags, n_gpu_layers=int(moved.value))
    held = {f.device: max(f.value, 0) for f in log.all("kv_buffer") if f.device}
    whole = sum(held.values())
    if whole and moved is not None and moved.value > 1 and all(map(HOSTS.search, held)):
        flags = msgspec.structs.replace(flags, kv_offload=False)  # --no-kv-offload
    place = placement(model, flags, len(gpus))
    layers, output = place.layers, place.output
    if whole and not place.kv_on_host:
        edges, seen = [0], 0.0
        for names in ([n for n in held if HOSTS.search(n)], *([name] for name in gpus)):
            seen += sum(held.get(name, 0.0) for name in names)
            edges.append(round(seen / whole * count))
        layers = tuple(
            device for device, (first, last) in
            enumerate(itertools.pairwise(edges), start=HOST) for _ in range(first, last)
        )  # fmt: skip
        output = len(gpus) - 1
        offloaded, most = log.get("offloaded_layers"), log.get("offloadable_layers")
        partly = offloaded is not None and most is not None and offloaded.value < most.value
        if (partly or HOST in layers) and not flags.build.output_first:
            output = HOST
    where = where_of(model, flags, msgspec.structs.replace(place, layers=layers, output=output))
    copies = log.get("sched_copies")
    if copies is not None or log.get("graph_nodes") is not None:  # which says so where they are
        copied = copies is not None and copies.value > 1
        where = msgspec.structs.replace(where, pipelined=copied)
    return where


def _contexts(log: Log, model: Model, flags: Flags) -> Iterator[Context]:
    """The context with the outputs of a server and of the C API; micro-batches if none is named."""
    named = "ubatch_size" in log.flags or "batch_size" in log.flags
    for batch in (flags.ubatch_size,) if named else _BATCHES:
        one = msgspec.structs.replace(
            flags, ubatch_size=batch, batch_size=max(batch, flags.batch_size)
        )
        yield context_of(model, one)
        yield context_of(model, msgspec.structs.replace(one, n_outputs_max=0))


def _answer(model: Model, context: Context, places: _Places) -> _Answer | None:
    sizes = split_bytes(model, context, places.usual)
    if sizes is None:
        return None
    least = split_bytes(model, context, places.least) or sizes
    most = split_bytes(model, context, places.most) or sizes
    return _Answer(sizes=dict(sizes), least=dict(least), most=dict(most), batch=context.ubatch)


def _weighing(where: Where, share: float) -> Where:
    """The same with weights of `share` of their bytes."""
    return msgspec.structs.replace(where, weights=tuple(
        msgspec.structs.replace(
            table, each=table.each * share, expert=table.expert * share,
            sizes=tuple((count, int(size * share)) for count, size in table.sizes),
        )
        for table in where.weights
    ))  # fmt: skip


def _distance(answer: _Answer, figures: dict[int, Figure]) -> float:
    """How far the printed buffers lie outside the answer's; the host's says most."""
    total = 0.0
    for device, figure in figures.items():
        high, low = answer.most.get(device, 0), answer.least.get(device, 0)
        outside = max(figure.value - high, low - figure.value, 0.0)
        total += outside * (4 if device == HOST else 1) + 1e-3 * abs(
            answer.sizes.get(device, 0) - figure.value
        )
    return total


def _row(figure: Figure, device: int, answer: _Answer, gpus: list[str]) -> Comparison:
    value, least, most = (part[device] for part in (answer.sizes, answer.least, answer.most))
    name = "compute_buffer" if len(gpus) == 1 and device != HOST else (
        f"compute {figure.device}"
    )  # fmt: skip
    return compared(
        figure, value, low=_LOW * least, high=_HIGH * most, exact=False, name=name,
        cause=f"{_CAUSE}; micro-batches of {answer.batch:,} taken",
    )  # fmt: skip
