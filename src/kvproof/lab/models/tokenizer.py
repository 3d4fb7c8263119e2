"""The tokenizer inside a GGUF file: byte-level BPE, as GPT-2 and SmolLM2 use it."""

# mypy: disable-error-code=import-not-found

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvproof.errors import InputError
from kvproof.lab.models.sources import default_weights


class Tokenizer:
    """Text to token ids and back; `stop` is the id that ends an answer."""

    def __init__(self, path: str | Path | None = None) -> None:
        import gguf
        from tokenizers import AddedToken, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as Fast

        fields = gguf.GGUFReader(str(path or default_weights())).fields
        if fields["tokenizer.ggml.model"].contents() != "gpt2":
            raise InputError("the lab reads byte-level BPE tokenizers only")
        tokens = fields["tokenizer.ggml.tokens"].contents()
        kinds = fields["tokenizer.ggml.token_type"].contents()
        merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
        self._fast: Any = Fast(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        split = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._fast.pre_tokenizer = pre_tokenizers.Sequence([digits, split])
        self._fast.decoder = decoders.ByteLevel()
        special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == 3]
        self._fast.add_special_tokens([AddedToken(t, special=True) for t in special])
        self.stop: int = fields["tokenizer.ggml.eos_token_id"].contents()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens written in it count as such."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: list[int]) -> str:
        """The text of token ids, special tokens left out."""
        text: str = self._fast.decode(tokens)
        return text

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation in ChatML, up to where the assistant answers."""
        turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
        return self.encode("".join([*turns, "<|im_start|>assistant\n"]))
