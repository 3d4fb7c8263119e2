"""Whole numbers that a shell would work out: `$((32*1024))`. Nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

_LONGEST = 200
_LARGEST = 2**63
_MOST_SHIFTED = 62
_SUM = re.compile(r"(?:\b[A-Za-z_]\w*\b|\b\d+\b|[-+*/%()\s]|<<|>>)+")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w{0,99})\}?")


def worked_out(expression: str, variables: Mapping[str, str]) -> int | None:
    """The value of a shell's arithmetic; None for what is no plain sum, or names an unset variable.

    Known: + - * / % << >> and brackets, over whole numbers and variables that hold one.
    """
    if len(expression) > _LONGEST:
        return None
    text = _VARIABLE.sub(r"\1", expression).strip()
    if not _SUM.fullmatch(text):
        return None
    try:
        return _value(ast.parse(text, mode="eval").body, variables)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, variables: Mapping[str, str]) -> int:
    """Raises ValueError for what a plain sum has no room for."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _bounded(node.value)
    if isinstance(node, ast.Name):
        return _bounded(int(variables.get(node.id, "")))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, variables)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, variables), _value(node.right, variables)
        return _bounded(_combined(node.op, left, right))
    raise ValueError


def _combined(operator: ast.operator, left: int, right: int) -> int:
    whole = abs(left) // abs(right) if isinstance(operator, ast.Div | ast.Mod) else 0
    signed = whole if (left < 0) == (right < 0) else -whole  # a shell rounds towards 0
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return signed
        case ast.Mod():
            return left - signed * right
        case ast.LShift() | ast.RShift() if 0 <= right <= _MOST_SHIFTED:
            return left << right if isinstance(operator, ast.LShift) else left >> right
    raise ValueError


def _bounded(number: int) -> int:
    if not -_LARGEST <= number < _LARGEST:
        raise ValueError
    return number
