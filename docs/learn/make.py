"""Write the pages and notebooks of docs/learn by running them.

    python docs/learn/make.py [NAME ...]           run and write
    python docs/learn/make.py --text [NAME ...]    write text that changed; nothing is run

The one source of a page is `source/NAME.py`, a script in the percent format: cells of Markdown and
of code. Every cell of code is run here, once, and what it prints and shows goes into `NAME.md`,
`NAME.svg` and `notebooks/NAME.ipynb`. With --text the outputs of the last run are kept, for cells
whose code is still the same.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
SOURCES = FOLDER / "source"
NOTEBOOKS = FOLDER / "notebooks"
SVG, MARKDOWN, PLAIN = "image/svg+xml", "text/markdown", "text/plain"


class Cell(NamedTuple):
    """One cell: Markdown, or code with what it printed and the value it ended in, by MIME type."""

    kind: str
    text: str
    printed: str = ""
    shown: dict[str, Any] | None = None


def names() -> list[str]:
    """The pages, in the experiments' order."""
    from kvproof.lab.experiments import EXPERIMENTS

    return [name for name in EXPERIMENTS if (SOURCES / f"{name}.py").exists()]


def read(name: str) -> list[Cell]:
    """The cells of a page's source."""
    cells = []
    text = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
    for part in ("\n" + text).split("\n# %%")[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.splitlines()]
            cells.append(Cell("markdown", "\n".join(lines).strip()))
        else:
            cells.append(Cell("code", body.strip().replace("  # fmt: skip", "")))
    return cells


def run(cells: list[Cell]) -> list[Cell]:
    """The cells after running those of code, one after the other in one namespace."""
    space: dict[str, Any] = {"__name__": "__main__"}
    return [_run(cell, space) if cell.kind == "code" else cell for cell in cells]


def _run(cell: Cell, space: dict[str, Any]) -> Cell:
    """Run a cell as a notebook does: its last line, when it is an expression, is its value."""
    tree = ast.parse(cell.text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)
    return cell._replace(printed=printed.getvalue(), shown=_bundle(value))


def _bundle(value: Any) -> dict[str, Any] | None:
    """A value by MIME type, as a notebook asks for it."""
    if value is None:
        return None
    if hasattr(value, "_repr_mimebundle_"):
        bundle: dict[str, Any] = value._repr_mimebundle_()
        return bundle
    bundle = {PLAIN: repr(value)}
    if hasattr(value, "_repr_markdown_"):
        bundle[MARKDOWN] = value._repr_markdown_()
    return bundle


def page(name: str, cells: list[Cell]) -> str:
    """The Markdown page: text, code, what it printed, tables, and the chart as a picture."""
    parts = []
    for cell in cells:
        if cell.kind == "markdown":
            parts.append(cell.text)
            continue
        shown = cell.shown or {}
        if SVG not in shown:  # the line that draws says nothing to a reader
            parts.append(f"```python\n{cell.text}\n```")
        if cell.printed:
            parts.append(f"```\n{cell.printed.rstrip()}\n```")
        if SVG in shown:
            parts.append(f"![{shown[PLAIN]}]({name}.svg)")
        elif MARKDOWN in shown:
            parts.append(shown[MARKDOWN])
    if not any(cell.shown for cell in cells):
        parts.append(f"*Not run since it was last changed: `python docs/learn/make.py {name}`.*")
    command = f"kvproof lab {name.replace('_', '-')}"
    last = (
        f"The same from a terminal: `{command} -o {name}.svg`. The same as a notebook: "
        f"[{name}.ipynb](notebooks/{name}.ipynb)."
    )
    return "\n\n".join([*parts, f"---\n\n{last}"]) + "\n"


def notebook(cells: list[Cell]) -> dict[str, Any]:
    """The notebook of the same cells, in Jupyter's format 4.5."""
    made, count = [], 0
    for index, cell in enumerate(cells):
        entry: dict[str, Any] = {
            "cell_type": cell.kind,
            "id": f"cell-{index}",
            "metadata": {},
            "source": _lines(cell.text),
        }
        if cell.kind == "code":
            count += 1
            entry |= {"execution_count": count, "outputs": _outputs(cell, count)}
        made.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _outputs(cell: Cell, count: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if cell.printed:
        out.append({"output_type": "stream", "name": "stdout", "text": _lines(cell.printed)})
    if cell.shown:
        data = {k: _lines(v) if isinstance(v, str) else v for k, v in cell.shown.items()}
        out.append({"output_type": "execute_result", "execution_count": count, "metadata": {},
                    "data": data})  # fmt: skip
    return out


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def kept(name: str, cells: list[Cell]) -> list[Cell]:
    """The cells with the outputs of the last run, where their code has not changed since."""
    path = NOTEBOOKS / f"{name}.ipynb"
    if not path.exists():
        return cells
    last = {"".join(c["source"]): c for c in json.loads(path.read_text(encoding="utf-8"))["cells"]}
    return [_kept(cell, last.get(cell.text, {}).get("outputs", [])) for cell in cells]


def _kept(cell: Cell, outputs: list[dict[str, Any]]) -> Cell:
    printed = "".join("".join(out.get("text", ())) for out in outputs)
    data = next((out["data"] for out in outputs if "data" in out), None)
    shown = data and {k: "".join(v) if isinstance(v, list) else v for k, v in data.items()}
    return cell._replace(printed=printed, shown=shown)


def write(name: str, *, running: bool = True) -> None:
    """Write a page's three files, after running it or with the outputs of its last run."""
    cells = read(name)
    cells = run(cells) if running else kept(name, cells)
    for cell in cells:
        if cell.shown and SVG in cell.shown:
            (FOLDER / f"{name}.svg").write_text(cell.shown[SVG], encoding="utf-8")
    (FOLDER / f"{name}.md").write_text(page(name, cells), encoding="utf-8")
    NOTEBOOKS.mkdir(exist_ok=True)
    text = json.dumps(notebook(cells), indent=1, ensure_ascii=False, sort_keys=True)
    (NOTEBOOKS / f"{name}.ipynb").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Write the named pages, or all."""
    wanted = [word for word in sys.argv[1:] if word != "--text"]
    running = "--text" not in sys.argv[1:]
    if running:
        import torch

        torch.set_num_threads(1)
    for name in wanted or names():
        write(name, running=running)
        print(name, flush=True)


if __name__ == "__main__":
    main()
