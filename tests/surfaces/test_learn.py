"""The pages and notebooks of docs/learn are what their sources say."""

from __future__ import annotations

import json
import re
import runpy
import tempfile
from pathlib import Path

import pytest

from kvproof.lab.experiments import EXPERIMENTS

LEARN = Path(__file__).resolve().parents[2] / "docs/learn"
MAKE = runpy.run_path(str(LEARN / "make.py"))
NAMES = list(EXPERIMENTS)


def test_every_experiment_has_a_page() -> None:
    assert MAKE["names"]() == NAMES
    listed = re.findall(r"\((\w+)\.md\)", (LEARN / "README.md").read_text())
    assert sorted(listed) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_pages_are_made_of_their_sources(name: str) -> None:
    """make.py ran after the source was last changed: text and code stand in both as they are."""
    cells = MAKE["read"](name)
    made = json.loads((LEARN / f"notebooks/{name}.ipynb").read_text())["cells"]
    again = f"run: python docs/learn/make.py {name}"
    assert [(c["cell_type"], "".join(c["source"])) for c in made] == [
        (c.kind, c.text) for c in cells
    ], again
    page = (LEARN / f"{name}.md").read_text()
    assert all(c.text in page for c in cells if c.kind == "markdown"), again
    shown = [out["data"] for c in made if c["cell_type"] == "code" for out in c["outputs"]
             if "data" in out]  # fmt: skip
    if not shown:
        assert "Not run since it was last changed" in page, again
        pytest.skip(again)
    table, chart = shown
    assert "".join(table["text/markdown"]) in page, again
    assert "".join(chart["image/svg+xml"]) == (LEARN / f"{name}.svg").read_text(), again
    assert "predictions hold" in page


@pytest.mark.parametrize("name", NAMES)
def test_pages_show_what_their_first_cell_prints(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = re.search(
        r"```python\n(.*?)```\n\n```\n(.*?)```", (LEARN / f"{name}.md").read_text(), re.DOTALL
    ).groups()  # type: ignore[union-attr]
    if "kvproof.lab" in code:
        pytest.importorskip("torch")
    exec(code, {})
    assert capsys.readouterr().out == printed, f"run: python docs/learn/make.py {name}"


@pytest.mark.parametrize("name", NAMES)
def test_pages_name_no_path_of_a_machine(name: str) -> None:
    places = (str(Path.home()), tempfile.gettempdir(), str(LEARN.parents[1]))
    for path in (LEARN / f"{name}.md", LEARN / f"notebooks/{name}.ipynb", LEARN / f"{name}.svg"):
        text = path.read_text()
        assert not any(place in text for place in places if len(place) > 1), path.name
        assert not re.search(r"(?<![\w./:])/(?:home|root|tmp|usr|Users)/", text), path.name


def test_cells_run_as_in_a_notebook() -> None:
    cells = [MAKE["Cell"]("code", "a = 2\nprint('x')"), MAKE["Cell"]("code", "print(a)\na + 1")]
    first, second = MAKE["run"](cells)
    assert (first.printed, first.shown) == ("x\n", None)
    assert (second.printed, second.shown) == ("2\n", {"text/plain": "3"})
    written = MAKE["notebook"]([first, second])["cells"]
    assert written[1]["outputs"][0]["text"] == ["2\n"]
    assert written[1]["outputs"][1]["data"] == {"text/plain": ["3"]}
