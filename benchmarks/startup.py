"""CPU time of the command line as a whole process, against its limits and its peers.

    python benchmarks/startup.py            kvproof alone
    python benchmarks/startup.py --peers    also hf-mem --help and servcalc, when installed

Limits: a local config in at most 200 ms of CPU, --help in 120 ms, import in 60 ms above Python.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "head_dim": 128,
}  # fmt: skip


def cpu_ms(command: list[str], runs: int = 9) -> float:
    """Median user + system milliseconds of `command`, after one warm-up."""
    times = []
    for _ in range(runs + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return 1000 * statistics.median(times[1:])


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    python, ours = sys.executable, [sys.executable, "-m", "kvproof"]
    bare = cpu_ms([python, "-c", ""])
    rows = [
        ("kvproof cache config.json", cpu_ms([*ours, "cache", str(config)]), 200.0),
        ("kvproof --help", cpu_ms([*ours, "--help"]), 120.0),
        ("import kvproof, above Python", cpu_ms([python, "-c", "import kvproof"]) - bare, 60.0),
        ("kvproof MODEL --gpu H100-80GB",
         cpu_ms([*ours, "meta-llama/Llama-3.1-8B", "--gpu", "H100-80GB"]), 1000.0),
    ]  # fmt: skip
    for name, value, limit in rows:
        print(f"{name:36} {value:8.1f} ms CPU   limit {limit:6.0f} ms   {value / limit:5.2f} of it")
    if "--peers" in sys.argv:
        peers(config, rows)
    shutil.rmtree(folder)
    sys.exit(any(value > limit for _, value, limit in rows))


def peers(config: Path, rows: list[tuple[str, float, float]]) -> None:
    """The same questions to the peers that are on the path (KVPROOF_PEERS: their bin folder)."""
    where = os.environ.get("KVPROOF_PEERS", "")
    for name, args, ours in (
        ("hf-mem", ["--help"], rows[1][1]),
        ("servcalc", [str(config), "--gpu", "H100 80GB"], rows[0][1]),
    ):
        program = shutil.which(name, path=where or None)
        if program is None:
            print(f"{name}: not installed (pip install {name})")
            continue
        try:
            value = cpu_ms([program, *args], runs=5)
        except subprocess.CalledProcessError as error:
            print(f"{name} {' '.join(args)}: exits with {error.returncode}")
            continue
        asked = f"{name} {args[0].rpartition('/')[2]}"
        times = value / ours
        print(f"{asked:36} {value:8.1f} ms CPU   ours {ours:6.1f} ms   {times:5.1f}x ours")


main()
