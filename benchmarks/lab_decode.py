"""End-to-end decode of SmolLM2-135M at a long context: the lab against transformers.

    python benchmarks/lab_decode.py [--context 4096] [--steps 16] [--threads 1]

Both run the same weight tensors on the same threads from the same prefilled context; the lab's
paged cache in the weights' type and in int8. Prints milliseconds a token and the ratios.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from kvproof.kinds import Types
from kvproof.lab.attention import View
from kvproof.lab.elements import cache_types
from kvproof.lab.experiments.material import text_tokens
from kvproof.lab.generate import last_logits, pool_for
from kvproof.lab.models.as_transformers import to_transformers
from kvproof.lab.models.runner import Runner
from kvproof.lab.models.sources import load
from kvproof.lab.steps import PagedStep


def lab_times(runner: Runner, tokens: list[int], steps: int, types: Types) -> list[float]:
    pool = pool_for(runner, len(tokens) + steps + 1, types)
    sequence, _ = pool.open()
    times, token = [], 0
    for i in range(steps + 1):
        new = tokens if i == 0 else [token]
        start = time.perf_counter()
        pool.append(sequence, len(new))
        step = PagedStep(View(pool, [sequence], [len(new)]))
        token = int(last_logits(runner, new, sequence.length - len(new), step).argmax())
        times.append(time.perf_counter() - start)
    return times[1:]


def their_times(model: Any, tokens: list[int], steps: int) -> list[float]:
    from transformers import DynamicCache

    cache, times = DynamicCache(config=model.config), []
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        for _ in range(steps + 1):
            start = time.perf_counter()
            logits = model(ids, cache=cache, logits_to_keep=1).logits[:, -1]
            ids = logits.argmax(-1, keepdim=True)
            times.append(time.perf_counter() - start)
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokens = text_tokens(options.context)
    for dtype, name in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        runner = load(dtype=dtype)
        theirs = sorted(their_times(to_transformers(runner), tokens, options.steps))
        middle = theirs[len(theirs) // 2]
        print(f"{name}, context {options.context:,}, {options.threads} thread(s): transformers "
              f"{1e3 * middle:.1f} ms a token")  # fmt: skip
        for cache in (name, "int8"):
            ours = sorted(lab_times(runner, tokens, options.steps, cache_types(cache)))
            median = ours[len(ours) // 2]
            print(f"  lab, {cache} cache: {1e3 * median:.1f} ms, "
                  f"{middle / median:.2f} x transformers' speed", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
