"""The tokenizer inside a GGUF file: byte-level BPE (SmolLM2) or SentencePiece's (Gemma)."""

# mypy: disable-error-code=import-not-found

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvproof.errors import InputError
from kvproof.lab.models.gguf_file import GgufFile
from kvproof.lab.models.pieces import Pieces
from kvproof.lab.models.sources import weights_file

# How a turn is written: before the role, after it, and at the end; and the answering role's name.
_TURNS = {
    "gpt2": ("<|im_start|>", "<|im_end|>\n", "assistant"),
    "llama": ("<start_of_turn>", "<end_of_turn>\n", "model"),
}


class Tokenizer:
    """Text to token ids and back; `stop` is the id that ends an answer."""

    def __init__(self, path: str | Path | None = None) -> None:
        facts = GgufFile(weights_file(path)).metadata
        self._kind = str(facts.get("tokenizer.ggml.model"))
        if self._kind not in _TURNS:
            raise InputError(f"the lab reads gpt2 and llama tokenizers, not {self._kind!r}")
        self._fast: Any = _byte_level(facts) if self._kind == "gpt2" else _pieces(facts)
        self.stop: int = facts["tokenizer.ggml.eos_token_id"]
        self._start: list[int] = []
        if facts.get("tokenizer.ggml.add_bos_token"):
            self._start = [facts["tokenizer.ggml.bos_token_id"]]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, after the start token where the model wants one.

        Special tokens written in the text count as such.
        """
        if isinstance(self._fast, Pieces):
            return self._start + self._fast.encode(text)
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        return self._start + ids

    def decode(self, tokens: list[int]) -> str:
        """The text of token ids, special tokens left out."""
        text: str = self._fast.decode(tokens)
        return text

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation in the family's own form, up to where the model answers."""
        begin, end, answerer = _TURNS[self._kind]
        names = {"assistant": answerer}
        turns = [f"{begin}{names.get(m['role'], m['role'])}\n{m['content']}{end}" for m in messages]
        return self.encode("".join([*turns, f"{begin}{answerer}\n"]))


def _byte_level(facts: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in facts["tokenizer.ggml.merges"]]
    fast: Any = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([digits, split])
    fast.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == 3]
    fast.add_special_tokens([AddedToken(t, special=True) for t in special])
    return fast


def _pieces(facts: dict[str, Any]) -> Pieces:
    return Pieces(*(facts[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type")))
