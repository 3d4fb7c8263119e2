"""Needles: numbers told in a page of text and asked for afterwards, one sentence each.

Every sentence (`data/needles.txt`) is about something else and ends in a random number of four
digits; a question is the sentence again without its number. A number is found when each of its
digits is the model's first choice. Guessing finds one in 10,000. See docs/decisions/0024.
"""

from __future__ import annotations

import random
from importlib.resources import files

import msgspec

from kvproof.errors import UsageError
from kvproof.lab.experiments.material import text_tokens, tokenizer

_SEED, _DIGITS = 1, 4


class Needle(msgspec.Struct, frozen=True):
    """A sentence without its number, the number's tokens, and where in the page both lie."""

    cue: tuple[int, ...]
    number: tuple[int, ...]
    start: int

    @property
    def end(self) -> int:
        """The position after the number's last digit."""
        return self.start + len(self.cue) + len(self.number)

    @property
    def places(self) -> set[int]:
        """Positions of the sentence with its number."""
        return set(range(self.start, self.end))

    @property
    def digits(self) -> set[int]:
        """Positions of the number."""
        return set(range(self.end - len(self.number), self.end))


class Page(msgspec.Struct, frozen=True):
    """Token ids of a text with needles in it, at even distances."""

    tokens: list[int]
    needles: tuple[Needle, ...]


def sentences() -> list[str]:
    """The needles' sentences, each without its number."""
    told = files("kvproof.lab").joinpath("data/needles.txt").read_text(encoding="utf-8")
    return told.splitlines()


def page(tokens: int, needles: int) -> Page:
    """`tokens` token ids of text and `needles` needles; UsageError when they do not fit."""
    codes, made, known = tokenizer(), random.Random(_SEED), sentences()
    if needles > len(known):
        raise UsageError(f"there are {len(known)} needles, not {needles}")
    end = codes.encode(".\n\n")
    cues = [codes.encode(f"\n\n{sentence} ") for sentence in known[:needles]]
    numbers = [codes.encode(_number(made)) for _ in cues]
    taken = sum(len(c) + len(n) + len(end) for c, n in zip(cues, numbers, strict=True))
    if taken > tokens:
        raise UsageError(
            f"{needles} needles are {taken} tokens long, the text {tokens}",
            hint="give more tokens or fewer needles",
        )
    filler, out, found = text_tokens(tokens - taken), list[int](), []
    for i, (cue, number) in enumerate(zip(cues, numbers, strict=True)):
        out += filler[i * len(filler) // needles : (i + 1) * len(filler) // needles]
        found.append(Needle(tuple(cue), tuple(number), len(out)))
        out += cue + number + end
    return Page(out, tuple(found))


def _number(made: random.Random) -> str:
    return str(made.randrange(10 ** (_DIGITS - 1), 10**_DIGITS))
