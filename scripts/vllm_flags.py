"""Dates vLLM's engine arguments by its releases: the last without each, and the first with it.

    python scripts/vllm_flags.py FOLDER [--write]

FOLDER holds one file a release, named by it (`0.8.5.py`): engine/arg_utils.py as the source
distribution has it. They are read as text, never run. --write puts the table into
src/kvproof/engine/vllm/data/came.json; arguments of the oldest release read have no date.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path

from vllm_registries import releases_in

CAME = Path(__file__).parents[1] / "src/kvproof/engine/vllm/data/came.json"
_OPTION = re.compile(r"""["']--([a-z][a-z0-9-]+)["']""")
_CLASSES = ("EngineArgs", "AsyncEngineArgs")


def named_in(source: str) -> set[str]:
    """The options a release's arguments name: by their spelling, and by the classes' fields."""
    names = {name.replace("-", "_") for name in _OPTION.findall(source)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name in _CLASSES:
            fields = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
            names |= {target.id for target in fields if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_") and name != "help"}


def came_between(folder: Path) -> dict[str, list[str]]:
    """Every option the oldest release read lacks: the last without it, the first with it."""
    came: dict[str, list[str]] = {}
    seen: set[str] = set()
    before = None
    for path in releases_in(folder):
        names = named_in(path.read_text(encoding="utf-8"))
        if before is not None:
            came |= {name: [before, path.stem] for name in names - seen}
        seen |= names
        before = path.stem
    return dict(sorted(came.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    read = releases_in(asked.folder)
    told = (
        f"vLLM, engine/arg_utils.py of {len(read)} releases from {read[0].stem} to "
        f"{read[-1].stem} (scripts/vllm_flags.py): the last without each, the first with it"
    )
    came = came_between(asked.folder)
    print(f"{len(came)} options dated; {told}")
    if asked.write:
        rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in came.items())
        CAME.write_text(f'{{\n"source": {json.dumps(told)},\n"came": {{\n{rows}\n}}\n}}\n')


if __name__ == "__main__":
    main()
