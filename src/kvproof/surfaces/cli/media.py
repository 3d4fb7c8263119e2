"""Options for the images, audio and video of each request, and what they say about contexts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_SIZE = re.compile(r"\s*(?:(\d{1,6})x)?(\d{1,6})x(\d{1,6})\s*$")
_MOST_IMAGES = 100_000


def parse_images(text: str) -> tuple[tuple[int, int], ...]:
    """Sizes of `1024x768`, `3x1024x768` (three of them) or a comma list of such."""
    from kvproof.errors import UsageError

    out: list[tuple[int, int]] = []
    for part in text.split(","):
        match = _SIZE.match(part)
        copies = int(match[1] or 1) if match else 0
        if not match or not 0 < copies + len(out) <= _MOST_IMAGES:
            raise UsageError(
                f"can't read an image size {part[:40]!r}",
                hint="write WIDTHxHEIGHT, or COUNTxWIDTHxHEIGHT",
            )
        out += [(int(match[2]), int(match[3]))] * copies
    return tuple(out)


def parse_frame_size(text: str) -> tuple[int, int]:
    """The one size of `640x480`."""
    from kvproof.errors import UsageError

    sizes = parse_images(text)
    if len(sizes) != 1:
        raise UsageError(f"{text[:40]!r} is not one frame size", hint="write WIDTHxHEIGHT")
    return sizes[0]


def media_options(command: F) -> F:
    """--images, --audio-seconds, --video-frames, --frame-size: what each request carries."""
    for option in (
        click.option("--frame-size", type=parse_frame_size, metavar="WxH", help="Of the video."),
        click.option(
            "--video-frames",
            type=click.IntRange(0),
            default=0,
            help="Sampled video frames of each request.",
        ),
        click.option(
            "--audio-seconds",
            type=click.FloatRange(0),
            default=0,
            help="Seconds of audio of each request.",
        ),
        click.option(
            "--images",
            type=parse_images,
            metavar="WxH,...",
            help="Images of each request: 1024x768, or 3x1024x768 for three.",
        ),
    ):
        command = option(command)
    return command


def media_terms(model: Any, values: dict[str, Any]) -> tuple[Any, ...]:
    """The terms of the media that the options name; none when they name none."""
    if not (values["images"] or values["audio_seconds"] or values["video_frames"]):
        return ()
    from kvproof.model.multimodal import media_tokens

    return media_tokens(
        model,
        images=values["images"] or (),
        audio_seconds=values["audio_seconds"],
        video_frames=values["video_frames"],
        frame_size=values["frame_size"],
    )


def context_tokens(terms: Sequence[Any]) -> int:
    """Tokens of each context that the media take."""
    if not terms:
        return 0
    from kvproof.model.multimodal import total_tokens

    return total_tokens(terms)


def with_media(model: Any, terms: Sequence[Any]) -> Any:
    """The model whose requests bring the media: what they hold beside the context counts."""
    from kvproof.model.multimodal import encoder_tokens, with_encoder_tokens

    slots = encoder_tokens(terms)
    return with_encoder_tokens(model, slots) if slots else model


def media_document(terms: Sequence[Any]) -> dict[str, Any]:
    """The JSON form: the terms, text positions and cross-attention slots in all."""
    from kvproof.model.multimodal import encoder_tokens, total_tokens

    counts = {"tokens": total_tokens(terms), "encoder_tokens": encoder_tokens(terms)}
    return {**counts, "terms": tuple(terms)}


def media_text(model: Any, terms: Sequence[Any], contexts: Sequence[int], types: Any) -> str:
    """The count of each medium with its formula, and what is left for text."""
    from kvproof.model.multimodal import encoder_bytes, encoder_tokens, total_tokens
    from kvproof.surfaces.text import heading
    from kvproof.units import show_bytes, show_context

    tokens, slots = total_tokens(terms), encoder_tokens(terms)
    lines = [heading("Media of each request")]
    lines += [f"  {term.name}: {int(term.value):,} ({term.formula})" for term in terms]
    left = ", ".join(f"{n - tokens:,} of {show_context(n)}" for n in contexts)
    lines.append(f"  {tokens:,} tokens of every context; left for text: {left}")
    if slots:
        held = show_bytes(encoder_bytes(model, slots, types))
        lines.append(
            f"  {slots:,} cross-attention slots hold {held} per request beside its context, "
            "counted below"
        )
    return "\n".join(lines)
