"""A model's own preprocessor files, which say more than its config and win over the table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from kvproof.model.formats import read_json
from kvproof.model.types import Model

_BUDGET: Mapping[str, tuple[str, ...]] = {
    "min_pixels": ("min_pixels", "size.shortest_edge", "size.min_pixels"),
    "max_pixels": ("max_pixels", "size.longest_edge", "size.max_pixels"),
    "patch": ("patch_size",),
    "merge": ("merge_size",),
}
_TILES: Mapping[str, tuple[str, ...]] = {
    "tile": ("size.height",),
    "min_tiles": ("min_patches",),
    "max_tiles": ("max_patches",),
}

# rule -> setting -> where the model's preprocessor file has it. A setting that a Processor
# overrides (InternVL's and Aya's crop_to_patches) is not among them.
PREPROCESSOR_KEYS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "merged_grid": _BUDGET,
    "area_groups": _BUDGET,
    "volume_groups": _BUDGET,
    "budget_grid": {"min_tokens": ("min_image_tokens",), "max_tokens": ("max_image_tokens",)},
    "budget_groups": {"min_tokens": ("min_image_tokens",), "max_tokens": ("max_image_tokens",)},
    "side_grid": {"max_patches": ("max_patches",), "max_side": ("size.max_height",)},
    "side_groups": {"max_patches": ("max_patches",), "max_side": ("size.max_height",)},
    "long_side_grid": {"image_size": ("size.longest_edge",)},
    "pooled_patches": {"max_tokens": ("max_soft_tokens",)},
    "shape_grid": {"max_tokens": ("max_image_tokens",)},
    "shape_groups": {"max_tokens": ("max_video_frame_tokens",)},
    "mllama": {"max_tiles": ("max_image_tiles",)},
    "idefics2": {"split": ("do_image_splitting",)},
    "idefics3": {
        "split": ("do_image_splitting",),
        "longest": ("size.longest_edge",),
        "image_size": ("max_image_size.longest_edge",),
    },
    "shape_tiles": _TILES,
    "page_tiles": _TILES,
    "scale_tiles": {**_TILES, "split": ("crop_to_patches",)},
    "covering_tiles": {**_TILES, "split": ("crop_to_patches",)},
    "ocr_tiles": {**_TILES, "tile": ("tile_size",), "split": ("crop_to_patches",)},
    "canvas_tiles": {
        "tile": ("size.height",),
        "max_tiles": ("max_patches",),
        "largest": ("resize_to_max_canvas",),
    },
    "phi4": {"max_tiles": ("dynamic_hd",)},
    "molmo2": {"max_tiles": ("max_crops",)},
    "slices": {"max_tiles": ("max_slice_nums",), "view": ("scale_resolution",)},
    "lfm2": {
        "min_tokens": ("min_image_tokens",),
        "max_tokens": ("max_image_tokens",),
        "min_tiles": ("min_tiles",),
        "max_tiles": ("max_tiles",),
        "split": ("do_image_splitting",),
        "thumbnail": ("use_thumbnail",),
    },
}

_FILES: Mapping[str, tuple[str, ...]] = {
    "image": ("preprocessor_config.json", "processor_config.json"),
    "video": ("video_preprocessor_config.json", "processor_config.json"),
}


def beside(model: Model, medium: Literal["image", "audio", "video"]) -> Mapping[str, Any]:
    """The preprocessor file in the folder of a local model; empty where there is none."""
    if model.source.origin != "path":
        return {}
    place = Path(model.source.location)
    folder = place if place.is_dir() else place.parent
    for name in _FILES.get(medium, ()):
        path = folder / name
        if path.is_file():
            found = read_json(path)
            part = found.get(f"{medium}_processor")
            if name != "processor_config.json" or isinstance(part, Mapping):
                return part if isinstance(part, Mapping) else found
    return {}
