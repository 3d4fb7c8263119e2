"""End-to-end decode of SmolLM2-135M at a long context: the lab, transformers and llama.cpp.

    python benchmarks/lab_decode.py [--context 4096] [--steps 5] [--rounds 7] [--threads 1]

All three run the same numbers on the same threads, with weights and cache in the same element type,
after the same text, which the lab reads once: transformers (with its SDPA attention) and the lab's
int8 cache are given its entries. llama.cpp (through xllamacpp, when it is installed) gets a GGUF
file of the same weights in the element type, reads the text itself, and runs with and without flash
attention: the better one counts. Then they take turns, so that whatever else the machine does meets
all of them; printed are the median milliseconds a token and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from kvproof.lab.attention import View
from kvproof.lab.elements import cache_types
from kvproof.lab.experiments.material import text_tokens
from kvproof.lab.generation import last_logits, pool_for
from kvproof.lab.models.as_transformers import to_transformers
from kvproof.lab.models.runner import Runner
from kvproof.lab.models.sources import default_weights, load
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.pool.tables import Sequence
from kvproof.lab.steps import PagedStep

Turn = Callable[[int], float]  # decodes so many tokens, returns milliseconds a token
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
_PIECE = 512  # tokens of the text read at a time: attention over what comes later costs nothing


class Lab:
    """The lab's runner over a paged pool that holds the text: read, or copied from `like`."""

    def __init__(
        self, runner: Runner, tokens: list[int], room: int, cache: str, like: Lab | None = None
    ) -> None:
        self.runner, self.last = runner, tokens[-1]
        self.pool: PagedPool = pool_for(runner, len(tokens) + room, cache_types(cache))
        self.sequence: Sequence = self.pool.open()[0]
        self.tokens: list[int] = []
        if like is None:
            for start in range(0, len(tokens) - 1, _PIECE):
                self._step(tokens[start : min(start + _PIECE, len(tokens) - 1)])
        else:
            self.pool.append(self.sequence, len(tokens) - 1)
            view = View(self.pool, [self.sequence], [len(tokens) - 1])
            for layer, vectors in enumerate(like.entries()):
                view.write(layer, *vectors)

    def entries(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Keys and values of each layer, [positions, heads, dim]."""
        table = self.sequence.tables[0]
        blocks, held = torch.tensor(table.blocks), slice(0, table.entries)
        for planes in self.pool.groups[0].planes:
            yield tuple(p.read(blocks, held) for p in planes)  # type: ignore[union-attr]

    def _step(self, new: list[int]) -> int:
        self.pool.append(self.sequence, len(new))
        step = PagedStep(View(self.pool, [self.sequence], [len(new)]))
        start = self.sequence.length - len(new)
        return int(last_logits(self.runner, new, start, step).argmax())

    def __call__(self, steps: int) -> float:
        token, self.tokens = self.last, []
        start = time.perf_counter()
        for _ in range(steps):
            token = self._step([token])
            self.tokens.append(token)
        seconds = time.perf_counter() - start
        self.pool.shorten(self.sequence, steps)
        return 1e3 * seconds / steps


class Transformers:
    """The same weight tensors in transformers' Llama; entries copied from the lab's pool."""

    def __init__(self, lab: Lab) -> None:
        from transformers import DynamicCache

        self.model, self.last = to_transformers(lab.runner), lab.last
        self.cache = DynamicCache(config=self.model.config)
        for layer, vectors in enumerate(lab.entries()):
            k, v = (x.to(lab.runner.dtype).transpose(0, 1)[None] for x in vectors)
            self.cache.update(k, v, layer)
        self.tokens: list[int] = []

    def __call__(self, steps: int) -> float:
        ids, self.tokens = torch.tensor([[self.last]]), []
        start = time.perf_counter()
        with torch.inference_mode():
            for _ in range(steps):
                logits = self.model(ids, cache=self.cache, logits_to_keep=1).logits[:, -1]
                ids = logits.argmax(-1, keepdim=True)
                self.tokens.append(int(ids))
        seconds = time.perf_counter() - start
        self.cache.crop(-steps)
        return 1e3 * seconds / steps


class LlamaCpp:
    """llama.cpp's own server in this process; its own timings of the decoded tokens."""

    def __init__(self, path: Path, tokens: list[int], kind: str, threads: int, flash: str) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.verbosity = len(tokens) + 256, 1, 0
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = os.cpu_count() or threads
        stored = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{kind.upper()}")
        params.cache_type_k = params.cache_type_v = stored
        flashes = xllamacpp.llama_flash_attn_type
        params.flash_attn_type = getattr(flashes, f"LLAMA_FLASH_ATTN_TYPE_{flash}")
        self.server, self.prompt = xllamacpp.Server(params), tokens
        self(1)  # the prefill, kept by the server

    def __call__(self, steps: int) -> float:
        asked = {"prompt": self.prompt, "n_predict": steps + 1, "temperature": 0,
                 "ignore_eos": True, "cache_prompt": True}  # fmt: skip
        answer: dict[str, Any] = self.server.handle_completions(asked)
        return float(answer["timings"]["predicted_per_token_ms"])


def rewrite(source: Path, target: Path, kind: str) -> None:
    """A GGUF file of the same numbers, its matrices in `kind` (norms stay f32, as llama.cpp's)."""
    import gguf

    reader = gguf.GGUFReader(str(source))
    stored = gguf.GGMLQuantizationType[kind.upper()]
    writer = gguf.GGUFWriter(str(target), str(reader.fields["general.architecture"].contents()))
    left_out = ("general.architecture", "general.file_type", "general.quantization_version")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in left_out:
            writer.add_key_value(field.name, field.contents(), field.types[0],
                                 field.types[-1] if len(field.types) > 1 else None)  # fmt: skip
    for tensor in reader.tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if numbers.ndim == 1:
            writer.add_tensor(tensor.name, numbers)
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(numbers, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def contestants(kind: str, tokens: list[int], room: int, threads: int) -> dict[str, Turn]:
    """Everyone, after the same text; llama.cpp only where xllamacpp is installed."""
    lab = Lab(load(dtype=_DTYPES[kind]), tokens, room, kind)
    turns: dict[str, Turn] = {f"lab, {kind} cache": lab, "transformers": Transformers(lab)}
    if importlib.util.find_spec("xllamacpp"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{kind}.gguf"
            rewrite(default_weights(), path, kind)
            for flash, name in (("DISABLED", "llama.cpp"), ("ENABLED", "llama.cpp, flash")):
                turns[name] = LlamaCpp(path, tokens, kind, threads, flash)
    turns["lab, int8 cache"] = Lab(lab.runner, tokens, room, "int8", like=lab)
    return turns


def report(kind: str, times: dict[str, list[float]]) -> None:
    """Medians, and the lab's time over each of the others' (of llama.cpp's two, the faster)."""
    ours = times[f"lab, {kind} cache"]
    for name, values in times.items():
        print(f"  {name:18} {middle(values):7.1f} ms a token", flush=True)
    for name in ("transformers", "llama.cpp"):
        ways = [values for other, values in times.items() if other.startswith(name)]
        if ways:
            best = min(ways, key=middle)
            ratio = middle([a / b for a, b in zip(ours, best, strict=True)])
            print(f"  the lab takes {ratio:.2f} x {name}'s time")


def middle(values: list[float]) -> float:
    """The median."""
    return sorted(values)[len(values) // 2]


def main() -> None:
    """Measure in f32, then in bf16."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--types", nargs="+", default=["f32", "bf16"], choices=list(_DTYPES))
    options = parser.parse_args()
    tokens = text_tokens(options.context)
    for kind in options.types:
        torch.set_num_threads(os.cpu_count() or 1)
        turns = contestants(kind, tokens, options.steps + 1, options.threads)
        torch.set_num_threads(options.threads)
        for turn in turns.values():
            turn(1)  # compiles and warms up
        times: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(options.rounds):
            for name, turn in turns.items():
                times[name].append(turn(options.steps))
        lab, theirs = turns[f"lab, {kind} cache"], turns["transformers"]
        same = lab.tokens == theirs.tokens  # type: ignore[attr-defined]
        print(f"{kind}, context {options.context:,}, {options.threads} thread(s), "
              f"lab and transformers made {'the same' if same else 'other'} tokens")  # fmt: skip
        report(kind, times)


if __name__ == "__main__":
    main()
