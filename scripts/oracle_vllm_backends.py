"""Ask vLLM 0.32 which attention backend it picks on each GPU, and compare with kvproof's choice.

    python scripts/oracle_vllm_backends.py [--python ENV/bin/python] [--cases 500] [--seed N]
                                           [--gpus A100-80GB,H100-80GB,...] [--save FILE]

Random attentions: widths, types, sinks, pictures, ranks, blocks, backends by name; --cases for
each GPU. ENV as for oracle_vllm.py. Exit status 1 when a choice differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from kvproof.engine.vllm.backend_table import ROWS
from kvproof.engine.vllm.backend_types import Attention
from kvproof.engine.vllm.backends import choose
from kvproof.errors import KvproofError

sys.path.insert(0, str(Path(__file__).resolve().parent))
from oracle_vllm import ask
from vllm_planner.pretend import GPUS

_WORKER = Path(__file__).parent / "vllm_planner" / "pick.py"
_LATENTS = ((128, 64, 128, 512), (192, 64, 256, 512), (64, 64, 128, 512), (256, 0, 256, 512),
            (64, 32, 64, 256), (96, 32, 96, 512))  # fmt: skip
"""Numbers of a head without rotary, its rotary part, its values, and the latent."""
_CACHES = ("auto", "auto", "auto", "fp8", "fp8", "fp8_e4m3", "fp8_e5m2", "bfloat16", "float16",
           "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "fp8_ds_mla",
           "nvfp4_ds_mla", "nvfp4", "nvfp4_4over6")  # fmt: skip
_WIDTHS = (16, 64, 72, 80, 96, 100, 128, 192, 256, 512)


def random_attention(rng: random.Random, gpu: str) -> dict[str, Any]:
    """An attention on the GPU, as the fields of `Attention` that differ from their defaults."""
    latent, heads = rng.random() < 0.5, rng.choice([4, 8, 16, 32, 64, 128])
    case: dict[str, Any] = {"gpu": gpu, "latent": latent, "query_heads": heads}
    case |= _latent(rng) if latent else _plain(rng, heads)
    case["kv_dtype"] = rng.choice(_CACHES)
    case["dtype"] = rng.choice(["bf16"] * 5 + ["f16", "f32"])
    case["context_ranks"] = rng.choice([1, 1, 1, 1, 1, 2])
    case["both_ways"] = rng.random() < 0.1
    if rng.random() < 0.6:
        case["block_size"] = rng.choice([16, 32, 48, 64, 80, 96, 128, 256, 512])
    if rng.random() < 0.4:
        case["forced"] = rng.choice([n for n, row in ROWS.items() if row.latent == latent])
    return {name: value for name, value in case.items() if value is not False}


def _latent(rng: random.Random) -> dict[str, Any]:
    nope, rope, values, latent = rng.choice(_LATENTS)
    return {
        "nope_dim": nope, "rope_dim": rope, "value_dim": values, "latent_dim": latent,
        "head_dim": latent + rope, "kv_heads": 1, "sparse": rng.random() < 0.5,
        "picked": rng.choice([2048, 2048, 512]),
    }  # fmt: skip


def _plain(rng: random.Random, heads: int) -> dict[str, Any]:
    return {
        "head_dim": rng.choice(_WIDTHS),
        "kv_heads": rng.choice([n for n in (1, 2, 4, 8, heads) if n <= heads]),
        "sinks": rng.random() < 0.15,
        "pictures": rng.random() < 0.15,
        "capped": rng.random() < 0.1,
        "diffusion": rng.random() < 0.05,
        "flash_4": rng.random() < 0.05,
    }


def own_choice(case: dict[str, Any]) -> dict[str, Any]:
    """What kvproof picks, in the worker's words."""
    fields = {name: value for name, value in case.items() if name != "gpu"}
    try:
        found = choose(Attention(capability=GPUS[case["gpu"]].capability, **fields))
    except KvproofError as error:
        return {"refused": str(error)}
    return {"name": found.name, "sizes": list(found.sizes), "multiple": found.multiple}


def same(own: dict[str, Any], real: dict[str, Any]) -> bool:
    """Whether the two picked alike, or both refuse."""
    return own == real or ("refused" in own and "refused" in real)


def _kept(real: dict[str, Any]) -> dict[str, Any]:
    """An answer as it is saved: of a refusal the kind of error."""
    return {"refused": real["refused"].partition(":")[0]} if "refused" in real else real


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--gpus", default=",".join(GPUS))
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    gpus = options.gpus.split(",")
    cases = [random_attention(rng, gpu) for gpu in gpus for _ in range(options.cases)]
    answers = ask(options.python, cases, _WORKER)
    wrong = [x for x in zip(cases, answers, strict=True) if not same(own_choice(x[0]), x[1])]
    for case, real in wrong[:40]:
        print(f"{case}: {str(real)[:200]} != {str(own_choice(case))[:120]}")
    print(f"asked {len(cases)} (seed {options.seed}): {len(wrong)} differ")
    if options.save:
        pairs = [[case, _kept(real)] for case, real in zip(cases, answers, strict=True)]
        options.save.write_text("[\n" + ",\n".join(map(json.dumps, pairs)) + "\n]\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
