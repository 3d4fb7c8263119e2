"""Checked look-ups in GGUF metadata: one number, one number per layer, a flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.errors import ModelError
from kvproof.model.gguf import Skipped

MAX_LAYERS = 512
_MAX_COUNT = 2**31 - 1


class Keys:
    """The metadata of one model, asked by names without the architecture in front.

    Raises ModelError where a needed key is missing or a value is not what it should be.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        arch = metadata.get("general.architecture")
        if not isinstance(arch, str) or not arch:
            raise ModelError("the metadata lacks general.architecture", hint="is it a GGUF file?")
        self.arch = arch

    def get(self, name: str) -> Any:
        """The raw value, None when absent."""
        return self.metadata.get(f"{self.arch}.{name}")

    def has(self, name: str) -> bool:
        """Whether the key is there."""
        return f"{self.arch}.{name}" in self.metadata

    def fail(self, name: str, value: object) -> ModelError:
        """The error for a value that is not what it should be."""
        return ModelError(
            f"GGUF key {self.arch}.{name} is {str(value)[:60]!r}",
            hint="check or convert the file anew",
        )

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of zero or more; `default` when absent."""
        value = self.get(name)
        if value is None:
            if default is None:
                raise ModelError(
                    f"the GGUF metadata lacks {self.arch}.{name}", hint="convert it anew"
                )
            return default
        return self._count(name, value)

    def positive(self, name: str, default: int | None = None) -> int:
        """A whole number of one or more."""
        value = self.count(name, default)
        if value == 0:
            raise self.fail(name, value)
        return value

    def _count(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
            raise self.fail(name, value)
        return value

    def per_layer(self, name: str, layers: int, default: int | None = None) -> tuple[int, ...]:
        """One count per layer: of an array, or the same for all."""
        value = self.get(name)
        if isinstance(value, list | tuple):
            if len(value) < layers:
                raise ModelError(
                    f"GGUF key {self.arch}.{name} has {len(value)} entries for {layers} layers",
                    hint="check or convert the file anew",
                )
            return tuple(
                self._count(name, int(v) if isinstance(v, bool) else v) for v in value[:layers]
            )
        return (self.count(name, default),) * layers

    def flags(self, name: str, layers: int) -> tuple[bool, ...] | None:
        """One flag per layer when the key is an array, else None; layers beyond it are False."""
        value = self.get(name)
        if not isinstance(value, list | tuple):
            return None
        if any(not isinstance(v, int) for v in value) or len(value) > MAX_LAYERS:
            raise self.fail(name, value)
        padded = [bool(v) for v in value[:layers]] + [False] * (layers - len(value))
        return tuple(padded)

    def length(self, name: str) -> int:
        """How many elements the array `name` (a full key) has, 0 when absent."""
        value = self.metadata.get(name)
        if isinstance(value, Skipped):
            return value.length
        return len(value) if isinstance(value, list | tuple) else 0

    @property
    def all_layers(self) -> int:
        """Layers of the file, multi-token-prediction layers at its end included."""
        count = self.count("block_count")
        if not 0 < count <= MAX_LAYERS:
            raise self.fail("block_count", count)
        return count

    @property
    def layers(self) -> int:
        """Layers of the model itself, those that predict further tokens left out."""
        extra = self.count("nextn_predict_layers", 0)
        if extra > self.all_layers:
            raise self.fail("nextn_predict_layers", extra)
        return self.all_layers - extra

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, by its key or by the tokenizer's list."""
        return self.count("vocab_size", 0) or self.length("tokenizer.ggml.tokens")
