"""Dates an engine's arguments by its releases: the last without each, and the first with it.

    python scripts/dated_flags.py {vllm,sglang} FOLDER [--write]

FOLDER holds one file a release, named by it (`0.8.5.py`), as the published package has it:
engine/arg_utils.py of vLLM; srt/server_args.py of SGLang, with the files of srt/arg_groups behind
it, a line of NUL between two. They are read as text, never run. --write puts the table into the
engine's data/came.json; arguments of the oldest release read have no date.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path

from vllm_registries import releases_in

ENGINES = Path(__file__).parents[1] / "src/kvproof/engine"
SOURCES = {
    "vllm": ("vLLM", "engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs")),
    "sglang": ("SGLang", "srt/server_args.py and srt/arg_groups", ()),
}
"""What an engine is called, where its arguments stand, and the classes whose fields they are (none
named: every class there)."""
_OPTION = re.compile(r"""["']--([a-z][a-z0-9_-]+)["']""")


def named_in(source: str, classes: tuple[str, ...]) -> set[str]:
    """The options a release's arguments name: by their spelling, and by the classes' fields."""
    names = {name.replace("-", "_") for name in _OPTION.findall(source)}
    nodes = (node for part in source.split("\0") for node in ast.walk(ast.parse(part)))
    for node in nodes:
        if isinstance(node, ast.ClassDef) and (not classes or node.name in classes):
            fields = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
            names |= {target.id for target in fields if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_") and name != "help"}


def came_between(folder: Path, classes: tuple[str, ...]) -> dict[str, list[str]]:
    """Every option the oldest release read lacks: the last without it, the first with it."""
    came: dict[str, list[str]] = {}
    seen: set[str] = set()
    before = None
    for path in releases_in(folder):
        names = named_in(path.read_text(encoding="utf-8"), classes)
        if before is not None:
            came |= {name: [before, path.stem] for name in names - seen}
        seen |= names
        before = path.stem
    return dict(sorted(came.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=sorted(SOURCES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    read = releases_in(asked.folder)
    title, where, classes = SOURCES[asked.engine]
    told = (
        f"{title}, {where} of {len(read)} releases from {read[0].stem} to {read[-1].stem} "
        "(scripts/dated_flags.py): the last without each, the first with it"
    )
    came = came_between(asked.folder, classes)
    print(f"{len(came)} options dated; {told}")
    if asked.write:
        rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in came.items())
        table = ENGINES / asked.engine / "data" / "came.json"
        table.write_text(f'{{\n"source": {json.dumps(told)},\n"came": {{\n{rows}\n}}\n}}\n')


if __name__ == "__main__":
    main()
