"""Dates vLLM's model classes by its releases: the first whose registry names each.

    python scripts/vllm_registries.py FOLDER [--write]

FOLDER holds one file a release, named by it (`0.8.5.py`): model_executor/models/registry.py, or
models/__init__.py before 0.6.3, as the source distribution has it. They are read as text, never
run. --write puts the table into src/kvproof/engine/vllm/data/added.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path

ADDED = Path(__file__).parents[1] / "src/kvproof/engine/vllm/data/added.json"


def named_in(source: str) -> set[str]:
    """The architectures that a registry's tables (dicts whose names end in _MODELS) name."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
        value = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or not isinstance(value, ast.Dict):
            continue
        if target.id.endswith("_MODELS") and "PREVIOUSLY" not in target.id:
            names |= {key.value for key in value.keys if isinstance(key, ast.Constant)}
    return names


def releases_in(folder: Path) -> list[Path]:
    """The files of the releases, oldest first."""
    files = folder.glob("[0-9]*.py")
    return sorted(files, key=lambda path: [int(part) for part in re.findall(r"\d+", path.stem)])


def first_releases(folder: Path) -> dict[str, str]:
    """Every architecture that came after the oldest release read, with the first that names it."""
    first: dict[str, str] = {}
    read = releases_in(folder)
    for path in read:
        for name in named_in(path.read_text(encoding="utf-8")):
            first.setdefault(name, path.stem)
    return {name: since for name, since in sorted(first.items()) if since != read[0].stem}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    releases = releases_in(asked.folder)
    told = (
        f"vLLM, model_executor/models/registry.py of {len(releases)} releases from "
        f"{releases[0].stem} to {releases[-1].stem} (scripts/vllm_registries.py): the first that "
        "names each"
    )
    first = first_releases(asked.folder)
    print(f"{len(first)} architectures dated; {told}")
    if asked.write:
        ADDED.write_text(json.dumps({"source": told, "first": first}, indent=1) + "\n")


if __name__ == "__main__":
    main()
