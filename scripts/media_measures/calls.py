"""One measurement: a real processor on blank media, its replacement counted, and its record."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

MARK = "\ue001"
SIZES = ((1024, 768), (336, 336), (64, 48), (1920, 1080), (480, 2000), (3000, 2900), (500, 333))
VIDEOS = ((16, 640, 480), (7, 1280, 720), (64, 224, 224))
SECONDS = (0.5, 7.31, 30.0, 45.25)


def count(text: str) -> int:
    """Special tokens and line breaks (a double one is one token) of a replacement."""
    text = re.sub(r"<\d+\.\d seconds>", "", text)  # a timestamp, in spite of its brackets
    text = re.sub(r"TILE_GLOBAL|TILE_\d+|TILE|<[^<>\n]*>|\]<\][^\[]*?\[>\[", MARK, text)
    return len(re.sub(r"[^\ue001\n]", "", text.replace("\n\n", "\n")))


def load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{module}"), name)


def processor(path: str, name: str, **numbers: Any) -> Any:
    """A Processor without tokenizer: every *_token is one mark, numbers are given."""
    base = load(f"{path}.processing_{path}", name)

    def missing(self: Any, attribute: str) -> Any:
        if attribute.endswith(("_token", "_tag", "_image")):
            return MARK
        raise AttributeError(attribute)

    made = object.__new__(type(name, (base,), {"__getattr__": missing}))
    for key, value in numbers.items():
        object.__setattr__(made, key, value)
    return made


def image_count(made: Any, kwargs: dict[str, Any], size: tuple[int, int], **extra: Any) -> int:
    import numpy as np

    width, height = size
    picture = np.zeros((height, width, 3), dtype=np.uint8)
    inputs = made.image_processor(images=[picture], return_tensors="pt", **kwargs)
    return count(made.replace_image_token(inputs, image_idx=0, **extra))


def video_count(made: Any, size: tuple[int, int, int], kwargs: dict[str, Any]) -> int:
    import numpy as np
    from transformers.video_utils import VideoMetadata

    frames, width, height = size
    clip = np.zeros((frames, height, width, 3), dtype=np.uint8)
    meta = VideoMetadata(
        total_num_frames=frames, fps=2.0, width=width, height=height, duration=frames / 2,
        frames_indices=list(range(frames)),
    )  # fmt: skip
    inputs = made.video_processor(
        videos=[clip], video_metadata=[meta], return_metadata=True, do_sample_frames=False,
        return_tensors="pt", **kwargs,
    )  # fmt: skip
    if "video_metadata" not in inputs:
        inputs["video_metadata"] = [meta]
    extra = {"load_audio_from_video": False}
    return count(made.replace_video_token(inputs, video_idx=0, **extra))


def audio_count(made: Any, seconds: float, rate: int, **kwargs: Any) -> int:
    import numpy as np

    clip = np.zeros(round(seconds * rate), dtype=np.float32)
    _, replacements = made._process_audio([clip], **kwargs)
    return count(replacements[0])


def grid_case(path: str, name: str, module: str, image: str, **numbers: Any) -> Any:
    """A Processor around one image processor; `numbers` starting with ip_ go to the latter."""
    own = {k[3:]: v for k, v in numbers.items() if k.startswith("ip_")}
    rest = {k: v for k, v in numbers.items() if not k.startswith("ip_")}
    made = processor(path, name, **rest)
    object.__setattr__(made, "image_processor", load(module, image)(**own))
    return made


def slots(kind: str, config: dict[str, Any], length: int, seconds: float) -> dict[str, Any]:
    return {"model_type": kind, "config": config, "audio_seconds": seconds, "slots": int(length)}


def record(kind: str, config: dict[str, Any], total: int, **media: Any) -> dict[str, Any]:
    return {"model_type": kind, "config": config, **media, "total": int(total)}


def attempt(what: str, call: Any, *args: Any, **kwargs: Any) -> Any:
    """The count, or None with a line on standard error: some cases refuse some sizes."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
        return None
