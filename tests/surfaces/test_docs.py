"""The documents say what the program says."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import kvproof

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_command_line_page_is_current() -> None:
    pages = runpy.run_path(str(ROOT / "scripts/cli_docs.py"))["pages"]
    assert (ROOT / "docs/cli.md").read_text() == pages(), "run: python scripts/cli_docs.py"


def test_versions_agree() -> None:
    assert f'version = "{kvproof.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## {kvproof.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readmes_python_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PAGES = [
    (path.name, code)
    for path in (*sorted(ROOT.glob("docs/engines/*.md")), ROOT / "docs/hardware.md")
    for code in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    if "model.gguf" not in code and "ollama:" not in code  # a file of the reader's
]


@pytest.mark.parametrize(("page", "code"), PAGES, ids=[page for page, _ in PAGES])
def test_the_pages_python_runs(page: str, code: str) -> None:
    """A line's remark that begins with a whole number says what the line gives."""
    names: dict[str, object] = {"kvproof": kvproof}
    for line in code.splitlines():
        try:
            value = eval(line, names)
        except SyntaxError:
            exec(line, names)
            continue
        said = re.search(r"# (\d+):", line)
        assert said is None or value == int(said[1]), line


def test_every_report_has_a_row_and_every_marked_one_a_test() -> None:
    rows = re.findall(r"^\| (\d+)(†?) \|", (ROOT / "docs/cases.md").read_text(), re.MULTILINE)
    tests = (ROOT / "tests/cases/test_user_reports.py").read_text()
    tested = {int(n) for found in re.findall(r"def test((?:_\d\d)+)_", tests)
              for n in found.strip("_").split("_")}  # fmt: skip
    assert [int(number) for number, _ in rows] == list(range(1, 56))
    assert {int(number) for number, mark in rows if mark} == tested


@pytest.mark.parametrize(
    "line",
    [
        line.split("#")[0].strip()
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith("kvproof ")
        # these need a file of the reader's, a server, or torch (tests/observe, tests/lab run them)
        and not any(words in line for words in ("path/to", "localhost", "kvproof lab"))
        and "  kvproof" not in line
    ],
)
def test_the_readmes_commands_run(line: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *line.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_links_of_the_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
