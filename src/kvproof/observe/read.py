"""read_log: the figures of a start-up log, whatever engine printed it and whatever surrounds it.

One pass in bounded memory. Most lines of a long log share no word with the table of formats and
cost no more than being cut into words; a line whose words held nothing before is not searched
again.
"""

from __future__ import annotations

from os import PathLike
from typing import BinaryIO

from kvproof.observe.collect import Collector
from kvproof.observe.figures import Log
from kvproof.observe.lines import lines_of, open_log, parts_of, searchable, whole_commands
from kvproof.observe.watch import WORDS, words_of

_MOST_SHAPES = 100_000


def read_log(source: str | PathLike[str] | BinaryIO) -> Log:
    """The engine, version, flags and figures that a log states.

    `source`: a path (gzip or not), the text itself (anything with a line break), or a binary
    stream. Raises InputError when it can't be read, is not text, or holds no start-up line of a
    known engine.
    """
    stream, name = open_log(source)
    collector, dull = Collector(), dict[bytes, None]()
    with stream:
        for count, line in whole_commands(lines_of(stream, name)):
            collector.lines += count
            words = words_of(searchable(line))
            if WORDS.isdisjoint(words):
                continue
            shape = b" ".join(words)
            if shape in dull:
                continue
            held = False
            for number, part in enumerate(parts_of(line)):
                held |= collector.line(collector.lines, part, words_of(part), number)
            if not held and len(dull) < _MOST_SHAPES:
                dull[shape] = None
    return collector.finish(name)
