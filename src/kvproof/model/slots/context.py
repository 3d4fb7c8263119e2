"""What slot readers share: the decoder's config with checked access to its fields."""

from __future__ import annotations

from typing import Any

from kvproof.errors import ModelError
from kvproof.model.checks import MAX_LAYERS, bad_value, need, need_list
from kvproof.model.config import Resolved


class Context:
    """A decoder's config while its slots are read.

    `type` is the decoder's model type, `layers` the number of its layers, `kinds` what each
    layer is (transformers' names).
    """

    def __init__(self, resolved: Resolved) -> None:
        self.resolved = resolved
        self.config = resolved.text
        self.type = resolved.text_model_type
        self.layers = self._layer_count()
        self.kinds = self._kinds()
        self._overrides = self.config.get("per_layer_config") or {}

    def need(self, key: str, layer: int | None = None, *, low: int = 1) -> int:
        """A whole number of the config, of one layer where layers differ."""
        return need(self.at(layer), key, where=self.type, low=low)

    def get(self, key: str, default: Any = None) -> Any:
        """A field as it stands, `default` when missing or null."""
        value = self.config.get(key)
        return default if value is None else value

    def at(self, layer: int | None) -> dict[str, Any]:
        """The config as layer `layer` sees it."""
        extra = None if layer is None else self._overrides.get(layer)
        return {**self.config, **extra} if extra else self.config

    def kv_heads(self, layer: int | None = None) -> int:
        """Key/value heads: their own number, else one per query head."""
        own = self.at(layer).get("num_key_value_heads")
        key = "num_attention_heads" if own is None else "num_key_value_heads"
        return self.need(key, layer)

    def head_dim(self, layer: int | None = None) -> int:
        """Width of a head: stated, else hidden size over heads."""
        if self.at(layer).get("head_dim") is not None:
            return self.need("head_dim", layer)
        hidden, heads = self.need("hidden_size", layer), self.need("num_attention_heads", layer)
        if hidden // heads < 1:
            raise bad_value("num_attention_heads", heads, "no more than hidden_size", self.type)
        return hidden // heads

    def list_of(self, key: str) -> list[Any]:
        """A list with one entry per layer."""
        return need_list(self.config, key, self.layers, where=self.type)

    def unrolled(self, before: list[int], loop: list[int], after: list[int]) -> list[int]:
        """Layers in the order they run when `loop` runs loop_num_passes times."""
        passes = self.need("loop_num_passes")
        if passes * len(loop) > MAX_LAYERS:
            raise bad_value("loop_num_passes", passes, f"at most {MAX_LAYERS:,} layers", self.type)
        return [*before, *passes * loop, *after]

    def unknown_kind(self, kind: str) -> ModelError:
        """The error for a layer kind that no rule reads."""
        return ModelError(
            f"{self.type}: layer_types holds the unknown kind {kind[:40]!r}",
            hint="kvproof models --coverage lists what is read",
        )

    def _layer_count(self) -> int:
        key = _LAYER_KEYS.get(self.type, "num_hidden_layers")
        count = need(self.config, key, where=self.type)
        if count > MAX_LAYERS:
            raise bad_value(key, count, f"at most {MAX_LAYERS:,} layers", self.type)
        return count

    def _kinds(self) -> list[str]:
        if self.config.get("layer_types") is not None:
            return [str(kind) for kind in self.list_of("layer_types")]
        if self.config.get("sliding_window"):
            return ["sliding_attention"] * self.layers
        if self.config.get("attention_chunk_size") is not None:
            return ["chunked_attention"] * self.layers
        return ["full_attention"] * self.layers


# Where the decoder's layers are counted under a name of their own. In encoder-decoder classes
# num_hidden_layers is the encoder's.
_LAYER_KEYS = {
    **dict.fromkeys(
        ("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "canary", "fsmt", "led",
         "m2m_100", "marian", "mbart", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart",
         "seamless_m4t", "seamless_m4t_v2", "speech_to_text", "speecht5", "trocr", "whisper",
         "florence2_language", "omniasr", "pp_formulanet_text"),
        "decoder_layers",
    ),
    **dict.fromkeys(
        ("longt5", "mt5", "pop2piano", "prophetnet", "switch_transformers", "t5", "udop", "umt5"),
        "num_decoder_layers",
    ),
    "moonshine": "decoder_num_hidden_layers",
    "zamba2": "num_hidden_layers",
}  # fmt: skip
