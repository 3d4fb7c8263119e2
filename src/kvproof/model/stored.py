"""What a checkpoint's headers add to a model: exact stored bytes, and the type of its weights."""

from __future__ import annotations

import msgspec

from kvproof.model.safetensors import Checkpoint
from kvproof.model.types import Model

_DTYPES = {"BF16": "bf16", "F16": "f16", "F32": "f32"}


def with_checkpoint(model: Model, checkpoint: Checkpoint) -> Model:
    """`model` with the exact bytes of its checkpoint.

    Where the config names no type, the type that most of the checkpoint's bytes have is taken.
    """
    return msgspec.structs.replace(
        model, stored_weight_bytes=checkpoint.bytes, dtype=_dtype(model, checkpoint)
    )


def _dtype(model: Model, checkpoint: Checkpoint) -> str:
    if any(config.get(key) for config in (model.text_config, model.config)
           for key in ("dtype", "torch_dtype")):  # fmt: skip
        return model.dtype
    plain = {k: v for k, v in checkpoint.bytes_by_type.items() if k in _DTYPES}
    return _DTYPES[max(plain, key=lambda name: plain[name])] if plain else model.dtype
