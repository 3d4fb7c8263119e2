"""LoRA adapters: the bytes that an adapter adds to its base model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kvproof.errors import ModelError
from kvproof.model.safetensors import read_files
from kvproof.model.types import Model

_WEIGHTS = "adapter_model.safetensors"


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter folder: its rank, what it adapts, and its exact bytes when stored."""

    base: str
    rank: int
    targets: tuple[str, ...]
    stored_bytes: int | None
    elements: int | None

    def base_model(self, read_path: Callable[[Path], Model]) -> Model:
        """The base model, with a note on what the adapter adds; a local base is read in place."""
        from kvproof.model.catalog import find
        from kvproof.model.load import load

        path = Path(self.base).expanduser()
        if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
            raise ModelError(
                f"the adapter's base {self.base[:80]!r} is an adapter itself",
                hint="name the base model in adapter_config.json",
            )
        known = None if path.exists() else find(self.base)
        if known is not None:
            return self._with_note(load(self.base, offline=True))
        if not path.exists():
            raise ModelError(
                f"the adapter's base model is {self.base[:80]!r}, not on this machine",
                hint="give that name; the adapter adds "
                + (
                    f"{self.stored_bytes:,} B" if self.stored_bytes is not None else "unknown bytes"
                ),
            )
        return self._with_note(read_path(path))

    def _with_note(self, model: Model) -> Model:
        note = f"with a LoRA adapter of rank {self.rank}: {self.bytes_for(model):,} B more"
        return msgspec.structs.replace(model, notes=(*model.notes, note))

    def bytes_for(self, model: Model) -> int:
        """Bytes of the adapter on `model`: stored, or two matrices of `rank` per target."""
        if self.stored_bytes is not None:
            return self.stored_bytes
        return 2 * lora_elements(model, self.rank, self.targets)


def lora_elements(model: Model, rank: int, targets: tuple[str, ...]) -> int:
    """Numbers of rank-`rank` adapters on the linear weights of `model` that `targets` name.

    Each weight of m x n gets an m x rank and a rank x n matrix; "all-linear" names every linear
    weight but the head.
    """
    total = 0
    for group in model.tensors:
        if (
            not group.linear
            or len(group.shape) < 2
            or group.role in ("embedding", "head", "router")
        ):
            continue
        module = group.name.removesuffix(".weight").rpartition(".")[2]
        if module in targets or "all-linear" in targets:
            rows, columns = group.shape[-2:]
            stacked = group.count
            for size in group.shape[:-2]:
                stacked *= size
            total += stacked * rank * (rows + columns)
    return total


def read_adapter(folder: Path) -> Adapter:
    """The adapter in a folder with adapter_config.json."""
    from kvproof.model.byte_source import FileBytes
    from kvproof.model.formats import read_json

    config = read_json(folder / "adapter_config.json")
    stored = elements = None
    if (folder / _WEIGHTS).is_file():
        checkpoint = read_files((_WEIGHTS,), lambda name: FileBytes(folder / name))
        stored = checkpoint.bytes
        elements = sum(tensor.elements for tensor in checkpoint.tensors)
    return Adapter(
        base=str(config.get("base_model_name_or_path") or ""),
        rank=_rank(config),
        targets=_targets(config),
        stored_bytes=stored,
        elements=elements,
    )


def _rank(config: dict[str, Any]) -> int:
    rank = config.get("r")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 < rank <= 65_536:
        raise ModelError(f"adapter_config.json: r is {str(rank)[:40]!r}", hint="want a LoRA's rank")
    return rank


def _targets(config: dict[str, Any]) -> tuple[str, ...]:
    targets = config.get("target_modules")
    if isinstance(targets, str):
        return (targets,)
    if isinstance(targets, list) and len(targets) <= 10_000:
        return tuple(str(target)[:200] for target in targets)
    raise ModelError("adapter_config.json: target_modules is no list", hint="want a LoRA adapter")
