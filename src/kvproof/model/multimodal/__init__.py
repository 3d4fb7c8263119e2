"""How many positions the images, audio and video frames of a request occupy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from kvproof.errors import ModelError, UsageError
from kvproof.kinds import CrossSlot, Types
from kvproof.model.multimodal import audio, cropped, images, rows, tiled, video
from kvproof.model.multimodal.counts import Count, Settings
from kvproof.model.multimodal.preprocessor import beside
from kvproof.model.types import Model
from kvproof.terms import Term

SLOTS = "cross-attention slots (encoder_tokens)"
_LARGEST_SIDE = 2**16
_MOST = 2**20
_MOST_TOKENS = 2**48
_SIZELESS = ("fixed", "vit_grid", "pooled_frame")

ImageRule = Callable[[Settings, int, int, int], Count]
AudioRule = Callable[[Settings, float], Count]
VideoRule = Callable[[Settings, int, int, int], Count]

_IMAGE: dict[str, ImageRule] = {
    f.__name__: f
    for f in (
        images.fixed, images.vit_grid, images.merged_grid, images.budget_grid, images.side_grid,
        images.shape_grid, images.range_grid, images.pooled_patches, images.long_side_grid,
        images.open_grid, images.code_grid, images.fuyu, images.mllama, tiled.shape_tiles,
        tiled.scale_tiles, tiled.covering_tiles, tiled.canvas_tiles, tiled.anyres,
        tiled.anyres_limited, tiled.idefics2, tiled.idefics3, tiled.page_tiles, cropped.phi4,
        cropped.lfm2, cropped.molmo2, cropped.perception, cropped.window_tiles, tiled.ocr_tiles,
        cropped.slices, tiled.split_or_whole,
    )
}  # fmt: skip
_AUDIO: dict[str, AudioRule] = {
    f.__name__: f
    for f in (
        audio.fixed, audio.windows, audio.per_samples, audio.half_twice, audio.merged_four,
        audio.windows_of_four, audio.eighths, audio.conv_stack, audio.halvings,
        audio.half_padded, audio.query_windows, audio.compressed,
    )
}  # fmt: skip
_VIDEO: dict[str, VideoRule] = {
    f.__name__: f
    for f in (
        video.area_groups, video.volume_groups, video.side_groups, video.budget_groups,
        video.shape_groups,
    )
}  # fmt: skip


def media_tokens(
    model: Model,
    *,
    images: Sequence[tuple[int, int]] = (),
    audio_seconds: float = 0,
    video_frames: int = 0,
    frame_size: tuple[int, int] | None = None,
    preprocessor: Mapping[str, Any] | None = None,
) -> tuple[Term, ...]:
    """One term for each kind of medium, and one for the special tokens around it.

    `images` are (width, height); `video_frames` are those the sampler keeps, of `frame_size`
    (width, height). Terms named as cross-attention slots are encoder positions and no text.
    `preprocessor` is the parsed preprocessor_config.json of the images; None takes the files in
    a local model's folder, else the published values of the model type. Raises ModelError for
    a model or medium whose rule is not known, UsageError for sizes that can't be.
    """
    _check(images, audio_seconds, video_frames, frame_size)
    ask = _Ask(model, preprocessor)
    out: list[Term] = []
    for (width, height), copies in Counter(tuple(size) for size in images).items():
        name = f"image {width}x{height}" if copies == 1 else f"{copies} images {width}x{height}"
        count, source = ask.image(height, width, len(images))
        out += _terms(name, copies, count, source)
    if audio_seconds:
        out += _terms(f"audio {audio_seconds:g} s", 1, *ask.audio(audio_seconds))
    if video_frames:
        width, height = frame_size or (0, 0)
        shown = f"{video_frames} video frames" + (f" {width}x{height}" if frame_size else "")
        out += _terms(shown, 1, *ask.video(video_frames, height, width))
    return tuple(out)


def total_tokens(terms: Iterable[Term]) -> int:
    """Text-cache positions of the terms; cross-attention slots are not among them."""
    return sum(int(term.value) for term in terms if SLOTS not in term.name)


def encoder_tokens(terms: Iterable[Term]) -> int:
    """Cross-attention slots of the terms: the encoder_tokens of `kvproof.cache`."""
    return sum(int(term.value) for term in terms if SLOTS in term.name)


def with_encoder_tokens(model: Model, slots: int) -> Model:
    """The model whose every request brings `slots` positions of cross-attention.

    Budgets, capacities and plans of it count them for each sequence, beside its context.
    """
    held = tuple(
        msgspec.structs.replace(slot, default_tokens=slots) if isinstance(slot, CrossSlot) else slot
        for slot in model.slots
    )
    return msgspec.structs.replace(model, slots=held)


def encoder_bytes(model: Model, slots: int, types: Types) -> int:
    """Bytes of the model's cross-attention caches when the encoder holds `slots` positions."""
    return sum(slot.bytes(slots, types) for slot in model.slots if slot.kind == "cross")


def most_pixels(model: Model) -> int | None:
    """Pixels of the largest image that the model's processor lets through; None without a limit."""
    try:
        _, settings = _Ask(model, None)._row("image")
    except ModelError:
        return None
    found = settings.values.get("max_pixels")
    return found if isinstance(found, int) else None


class _Ask:
    """The rules of one model."""

    def __init__(self, model: Model, preprocessor: Mapping[str, Any] | None) -> None:
        self._model, self._config, self._name = model, model.config, model.name
        self._preprocessor = preprocessor
        self._type = str(model.config.get("model_type") or model.model_type)
        if not model.config:
            raise ModelError(
                f"{self._name}: its source has no config of the whole model",
                hint="media are counted from a config.json, not from GGUF metadata",
            )

    def image(self, height: int, width: int, count: int) -> tuple[Count, str]:
        found, settings = self._row("image")
        rule = _IMAGE[found["rule"]]
        return self._counted(lambda: rule(settings, height, width, count)), found["source"]

    def audio(self, seconds: float) -> tuple[Count, str]:
        found, settings = self._row("audio")
        rule = _AUDIO[found["rule"]]
        return self._counted(lambda: rule(settings, seconds)), found["source"]

    def video(self, frames: int, height: int, width: int) -> tuple[Count, str]:
        found, settings = self._row("video")
        name = found["rule"]
        if not height and name not in _SIZELESS:
            raise UsageError("the size of the video's frames is missing", hint="give frame_size")

        def rule() -> Count:
            if name == "pooled_frame":
                return video.per_frame(settings, frames, video.pooled_frame(settings))
            if name in _IMAGE:
                one = _IMAGE[name](settings, height, width, 1)
                return video.per_frame(settings, frames, one)
            return _VIDEO[name](settings, frames, height, width)

        return self._counted(rule), found["source"]

    def _counted(self, rule: Callable[[], Count]) -> Count:
        """The rule's count; numbers of the config that can't be its model's are one error."""
        try:
            count = rule()
        except (ArithmeticError, ValueError):
            count = None
        if count is None or not 0 <= count.tokens < _MOST_TOKENS or count.marks < 0:
            raise ModelError(
                f"{self._name}: the numbers of its config do not fit the media rule of "
                f"{self._type!r}",
                hint="check vision_config, audio_config and preprocessor_config.json",
            )
        return count

    def _row(self, medium: rows.Medium) -> tuple[dict[str, Any], Settings]:
        found = rows.row(self._config, self._type, self._name, medium)
        own = self._preprocessor if medium == "image" else None
        values, asked = rows.settings(
            found, self._config, beside(self._model, medium) if own is None else own
        )
        if asked:
            found["source"] = f"the model's own preprocessor file, else: {found['source']}"
        return found, Settings(model=self._name, values=values)


def _terms(name: str, copies: int, count: Count, source: str) -> list[Term]:
    times = f"{copies} x ({{}})" if copies > 1 else "{}"
    out = [
        Term(
            name=f"{name}: {SLOTS}" if count.slots else name,
            value=copies * count.tokens,
            unit="token",
            formula=times.format(count.formula),
            source=source,
        )
    ]
    if count.marks:
        out.append(
            Term(
                name=f"{name}: marks",
                value=copies * count.marks,
                unit="token",
                formula=times.format(count.marks_formula),
                source=source,
            )
        )
    return out


def _check(
    images: Sequence[tuple[int, int]],
    seconds: float,
    frames: int,
    frame_size: tuple[int, int] | None,
) -> None:
    for size in [*images, *([frame_size] if frame_size else [])]:
        good = len(size) == 2 and all(
            isinstance(n, int) and not isinstance(n, bool) and 0 < n <= _LARGEST_SIDE for n in size
        )
        if not good:
            raise UsageError(f"{size!r:.40} is no image size", hint="give (width, height)")
    if not math.isfinite(seconds) or not 0 <= seconds <= _MOST:
        raise UsageError(f"{seconds!r:.40} is no duration", hint="give seconds of audio")
    if not 0 <= frames <= _MOST:
        raise UsageError(f"{frames!r:.40} is no number of frames")
