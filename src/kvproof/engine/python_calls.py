"""Python that starts an engine (`LLM(model=...)`, `sgl.Engine(...)`), as its arguments.

The text is parsed and never run. Known are literals, whole-number sums, names and options of an
argument parser that the text gives such values, and keywords gathered in dictionaries; an argument
that only a run would tell is left out by name.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvproof.engine.arithmetic import worked_out

_LONGEST = 200_000
_MOST_NODES = 50_000
_DEEPEST = 12
_SHORT_NAMES = {"sgl": "sglang"}
"""What packages are imported as where a snippet does not show its imports."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a class: its name as imports spell it out, what it is given, what is not known.

    `package` is the name's first part where the text says where it comes from, else empty.
    """

    package: str
    name: str
    positions: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}
    unknown: tuple[str, ...] = ()


class _UnknownError(Exception):
    """A value that only a run would tell."""


def calls_in(text: str, names: Collection[str], options: Sequence[str] = ()) -> list[Call]:
    """The calls of `text` whose last name is one of `names`, in its order; none where it is no
    Python. `options` are words that a script is started with.
    """
    if len(text) > _LONGEST or not any(name in text for name in names):
        return []
    try:
        tree = ast.parse(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    nodes = [node for _, node in zip(range(_MOST_NODES), ast.walk(tree), strict=False)]
    known = _Known(nodes, _given(options))
    wanted = (node for node in nodes if isinstance(node, ast.Call))
    found = [call for node in wanted if (call := known.call(node, names)) is not None]
    return [call for _, call in sorted(found, key=lambda pair: pair[0])]


def _given(options: Sequence[str]) -> dict[str, str]:
    """`--name value` and `--name=value` by the name that an argument parser gives them."""
    out: dict[str, str] = {}
    for at, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name.startswith("--") and len(name) > 2:
            following = options[at + 1] if at + 1 < len(options) else ""
            out[_dest(name)] = value if equals else following
    return out


def _dest(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


class _Known:
    """What a script says of its names: where they are imported from, and what they are set to."""

    def __init__(self, nodes: Sequence[ast.AST], given: Mapping[str, str]) -> None:
        self.imported: dict[str, str] = {}
        self.set: dict[str, list[tuple[int, ast.expr]]] = {}
        self.options: dict[str, ast.expr] = {}
        for node in nodes:
            self._note(node)
        self.options |= {name: ast.Constant(_number(value)) for name, value in given.items()}

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            self.imported |= {a.asname or a.name: a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            whole = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            self.imported |= whole
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    self.set.setdefault(target.id, []).append((node.lineno, node.value))
        elif isinstance(node, ast.Call) and _last(node.func) == "add_argument":
            self._note_option(node)

    def _note_option(self, node: ast.Call) -> None:
        """`add_argument("--name", default=value)`."""
        written = [a.value for a in node.args if isinstance(a, ast.Constant)]
        long = next((w for w in written if isinstance(w, str) and w.startswith("--")), None)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if long is not None and "default" in keywords:
            self.options[_dest(long)] = keywords["default"]

    def call(self, node: ast.Call, names: Collection[str]) -> tuple[int, Call] | None:
        """The call with its line, if it is one of `names`."""
        whole = self._whole(node.func)
        package, _, last = whole.rpartition(".")
        if last not in names:
            return None
        keywords: dict[str, Any] = {}
        unknown: list[str] = []
        for keyword in node.keywords:
            try:
                value = self.value(keyword.value, node.lineno)
            except _UnknownError:
                unknown.append(keyword.arg or f"**{ast.unparse(keyword.value)[:40]}")
                continue
            keywords |= {keyword.arg: value} if keyword.arg else _mapping(value)
        positions = []
        for argument in node.args:
            try:
                positions.append(self.value(argument, node.lineno))
            except _UnknownError:
                unknown.append(ast.unparse(argument)[:40])
                break
        call = Call(
            package=package.partition(".")[0],
            name=last,
            positions=tuple(positions),
            keywords=keywords,
            unknown=tuple(unknown),
        )
        return node.lineno, call

    def _whole(self, function: ast.expr) -> str:
        """What is called, as imports spell it out."""
        if not isinstance(function, ast.Name | ast.Attribute):
            return ""
        written = ast.unparse(function)
        first, dot, rest = written.partition(".")
        if first in self.imported:
            return f"{self.imported[first]}{dot}{rest}"
        return f"{_SHORT_NAMES.get(first, first)}{dot}{rest}" if dot else written

    def value(self, node: ast.expr, line: int, depth: int = 0) -> Any:
        """What an expression gives at that line; _UnknownError where only a run would tell."""
        if depth > _DEEPEST:
            raise _UnknownError

        def of(part: ast.expr) -> Any:
            return self.value(part, line, depth + 1)

        if isinstance(node, ast.Constant) and not isinstance(node.value, bytes | complex):
            return node.value
        if isinstance(node, ast.Name):
            return of(self._last_set(node.id, line))
        if isinstance(node, ast.List | ast.Tuple):
            return [of(part) for part in node.elts]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {str(of(key)): of(value) for key, value in pairs if key is not None}
        if isinstance(node, ast.Attribute):
            return self._attribute(node, of)
        if isinstance(node, ast.Call):
            return _made(node, of)
        return _sum(node)

    def _last_set(self, name: str, line: int) -> ast.expr:
        before = [value for at, value in self.set.get(name, ()) if at <= line]
        if not before:
            raise _UnknownError
        return before[-1]

    def _attribute(self, node: ast.Attribute, of: Any) -> Any:
        """`args.name` by its option, `torch.bfloat16` by its name."""
        if node.attr in self.options:
            return of(self.options[node.attr])
        if ast.unparse(node.value) in ("torch", "jnp"):
            return node.attr
        raise _UnknownError


def _made(node: ast.Call, of: Any) -> Any:
    """The keywords of a settings object or `dict(...)`; the default of a variable."""
    last = _last(node.func)
    if last in ("getenv", "get") and len(node.args) == 2:
        return of(node.args[1])
    if last in ("int", "float", "str") and len(node.args) == 1:
        return of(node.args[0])
    if (last == "dict" or last[:1].isupper()) and not node.args:
        return {str(k.arg): of(k.value) for k in node.keywords if k.arg is not None}
    raise _UnknownError


def _sum(node: ast.expr) -> int | float:
    text = ast.unparse(node)
    number = worked_out(text, {})
    if number is not None:
        return number
    try:
        return float(text)  # a sign before a fraction
    except ValueError:
        raise _UnknownError from None


def _last(function: ast.expr) -> str:
    """The last name of what is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _mapping(value: Any) -> dict[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else {}


def _number(text: str) -> Any:
    return int(text) if text.isdigit() and len(text) < 16 else text


def as_options(keywords: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Each keyword as the words of an option: JSON for settings, `--no-name` for what is off."""
    for name, value in keywords.items():
        option = f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if value is True:
            yield (option,)
        elif value is False:
            yield (f"--no-{option[2:]}",)
        elif isinstance(value, Mapping):
            yield (f"{option}={json.dumps(value)}",)
        elif isinstance(value, list | tuple):
            plain = all(isinstance(part, str | int | float) for part in value)
            yield (option, *map(str, value)) if plain else (f"{option}={json.dumps(value)}",)
        else:
            yield (f"{option}={value}",)
