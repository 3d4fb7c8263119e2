"""The notebooks of docs/learn run in Jupyter from the first cell to the last."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.small import SMALL

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

pytestmark = [pytest.mark.lab, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
FOLDER = Path(__file__).resolve().parents[2] / "docs/learn/notebooks"


@pytest.mark.parametrize("name", list(SMALL))
def test_the_notebook_runs(name, smollm):
    """With the experiment made small; every other cell as it is."""
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(book)
    call = f"experiments.{name}()"
    cells = [c for c in book.cells if c.cell_type == "code"]
    assert sum(call in c.source for c in cells) == 1
    for cell in cells:
        cell.source = cell.source.replace(call, f"experiments.{name}(**{SMALL[name]!r})")
        cell.outputs = []
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    table, chart = [o.data for c in cells for o in c.outputs if o.output_type == "execute_result"]
    assert "predictions hold" in table["text/markdown"]
    assert {"image/svg+xml", "application/vnd.vegalite.v5+json"} & set(chart)
