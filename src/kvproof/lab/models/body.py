"""Body: the shape of a decoder that the lab can run, and the config and slots it stands for."""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.errors import UsageError
from kvproof.kinds import FullSlot, LatentSlot, SlidingSlot, Slot


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Widths of multi-head latent attention (DeepSeek-V2, 2024)."""

    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int


class Gemma(msgspec.Struct, frozen=True, kw_only=True):
    """What Gemma 3 does differently from Llama (Gemma team, 2025).

    Embeddings are scaled by sqrt(hidden); the feed-forward gates with GELU; queries and keys are
    normed by head; a norm follows attention and feed-forward too; sliding layers turn their
    positions with a base of their own.
    """

    local_theta: float = 10000.0


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A Llama-family decoder: RMS norms, rotary positions, gated SiLU feed-forward.

    `windows` gives each layer's sliding window (None: full attention); empty means all full.
    `latent` replaces keys and values by one compressed vector; `gemma` makes it a Gemma 3.
    """

    name: str = "random"
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int = 4096
    theta: float = 10000.0
    eps: float = 1e-5
    tied: bool = True
    windows: tuple[int | None, ...] = ()
    latent: Latent | None = None
    gemma: Gemma | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} query heads do not share {self.kv_heads} KV heads")
        if self.windows and len(self.windows) != self.layers:
            raise UsageError(f"{len(self.windows)} windows for {self.layers} layers")

    def window(self, layer: int) -> int | None:
        """How many of the last positions a layer sees; None for all."""
        return self.windows[layer] if self.windows else None

    @property
    def scale(self) -> float:
        """What scores are multiplied by: 1 / sqrt(width of a key)."""
        width = self.head_dim
        if self.latent is not None:
            width = self.latent.nope_dim + self.latent.rope_dim
        return float(width**-0.5)

    @property
    def value_dim(self) -> int:
        """Width of what attention returns for a head."""
        return self.head_dim if self.latent is None else self.latent.latent_dim

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots of the cache, one a layer."""
        return tuple(self._slot(i) for i in range(self.layers))

    def _slot(self, layer: int) -> Slot:
        latent = self.latent
        if latent is not None:
            return LatentSlot(
                layer=layer, latent_dim=latent.latent_dim, rope_dim=latent.rope_dim,
                heads=self.heads, nope_dim=latent.nope_dim, value_dim=latent.value_dim,
            )  # fmt: skip
        heads, dim = self.kv_heads, self.head_dim
        window = self.window(layer)
        if window is None:
            return FullSlot(layer=layer, kv_heads=heads, k_dim=dim, v_dim=dim)
        return SlidingSlot(layer=layer, window=window, kv_heads=heads, k_dim=dim, v_dim=dim)

    @property
    def config(self) -> dict[str, Any]:
        """The config.json of this body: what `kvproof.load_model` plans from."""
        shared: dict[str, Any] = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.eps,
            "rope_theta": self.theta,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "float32",
        }
        if self.latent is not None:
            return shared | self._deepseek(self.latent)
        heads = {"num_key_value_heads": self.kv_heads, "head_dim": self.head_dim}
        if not self.windows:
            return shared | heads | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        kinds = ["full_attention" if w is None else "sliding_attention" for w in self.windows]
        window = next((w for w in self.windows if w is not None), None)
        if self.gemma is not None:
            return shared | heads | self._gemma3(self.gemma, window, kinds)
        return shared | heads | {
            "model_type": "qwen2",
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "sliding_window": window,
            "layer_types": kinds,
        }  # fmt: skip

    def _gemma3(self, gemma: Gemma, window: int | None, kinds: list[str]) -> dict[str, Any]:
        return {
            "model_type": "gemma3_text",
            "architectures": ["Gemma3ForCausalLM"],
            "rope_local_base_freq": gemma.local_theta,
            "query_pre_attn_scalar": self.head_dim,
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "sliding_window": window,
            "layer_types": kinds,
        }

    def _deepseek(self, latent: Latent) -> dict[str, Any]:
        return {
            "model_type": "deepseek_v2",
            "architectures": ["DeepseekV2ForCausalLM"],
            "num_key_value_heads": self.heads,
            "kv_lora_rank": latent.latent_dim,
            "q_lora_rank": None,
            "qk_nope_head_dim": latent.nope_dim,
            "qk_rope_head_dim": latent.rope_dim,
            "v_head_dim": latent.value_dim,
            "first_k_dense_replace": self.layers,
        }
