"""Model: what a config describes, after reading: its slots, its tensors, its names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kvproof.kinds import Slot
from kvproof.model.quantization import Quantization
from kvproof.model.tensors import ENCODER_ROLES, TensorGroup

_PREDICTING = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_ENCODER_NAME = re.compile(r"(model\.)?encoder\.")


def largest(value: Any) -> int:
    """A whole number, or the largest of a list of them; 0 for anything else."""
    if isinstance(value, list | tuple):
        return max((largest(entry) for entry in value), default=0)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model's description came from; `revision` is the hub commit that was read."""

    origin: Literal["catalog", "hub", "path", "dict", "gguf"]
    location: str
    revision: str | None = None
    note: str | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is computed about a model starts here.

    Sizes are those of the text decoder: `layers` decoder layers of `hidden_size`, with
    `attention_heads` query heads. `context` is the length the model was trained for (None when
    the config does not say). `dtype` is the type of the unquantized weights. `config` is the
    resolved config of the whole model, `text_config` that of its decoder. `settings` are those
    that its author chose for Ollama (num_ctx, num_batch, ...).
    """

    name: str
    model_type: str
    architecture: str
    layers: int
    hidden_size: int
    attention_heads: int
    vocab_size: int
    context: int | None
    dtype: str
    slots: tuple[Slot, ...]
    tensors: tuple[TensorGroup, ...]
    experts: int = 0
    experts_per_token: int = 0
    quantization: Quantization | None = None
    stored_weight_bytes: int | None = None
    source: Source
    config: Mapping[str, Any] = {}
    text_config: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """All parameters; tied tensors count once. 0 where `tensors` is empty: unknown."""
        return sum(group.elements for group in self.tensors)

    @property
    def active_parameters(self) -> int:
        """Parameters of the decoder that one token passes through: of the experts, the chosen ones.

        Embedding tables count, as in most publishers' figures; encoders of images or audio do not.
        """
        return sum(self._active(group) for group in self.tensors)

    @property
    def streamed_parameters(self) -> int:
        """Parameters that a decode step reads when every expert is hit.

        A looked-up embedding table is not read, nor are encoders of images or audio.
        """
        return sum(group.elements for group in self.tensors if self.is_streamed(group))

    @property
    def predicting_layers(self) -> int:
        """Layers that predict further tokens (MTP), as the config counts them; 0 without."""
        return self.number(*_PREDICTING)

    def number(self, *names: str) -> int:
        """What the config gives under the first of `names` that it has; the largest of a list.

        0 where it has none of them.
        """
        for name in names:
            found = largest(self.text_config.get(name)) or largest(self.config.get(name))
            if found:
                return found
        return 0

    @property
    def tied(self) -> bool:
        """True when the embedding table is also the output head."""
        return not any(group.role == "head" for group in self.tensors)

    def is_streamed(self, group: TensorGroup) -> bool:
        """Whether a decode step reads the tensors of `group` in full.

        The encoder of an encoder-decoder model has run before decoding starts.
        """
        if self.config.get("is_encoder_decoder") and _ENCODER_NAME.match(group.name):
            return False
        if group.role == "embedding":
            return self.tied and "embed_positions" not in group.name
        return group.role not in (*ENCODER_ROLES, "position")

    def _active(self, group: TensorGroup) -> int:
        if group.role in ENCODER_ROLES:
            return 0
        if group.role != "expert" or not self.experts:
            return group.elements
        return group.elements * self.experts_per_token // self.experts
