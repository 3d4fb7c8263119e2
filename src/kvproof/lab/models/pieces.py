"""SentencePiece's pair merging, for GGUF files of the `llama` tokenizer kind (Gemma, Llama 2).

Spaces become "▁"; the text starts as single characters; of all neighbours whose union is a token,
the pair of the highest score merges first (the leftmost of equals), until none is left. Characters
that are no token become their UTF-8 bytes' tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import heappop, heappush

_SPACE = "▁"
_CONTROL, _USER, _BYTE = 3, 4, 6  # token types of GGUF


class Pieces:
    """Encoder and decoder over a file's tokens, their scores and types."""

    def __init__(
        self, tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]
    ) -> None:
        self.tokens, self.scores, self.kinds = tokens, scores, kinds
        self._ids = {token: i for i, token in enumerate(tokens)}
        whole = [t for t, k in zip(tokens, kinds, strict=True) if k in (_CONTROL, _USER) and t]
        longest = sorted(whole, key=len, reverse=True)
        self._whole = re.compile("(" + "|".join(map(re.escape, longest)) + ")") if whole else None

    def encode(self, text: str) -> list[int]:
        """Token ids; tokens of the file that are never split are found first, longest first."""
        parts = self._whole.split(text) if self._whole else [text]
        out: list[int] = []
        for i, part in enumerate(parts):
            out += [self._ids[part]] if i % 2 else self._merged(part.replace(" ", _SPACE))
        return out

    def _merged(self, text: str) -> list[int]:
        pieces: list[str] = list(text)
        after = [*range(1, len(pieces)), -1]
        before = [-1, *range(len(pieces) - 1)]
        heap: list[tuple[float, int, int, str]] = []

        def offer(left: int) -> None:
            right = after[left] if left >= 0 else -1
            if right >= 0:
                union = pieces[left] + pieces[right]
                if union in self._ids:
                    heappush(heap, (-self.scores[self._ids[union]], left, right, union))

        for i in range(len(pieces)):
            offer(i)
        while heap:
            _, left, right, union = heappop(heap)
            if after[left] != right or pieces[left] + pieces[right] != union:
                continue  # one of the two was merged away since
            pieces[left], pieces[right] = union, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            after[right] = -1
            offer(left)
            offer(before[left])
        return [token for piece in pieces if piece for token in self._known(piece)]

    def _known(self, piece: str) -> list[int]:
        if piece in self._ids:
            return [self._ids[piece]]
        return [self._ids[f"<0x{byte:02X}>"] for byte in piece.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens left out."""
        out = bytearray()
        for i in ids:
            if self.kinds[i] == _BYTE:
                out.append(int(self.tokens[i][3:5], 16))
            elif self.kinds[i] != _CONTROL:
                out += self.tokens[i].replace(_SPACE, " ").encode()
        return out.decode(errors="replace")
