"""Audio: samples to frames to tokens. A rule takes the settings of the model and the seconds."""

from __future__ import annotations

import math

from kvproof.model.multimodal.counts import Count, Settings


def fixed(s: Settings, seconds: float) -> Count:
    """The same count for every clip, which is padded or cut to one length."""
    tokens, marks = s.whole("tokens"), int(s.number("marks")) if s.has("marks") else 0
    return Count(
        tokens=tokens,
        formula=f"{tokens:,} for every window of {s.values.get('window', 30)} s",
        marks=marks,
        marks_formula=f"{marks} special tokens around it" if marks else "",
        slots=s.flag("slots"),
    )


def windows(s: Settings, seconds: float) -> Count:
    """Every started window of audio is padded and gives the same count."""
    window, each = s.number("window"), s.whole("tokens")
    count = max(1, math.ceil(seconds / window))
    return Count(
        tokens=count * each,
        formula=f"{count} windows of {window:g} s x {each} = {count * each:,}",
    )


def per_samples(s: Settings, seconds: float) -> Count:
    """One token for so many samples, the last ones padded. `window`: seconds cut on their own."""
    step, samples = s.whole("samples"), _samples(s, seconds)
    sizes = _split(samples, int(s.number("window") * s.whole("rate")) if s.has("window") else 0)
    tokens = sum(-(-size // step) for size in sizes)
    return _marked(s, tokens, f"{samples:,} samples / {step:,} rounded up = {tokens:,}")


def half_twice(s: Settings, seconds: float) -> Count:
    """Whisper's encoder and a pool: frames of 10 ms halved by a convolution, then by a pool."""
    samples = _samples(s, seconds)
    frames = _capped_frames(s, samples)
    tokens = ((frames - 1) // 2 + 1 - 2) // 2 + 1
    tokens = max(tokens, 0)
    return _marked(s, tokens, f"{frames:,} frames of 10 ms halved twice = {tokens:,}")


def merged_four(s: Settings, seconds: float) -> Count:
    """GLM-ASR: as `half_twice`, with groups of four after the one convolution."""
    frames = _capped_frames(s, _samples(s, seconds))
    halved = (frames - 1) // 2 + 1
    tokens = (halved - 4) // 4 + 1
    return _marked(s, tokens, f"{frames:,} frames of 10 ms: {halved:,} / 4 = {tokens:,}")


def windows_of_four(s: Settings, seconds: float) -> Count:
    """Windows of 30 s whose halved frames are grouped in fours, each window rounded up."""
    sizes = _split(_samples(s, seconds), int(s.number("window") * s.whole("rate")))
    tokens = sum(-(-((_frames(s, size) - 1) // 2 + 1) // 4) for size in sizes)
    formula = f"{len(sizes)} windows of frames of 10 ms / 8, rounded up = {tokens:,}"
    return _marked(s, tokens, formula + "; time marks are text and not counted")


def eighths(s: Settings, seconds: float) -> Count:
    """Chunks of frames halved three times on their own."""
    chunk = 2 * s.whole("half_chunk")
    samples = _samples(s, seconds)
    frames = samples // s.whole("hop") if s.flag("whole_frames") else _frames(s, samples)
    full, rest = divmod(frames, chunk)
    last, each = _halved(rest, 3), _halved(chunk, 3)
    tokens = full * each + last
    return _marked(
        s, tokens, f"{full} chunks of {chunk} frames x {each} + {last} of {rest} = {tokens:,}"
    )


def conv_stack(s: Settings, seconds: float) -> Count:
    """Unpadded convolutions over the samples: kernels and strides, one after another."""
    length, steps = _samples(s, seconds), s.pairs("convolutions")
    first = length
    for kernel, stride in steps:
        length = max((length - kernel) // stride + 1, 0)
    shown = " ".join(f"{kernel}/{stride}" for kernel, stride in steps)
    return _marked(s, length, f"{first:,} samples through convolutions {shown} = {length:,}")


def halvings(s: Settings, seconds: float) -> Count:
    """Frames halved by padded convolutions a number of times."""
    samples, hop = _samples(s, seconds), s.whole("hop")
    frames = samples // hop + (1 if s.flag("centred") else 0)
    if s.has("window_samples"):
        frames = max((samples - s.whole("window_samples")) // hop + 1, 0)
    tokens = _halved(frames, s.whole("times"))
    if s.has("most"):
        tokens = min(tokens, s.whole("most"))
    shown = f"{frames:,} frames halved {s.whole('times')} times = {tokens:,}"
    return _marked(s, tokens, shown)


def half_padded(s: Settings, seconds: float) -> Count:
    """Gemma 4: frames of a half-padded clip, halved twice, at most `most`."""
    samples, length = _samples(s, seconds), s.whole("frame")
    frames = (samples + length // 2 - (length + 1)) // s.whole("hop") + 1
    tokens = min(_halved(max(frames, 0), 2), s.whole("most"))
    return _marked(s, tokens, f"{max(frames, 0):,} frames of 10 ms halved twice = {tokens:,}")


def query_windows(s: Settings, seconds: float) -> Count:
    """Granite Speech: pairs of frames in windows, each seen by the same number of queries."""
    window, rate = s.whole("window"), s.whole("downsample")
    pairs = (_samples(s, seconds) // s.whole("hop") + 1) // 2
    blocks, each = math.ceil(pairs / window), window // rate
    return _marked(
        s, blocks * each, f"{pairs:,} pairs of frames / {window} = {blocks} x {each} queries"
    )


def compressed(s: Settings, seconds: float) -> Count:
    """Phi-4 multimodal: frames of the filter bank, eight a token, rounded up."""
    frames = max((_samples(s, seconds) - s.whole("frame")) // s.whole("hop") + 1, 0)
    eighths = math.ceil(frames / s.whole("compression"))
    tokens = math.ceil(eighths / s.whole("downsample"))
    return _marked(
        s, tokens, f"{frames:,} frames / {s.whole('compression')} rounded up = {tokens:,}"
    )


def _samples(s: Settings, seconds: float) -> int:
    return round(seconds * s.whole("rate"))


def _frames(s: Settings, samples: int) -> int:
    return -(-samples // s.whole("hop"))


def _capped_frames(s: Settings, samples: int) -> int:
    frames = _frames(s, samples)
    return min(frames, s.whole("most_frames")) if s.has("most_frames") else frames


def _split(samples: int, window: int) -> list[int]:
    if not window:
        return [samples]
    full, rest = divmod(samples, window)
    return [window] * full + ([rest] if rest else [])


def _halved(length: int, times: int) -> int:
    for _ in range(times):
        length = (length - 1) // 2 + 1
    return length


def _marked(s: Settings, tokens: int, formula: str) -> Count:
    marks = int(s.number("marks")) if s.has("marks") else 0
    return Count(
        tokens=tokens,
        formula=formula,
        marks=marks,
        marks_formula=f"{marks} special tokens around it" if marks else "",
        slots=s.flag("slots"),
    )
