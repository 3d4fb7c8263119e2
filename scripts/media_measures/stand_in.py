"""A torchvision with what processors call, where there is none."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

STAND_IN = """
import enum, torch
class InterpolationMode(enum.Enum):
    NEAREST = "nearest"; NEAREST_EXACT = "nearest-exact"; BILINEAR = "bilinear"
    BICUBIC = "bicubic"; BOX = "box"; HAMMING = "hamming"; LANCZOS = "lanczos"
def resize(image, size, interpolation=None, antialias=None, **kw):
    size = list(size) if isinstance(size, (list, tuple)) else [size, size]
    return torch.zeros(*image.shape[:-2], int(size[0]), int(size[1]), dtype=image.dtype)
def pad(image, padding, fill=0, padding_mode="constant", **kw):
    if isinstance(fill, (list, tuple)): fill = fill[0]
    p = list(padding) if isinstance(padding, (list, tuple)) else [padding] * 4
    p = p * 2 if len(p) == 2 else p
    return torch.nn.functional.pad(image, (p[0], p[2], p[1], p[3]), value=fill)
def crop(image, top, left, height, width): return image[..., top:top+height, left:left+width]
def center_crop(image, size):
    h, w = size; t, l = (image.shape[-2]-h)//2, (image.shape[-1]-w)//2
    return image[..., t:t+h, l:l+w]
def normalize(image, mean, std, inplace=False): return image
def to_dtype(image, dtype=torch.float32, scale=False): return image.to(dtype)
def grayscale_to_rgb(image): return image
def pil_to_tensor(image):
    import numpy as np
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
to_tensor = to_pil_image = pil_to_tensor
"""


def install_stand_in() -> None:
    """A torchvision with what processors call: sizes are right, pixels are zero."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        folder = Path(tempfile.mkdtemp()) / "torchvision"
        for part in ("", "transforms", "transforms/v2", "io"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("__version__ = '0.99.0'\n")
        (folder / "io" / "__init__.py").write_text("")
        (folder / "transforms" / "functional.py").write_text(STAND_IN)
        init = "from .functional import InterpolationMode\n"
        (folder / "transforms" / "__init__.py").write_text(init)
        (folder / "transforms" / "v2" / "__init__.py").write_text("from . import functional\n")
        (folder / "transforms" / "v2" / "functional.py").write_text(STAND_IN)
        sys.path.insert(0, str(folder.parent))
