"""Write src/kvproof/model/data/coverage.json: each architecture, its kinds, how it was verified.

    python scripts/coverage.py

Counts the measured records of tests/ground_truth/transformers.json (prefill of three lengths,
a decoded token, a static cache, parameters) that kvproof reproduces, and reads the kinds of slot
from the class's own defaults.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import kvproof
from kvproof.errors import KvproofError
from kvproof.model.classes import known_types
from kvproof.model.config import resolve
from kvproof.model.slots import read_slots
from kvproof.model.tensors import known_model_types

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src/kvproof/model/data/coverage.json"


def kinds_of(model_type: str) -> list[str]:
    """Kinds of slot of the class's default config; empty when the class has no whole default."""
    try:
        slots = read_slots(resolve({"model_type": model_type}))
    except KvproofError:
        return []
    return sorted({slot.kind for slot in slots})


def equal(record: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the prefilled caches and the parameter count come out as measured."""
    model = kvproof.load_model(record["config"])
    caches = all(
        kvproof.cache(model, int(tokens), encoder_tokens=_source(row), dtype=record["dtype"]).bytes
        == _expected(row)
        for tokens, row in record["lengths"].items()
    )
    return caches, model.parameters == record["n_params"]


def _expected(row: dict[str, Any]) -> int:
    """Bytes measured: layers of both caches, and states that are no layers."""
    held = sum(size * n for part in ("self", "cross") for size, _, n in row.get(part, []))
    return held + row.get("extra", 0) + row.get("whole", [0])[0]


def _source(row: dict[str, Any]) -> int | None:
    """Source positions: the measuring script's 21 where cross-attention was filled."""
    return row.get("encoder", 21) if row.get("cross") else 0


def main() -> None:
    measured = json.loads((ROOT / "tests/ground_truth/transformers.json").read_bytes())
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    kinds: dict[str, set[str]] = defaultdict(set)
    for record in measured["records"]:
        caches, parameters = equal(record)
        row = counts[record["model_type"]]
        row[0] += 1
        row[1] += caches
        row[2] += parameters
        slots = kvproof.load_model(record["config"]).slots
        kinds[record["model_type"]] |= {slot.kind for slot in slots}
    recipes = known_model_types()
    types = {}
    for name in sorted({*known_types(), *counts}):
        own = sorted(set(kinds_of(name)) | kinds.get(name, set()))
        records, caches, parameters = counts.get(name, [0, 0, 0])
        types[name] = {
            "kinds": own,
            "records": records,
            "caches_equal": caches,
            "parameters_equal": parameters,
            "recipe": name in recipes,
        }
    document = {"transformers": measured["transformers"], "types": types}
    OUT.write_text(json.dumps(document, separators=(",", ":")) + "\n")
    whole = sum(r["records"] > 0 and r["records"] == r["caches_equal"] for r in types.values())
    exact = sum(r["records"] > 0 and r["records"] == r["parameters_equal"] for r in types.values())
    print(f"{len(types)} architectures; caches measured equal: {whole}; parameters: {exact}")


main()
