"""Abstract interpretation of constructors: both sides of branches, loops once, symbolically."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .calls import Calls
from .expressions import E
from .loops import Loops
from .operators import Operators
from .statements import Statements
from .store import Branches


class Interpreter(Branches, Statements, Loops, Operators, Calls):
    """Runs constructors over symbolic configs."""

    def __init__(self, evaluate: Callable[[Any], Any]) -> None:
        from . import attributes, indexing, invocation
        from .builtins_table import BUILTINS

        self.evaluate = (
            evaluate  # value of an expression at the default config, to bound unrolled loops
        )
        self.log: list[dict[Any, Any]] = []
        self.facts: list[tuple[E, bool]] = []
        self.loops: tuple[tuple[int, Any], ...] = ()
        self.next_var = 0
        self.depth = 0
        self.bounds: list[tuple[Any, int]] = []
        self.notes: list[str] = []
        self.attributes, self.indexing, self.invocation = attributes, indexing, invocation
        self.builtins = BUILTINS
