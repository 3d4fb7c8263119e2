"""Tokens to text as they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class TextStream:
    """Collects one answer's tokens; `push` gives the text that is certain by now.

    Held back are the bytes of an unfinished character and a tail that a stop string may begin in.
    Once a stop string is complete, `stopped` is True and the text ends before it.
    """

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, [s for s in stops if s]
        self._tokens: list[int] = []
        self._given = 0
        self.stopped = False

    def push(self, token: int) -> str:
        """One more token; the text that can be given out now."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            return self._give(text[: min(found)])
        return self._give(text[: len(text) - self._doubtful(text)])

    def finish(self) -> str:
        """The rest, when no more tokens come."""
        return "" if self.stopped else self._give(self._decode(self._tokens))

    def _give(self, text: str) -> str:
        new = text[self._given :]
        self._given = max(self._given, len(text))
        return new

    def _doubtful(self, text: str) -> int:
        """How many characters at the end may still change or belong to a stop string."""
        broken = len(text) - len(text.rstrip("\ufffd"))
        starts = [n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
        return max(broken, *starts, 0)
