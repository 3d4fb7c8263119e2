"""From a model's slots to specs: one for every cache that a rank keeps.

Source: vLLM 0.32, get_kv_cache_spec of model_executor/layers/attention/** and
model_executor/layers/mamba/**; heads that tensor parallelism can't split are replicated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from kvproof.engine.vllm.backend_types import Backend
from kvproof.engine.vllm.backends import M3_SPARSE
from kvproof.engine.vllm.compressed import check_rows, compressed_specs, is_v4
from kvproof.engine.vllm.convolved import convolution_spec
from kvproof.engine.vllm.pooled import is_pooled, pooled_specs
from kvproof.engine.vllm.rows import (
    indexer_row,
    is_whole,
    latent_row,
    pair_row,
    picks_blocks,
    stored_as,
)
from kvproof.engine.vllm.settings import (
    Settings,
    has_states,
    is_inkling,
    keeps_latent,
)
from kvproof.engine.vllm.specs import Spec
from kvproof.engine.vllm.states import (
    block_alone,
    checkpoint_blocks,
    is_ngram,
    state_bytes,
    state_sets,
)
from kvproof.engine.vllm.types import Layer
from kvproof.errors import UsageError
from kvproof.kinds import (
    ChunkedSlot,
    CompressedSlot,
    ConvSlot,
    CrossSlot,
    FullSlot,
    IndexerSlot,
    LatentSlot,
    RecurrentSlot,
    SharedSlot,
    SlidingSlot,
    Slot,
)
from kvproof.model.types import Model

_WINDOWLESS = ("Qwen2MoeForCausalLM", "ZayaForCausalLM")
"""Classes that keep every layer at full length (models/qwen2_moe.py; the Transformers backend)."""
_AUTO = "auto"
_NUMBERED_ANEW = ("Exaone4_5", "ExaoneMoE", "ExaoneMoe")
"""Classes whose modules are numbered from 0, so that they attend as the first layers do, and are
made without the cache's settings (models/exaone4_5_mtp.py, exaone_moe_mtp.py)."""
_SLIDING_MODULES = ("MiMoV2",)
"""Classes whose modules slide (models/mimo_v2_mtp.py, 0.32)."""


Picked = tuple[int, int, bool]
"""What layers of one model differ in when they pick a backend: widths, and whether they are
skipped when the cache is quantized."""


def picked_by(slot: Slot, *, skipped: bool) -> Picked:
    """What the layer's choice of a backend depends on."""
    widths = (slot.k_dim, slot.v_dim) if isinstance(slot, FullSlot) else (0, 0)
    return (*widths, skipped)


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """The block size that was settled on, and what it brings along."""

    size: int
    backend: Backend
    state_size: int = 0
    state_page: int | None = None
    draft_backend: Backend | None = None
    """The backend of a draft model's own layers."""
    shared_page: int | None = None
    """The page that sliding layers are padded to where layers keep different types."""
    others: Mapping[Picked, Backend] = {}
    """The backends of layers that pick another than the model's first does."""

    def backend_of(self, slot: Slot, *, skipped: bool = False) -> Backend:
        """The backend that a layer picks for itself, with its blocks."""
        return self.others.get(picked_by(slot, skipped=skipped), self.backend)


def make_layers(model: Model, settings: Settings, blocks: Blocks) -> tuple[Layer, ...]:
    """Every layer's caches on one tensor-parallel rank, in the order vLLM registers them."""
    out: list[Layer] = []
    for index, slots in _by_layer(model):
        out += _layer(model, settings, blocks, index, slots)
    if model.model_type.startswith("zamba2"):  # shared blocks first (models/zamba2.py)
        out.sort(key=lambda layer: layer.spec.kind == "state")
    drafts = _draft_layers(model, settings, blocks)
    _check_numbers(model, settings, out, drafts)
    alone = settings.stages > 1 and settings.rules.block_by_backend and has_states(model)
    return _alone(model, settings, out + drafts) if alone else tuple(out + drafts)


def _alone(model: Model, settings: Settings, layers: list[Layer]) -> tuple[Layer, ...]:
    """The layers with those of stages that hold states only as their ranks ask for them.

    A rank without attention has no backend to grow its block for: its states keep the block
    that was set before the model was loaded, and a page of their own size.
    Source: vLLM 0.32, platforms/interface.py (update_block_size_for_backend, in each worker).
    """
    size = block_alone(settings)
    attended = {layer.index for layer in layers if layer.spec.kind != "state"}
    own = {
        index
        for part in stage_layers(model, settings.stages)
        if attended.isdisjoint(part)
        for index in part
    }
    return tuple(
        msgspec.structs.replace(
            layer, spec=msgspec.structs.replace(layer.spec, block_size=size, padded_bytes=None)
        )
        if layer.index in own
        else layer
        for layer in layers
    )


def _by_layer(model: Model) -> Iterator[tuple[int, list[Slot]]]:
    by_index: dict[int, list[Slot]] = {}
    for slot in model.slots:
        by_index.setdefault(slot.layer, []).append(slot)
    yield from sorted(by_index.items())


def _layer(
    model: Model, settings: Settings, blocks: Blocks, index: int, slots: list[Slot], before: int = 0
) -> list[Layer]:
    """The caches of one layer, which counts the `before` layers of another model too."""
    out: list[Layer] = []
    if is_inkling(model):
        spec = convolution_spec(model, settings, slots)
        out.append(Layer(f"{index}.convolutions", index, spec))
    for slot in sorted(slots, key=lambda s: not isinstance(s, IndexerSlot)):
        if isinstance(slot, ConvSlot | RecurrentSlot | SharedSlot):
            continue
        skipped = is_whole(model, settings, index - before, slot)
        own = msgspec.structs.replace(settings, kv_dtype=_AUTO) if skipped else settings
        backend = blocks.backend_of(slot, skipped=skipped)
        for name, spec in _attention(
            model, own, msgspec.structs.replace(blocks, backend=backend), slot
        ):
            out.append(Layer(f"{index}.{name}", index, spec))
    for states in state_sets(model, slots):
        name = "ngram" if is_ngram(states) else "state"
        out.append(Layer(f"{index}.{name}", index, _state(model, settings, blocks, states)))
    return out


def _attention(
    model: Model, settings: Settings, blocks: Blocks, slot: Slot
) -> list[tuple[str, Spec]]:
    if isinstance(slot, CompressedSlot) or (is_v4(model) and isinstance(slot, SlidingSlot)):
        return compressed_specs(slot, settings)
    if isinstance(slot, LatentSlot):
        return [("latent", _latent(model, settings, blocks, slot))]
    if isinstance(slot, IndexerSlot) and is_pooled(model):
        return pooled_specs(model, settings, slot, blocks.size)
    if isinstance(slot, IndexerSlot):
        row = indexer_row(model, slot)
        return [("indexer", Spec(kind="latent", block_size=blocks.size, row_bytes=row, note="i"))]
    if isinstance(slot, CrossSlot):
        row = pair_row(heads_on(slot.kv_heads, settings.ranks), slot.k_dim, slot.v_dim, settings)
        return [("cross", Spec(kind="cross", block_size=blocks.size, row_bytes=row))]
    if isinstance(slot, FullSlot):
        return [("attention", _pair(model, settings, blocks, slot))]
    return []


def heads_on(heads: int, ranks: int) -> int:
    """KV heads on one rank: split while they last, then replicated."""
    return max(1, heads // ranks)


def _pair(model: Model, settings: Settings, blocks: Blocks, slot: FullSlot) -> Spec:
    every = model.model_type.startswith("zamba2")  # models/zamba2.py: as many as query heads
    heads = heads_on(model.attention_heads if every else slot.kv_heads, settings.ranks)
    backend = M3_SPARSE if picks_blocks(model, slot) else blocks.backend
    packed = backend.packs(settings.kv_dtype)
    row = pair_row(heads, slot.k_dim, slot.v_dim, settings, packed=packed)
    note = f"{heads}x{slot.k_dim}+{slot.v_dim} {stored_as(settings)}{backend.split}"
    base = Spec(kind="full", block_size=blocks.size, row_bytes=row, note=note)
    if isinstance(slot, ChunkedSlot):
        return msgspec.structs.replace(base, kind="chunked", chunk=slot.chunk)
    if not isinstance(slot, SlidingSlot) or _no_window(model, settings, slot):
        return base
    size = blocks.size
    if settings.rules.sliding_own_block and not is_inkling(model):
        size = blocks.backend.largest_within(row, blocks.shared_page or row * blocks.size)
    if blocks.shared_page is not None and size * row > blocks.shared_page:
        raise UsageError(
            f"{blocks.backend.name} needs blocks of {size} tokens, which do not fit in the page of "
            "the quantized layers: vLLM fails on it",
            hint="leave sliding layers out of kv_cache_dtype_skip_layers",
        )
    return msgspec.structs.replace(
        base,
        kind="sliding",
        block_size=size,
        window=slot.window,
        retained=_retained(settings),
        padded_bytes=blocks.shared_page,
    )


def _no_window(model: Model, settings: Settings, slot: SlidingSlot) -> bool:
    """Whether a layer that slides is served at full length.

    A class may give no layer a window where only some slide; disable_sliding_window takes the
    config's sliding_window away (config/model.py), and no window that has another name.
    """
    if settings.flags.get("disable_sliding_window"):
        return bool(slot.window == model.text_config.get("sliding_window"))
    return model.architecture in _WINDOWLESS and _whole_window(model) is None


def _retained(settings: Settings) -> int:
    """Tokens kept beyond the window for drafts of several modules."""
    draft = settings.draft
    several = draft.method == "mtp" and draft.layers > 1
    return draft.layers - 1 if several and settings.rules.null_reserved else 0


def _latent(model: Model, settings: Settings, blocks: Blocks, slot: LatentSlot) -> Spec:
    if not keeps_latent(model, settings):
        ranks = max(1, slot.heads // settings.ranks)
        width = slot.nope_dim + slot.rope_dim
        row = pair_row(ranks, width, width, settings)
        return Spec(kind="full", block_size=blocks.size, row_bytes=row, note="expanded")
    row = latent_row(slot, settings, blocks.backend)
    if slot.window is not None:
        return Spec(
            kind="sliding_latent", block_size=blocks.size, row_bytes=row, window=slot.window
        )
    stride = blocks.backend.stride_rows(blocks.size, quantized=_in_pages(settings)) * row
    return Spec(kind="latent", block_size=blocks.size, row_bytes=row, stride=stride or 1)


def _in_pages(settings: Settings) -> bool:
    """Whether sparse kernels read a quantized cache in whole pages: not on Blackwell."""
    whole = ("auto", "float16", "bfloat16")
    return settings.kv_dtype not in whole and settings.capability[0] != 10


def _state(model: Model, settings: Settings, blocks: Blocks, slots: list[Slot]) -> Spec:
    return Spec(
        replicated=is_ngram(slots),
        kind="state",
        block_size=blocks.state_size,
        state_bytes=state_bytes(model, settings, slots),
        padded_bytes=blocks.state_page,
        speculative_blocks=settings.draft.tokens,
        checkpoint_blocks=checkpoint_blocks(model, settings, slots),
    )


def _draft_layers(model: Model, settings: Settings, blocks: Blocks) -> list[Layer]:
    out: list[Layer] = []
    draft, drafted = drafted_slots(model, settings)
    if is_v4(model) and settings.draft.kv_dtype is not None:
        check_rows(msgspec.structs.replace(settings, kv_dtype=settings.draft.kv_dtype))
    if settings.draft.method:
        settings = msgspec.structs.replace(settings, kv_dtype=draft_kv_dtype(model, settings))
    if draft is not model or blocks.draft_backend is not None:
        backend = blocks.draft_backend or blocks.backend
        blocks = msgspec.structs.replace(blocks, backend=backend, others={})
    before = model.layers if settings.draft.method == "draft_model" else 0  # its own numbers
    for index, slots in drafted:
        out += _layer(draft, settings, blocks, model.layers + index, slots, before)
    return out


def draft_kv_dtype(model: Model, settings: Settings) -> str:
    """The type that a draft's layers keep: its own, else the target's. GLM's default on Blackwell
    is not a draft model's, and DeepSeek-V4 makes its own layout the setting, which no dense layer
    takes.

    Source: vLLM 0.32, model_executor/models/config.py.
    """
    if settings.draft.model is None and model.architecture.startswith(_NUMBERED_ANEW):
        return _AUTO
    if settings.draft.kv_dtype is not None:
        return settings.draft.kv_dtype
    if settings.draft.model is None:
        return settings.kv_dtype
    if settings.rules.null_reserved and is_v4(model) and settings.platform == "cuda":
        raise UsageError(
            f"vLLM finds no attention backend for a draft model with the cache of {model.name}",
            hint="use method mtp",
        )
    own = model.quantization.kv_dtype if model.quantization is not None else None
    asked = str(settings.flags.get("kv_cache_dtype", _AUTO))
    if settings.kv_dtype == _AUTO and asked != _AUTO:
        return asked  # a target that pays no heed to it (Falcon)
    unsaid = asked == _AUTO and own is None
    return "auto" if unsaid and "GlmMoeDsa" in model.architecture else settings.kv_dtype


def drafted_slots(model: Model, settings: Settings) -> tuple[Model, list[tuple[int, list[Slot]]]]:
    """The model whose layers draft, and what each keeps: like the target's last attention layer
    where no model of its own is known."""
    draft, window = settings.draft.model, _whole_window(model)
    if draft is not None:
        part = _draft_part(settings, draft)
        own = [(index, slots) for index, slots in _by_layer(draft) if index in part]
        listed = draft.text_config.get("layer_types") is not None
        lost = None if listed else _whole_window(draft)
        return draft, [(i, [_windowed(s, lost, window) for s in slots]) for i, slots in own]
    attended = [slots for _, slots in reversed(list(_by_layer(model))) if _has_attention(slots)]
    indexed = [slots for slots in attended if any(isinstance(s, IndexerSlot) for s in slots)]
    likes = [next(iter(indexed or attended), [])] * settings.draft.layers
    if model.architecture.startswith(_SLIDING_MODULES):
        slides = [x for x in attended if any(isinstance(s, SlidingSlot) for s in x)]
        likes = [next(iter(slides or attended), [])] * settings.draft.layers
    if model.architecture.startswith(_NUMBERED_ANEW):
        likes = attended[: -settings.draft.layers - 1 : -1]
    modules = [[_plain(s) for s in x if not isinstance(s, ConvSlot | RecurrentSlot)] for x in likes]
    return model, [(i, attention) for i, attention in enumerate(modules) if attention]


def _draft_part(settings: Settings, draft: Model) -> range:
    """The layers of a draft that are made: a standalone one is cut like the target, and only its
    last stage's share exists.

    Source: vLLM 0.32, v1/worker/gpu/spec_decode/standalone_ar (the last stage loads it, and its
    class asks for that stage's layers), models/utils.py (make_layers).
    """
    if settings.draft.method != "draft_model":
        return range(draft.layers)
    return stage_layers(draft, settings.stages)[-1]


def _check_numbers(
    model: Model, settings: Settings, target: list[Layer], drafts: list[Layer]
) -> None:
    """Raise UsageError where an EAGLE layer takes the number of another layer of the target.

    They are numbered from the layers of one stage on (models/llama_eagle.py, vLLM 0.32): with
    several stages that number is taken, and vLLM fails unless both layers are alike.
    """
    if settings.stages == 1 or settings.draft.method != "eagle":
        return
    start = model.layers - stage_layers(model, settings.stages)[-1].start
    taken = {x.index: x.spec for x in target if x.spec.kind != "state"}  # of another name
    for i, draft in enumerate(drafts):
        if taken.get(start + i, draft.spec) != draft.spec:
            raise UsageError(
                f"vLLM numbers the draft's layer {start + i} as the target's with "
                f"{settings.stages} pipeline stages, and their caches differ",
                hint="use one pipeline stage",
            )


def _whole_window(model: Model) -> int | None:
    """The window of a model all of whose layers slide: vLLM keeps it for the draft's layers too.

    Source: vLLM 0.32, model_executor/layers/attention/attention.py (cache_config.sliding_window).
    """
    windows = {s.window if isinstance(s, SlidingSlot) else None for s in model.slots}
    return next(iter(windows)) if len(windows) == 1 else None


def _windowed(slot: Slot, own: int | None, window: int | None) -> Slot:
    """A draft's layer under the target's settings: a window that all of the draft's layers have
    and none by itself (`own`) is such a setting, so the target's (`window`) takes its place."""
    if not isinstance(slot, FullSlot) or type(slot) not in (FullSlot, SlidingSlot):
        return slot
    if isinstance(slot, SlidingSlot) and own is None:
        return slot
    names = FullSlot.__struct_fields__
    fields = {name: getattr(slot, name) for name in names}
    return FullSlot(**fields) if window is None else SlidingSlot(**fields, window=window)


def _plain(slot: Slot) -> Slot:
    """A draft's layer of DeepSeek-V4 keeps a window and no compressed entries."""
    if isinstance(slot, CompressedSlot):
        return msgspec.structs.replace(slot, ratio=1)
    return slot


def _has_attention(slots: list[Slot]) -> bool:
    return any(isinstance(s, FullSlot | LatentSlot | CompressedSlot) for s in slots)


def stage_layers(model: Model, stages: int) -> tuple[range, ...]:
    """The decoder layers of each pipeline stage; draft layers go to the last.

    Source: vLLM 0.32, distributed/utils.py (get_pp_indices): what does not divide goes to the
    stages before the last.
    """
    sizes = [model.layers // stages] * stages
    for i in range(2, model.layers % stages + 2):
        sizes[-i] += 1
    out, start = [], 0
    for size in sizes:
        out.append(range(start, start + size))
        start += size
    out[-1] = range(out[-1].start, model.layers + 64)
    return tuple(out)
