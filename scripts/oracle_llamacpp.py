"""Ask the real llama.cpp what random contexts of random models allocate, and compare.

    python scripts/oracle_llamacpp.py [--models N] [--cases N] [--seed N] [--only ARCH,ARCH]
                                      [--gpus] [--file MODEL.gguf]

`--gpus` spreads every model over one or two GPUs that compute nothing (llamacpp_gpus.py) and the
host, and compares the compute buffer of each device; `--file` does so with a real file, which has
none of the optional tensors that a model of metadata alone gets.

Needs xllamacpp==2026.10.11549 (llama.cpp b11549 as a library), llama-cpp-py-sync==0.11548 (only
its C header text is read), cffi, gguf and numpy beside kvproof; `make oracle-llamacpp` installs
them. Models exist as metadata only: nothing is downloaded, contexts are made without their memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20,
         "bf16": 30}  # fmt: skip
# Lists that llama.cpp reads as 64-bit numbers alone.
WIDE = {"ple.layer_multipliers", "ple.head_offsets", "ple.head_vocab_sizes"}
FLASH = {"auto": -1, "off": 0, "on": 1}
FLAGS = {"n_ctx": "ctx_size", "n_seq_max": "parallel", "n_batch": "batch_size",
         "n_ubatch": "ubatch_size", "type_k": "cache_type_k", "type_v": "cache_type_v"}  # fmt: skip


def random_case(r: Random, *, recurrent: bool) -> dict[str, Any]:
    case: dict[str, Any] = {
        "n_ctx": r.choice(
            [0, 1, 255, 300, 1000, 4096, 8192, 10000, 32768, 131072, r.randint(1, 200000)]
        ),
        "n_seq_max": r.choice([1, 1, 2, 3, 4] if recurrent else [1, 1, 2, 3, 4, 7, 16, 64]),
        "kv_unified": r.random() < 0.4,
        "flash_attn": r.choice(["auto", "auto", "on", "off"]),
        "swa_full": r.random() < 0.15,
    }
    if case["n_ctx"]:  # the program aborts when a batch is shorter than the sequences are many
        case["n_ctx"] = max(case["n_ctx"], case["n_seq_max"])
    if r.random() < 0.5:
        case["n_batch"], case["n_ubatch"] = r.choice(
            [(2048, 2048), (512, 128), (64, 64), (4096, 1024)]
        )
    if r.random() < 0.5:
        case["type_k"] = r.choice(list(TYPES))
        case["type_v"] = case["type_k"] if r.random() < 0.6 else r.choice(list(TYPES))
    if recurrent and r.random() < 0.4:
        case["n_rs_seq"] = r.choice([1, 3])
    if r.random() < 0.5:  # the server's outputs are few, the C API's default is the whole batch
        case["n_outputs_max"] = max(case["n_seq_max"], r.choice([1, 4, 64]))
    return case


def write_gguf(path: Path, arch: str, keys: dict[str, Any]) -> None:
    import gguf

    writer = gguf.GGUFWriter(str(path), arch)
    for key, value in keys.items():
        name = key if key.startswith("xielu.") else f"{arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, float) or "freq_base" in key:
            writer.add_float32(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif key in WIDE:
            kind = gguf.GGUFValueType
            writer.add_key_value(name, value, kind.ARRAY, sub_type=kind.UINT64)
        else:
            writer.add_array(name, value)
    writer.add_string("tokenizer.ggml.model", "none")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def folder(package: str) -> Path:
    """Where a package is installed, without importing it."""
    import importlib.util

    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        sys.exit(f"{package} is not installed: see this script's first lines")
    return Path(spec.origin).parent


class Library:
    """llama.cpp's C API, from xllamacpp's shared library."""

    def __init__(self) -> None:
        import xllamacpp  # noqa: F401 - resolves the library's Python symbols
        from cffi import FFI

        self.path = str(next(folder("xllamacpp").glob("xllamacpp*.so")))
        text = (folder("llama_cpp_py_sync") / "_cffi_bindings.py").read_text()
        match = re.search(r'_LLAMA_H_CDEF = """(.*?)"""', text, re.S)
        if match is None:
            sys.exit("llama-cpp-py-sync has changed: its C header text is not where it was")
        self.ffi = FFI()
        self.ffi.cdef(match[1])
        if "gguf_init_from_file" not in match[1]:
            self.ffi.cdef(
                "struct gguf_init_params { bool no_alloc; struct ggml_context ** ctx; };"
                "struct gguf_context * gguf_init_from_file(const char *, struct gguf_init_params);"
            )
        self.lib = self.ffi.dlopen(self.path, os.RTLD_NOW | os.RTLD_GLOBAL)
        self.lines: list[str] = []

        @self.ffi.callback("void(enum ggml_log_level, const char *, void *)")
        def log(_level: int, words: Any, _user: Any) -> None:
            self.lines.append(self.ffi.string(words).decode("utf8", "replace"))

        @self.ffi.callback("void(struct ggml_tensor *, void *)")
        def fill(_tensor: Any, _user: Any) -> None:
            pass

        self.kept = (log, fill)
        self.lib.llama_log_set(log, self.ffi.NULL)
        self.lib.llama_backend_init()

    def load(self, path: str, layers: int = 0) -> Any:
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = layers
        params.no_alloc = True
        init = self.ffi.new("struct gguf_init_params *", {"no_alloc": True, "ctx": self.ffi.NULL})[
            0
        ]
        header = self.lib.gguf_init_from_file(path.encode(), init)
        return self.lib.llama_model_init_from_user(header, self.kept[1], self.ffi.NULL, params)

    def load_file(self, path: str, layers: int) -> Any:
        """A model with the tensors that a file has."""
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = layers
        params.no_alloc = True
        return self.lib.llama_model_load_from_file(path.encode(), params)

    def ask(self, model: Any, case: dict[str, Any], *, split: bool = False) -> dict[str, Any]:
        params = self.lib.llama_context_default_params()
        for name, value in case.items():
            if name in ("type_k", "type_v"):
                value = TYPES[value]
            if name == "flash_attn":
                name, value = "flash_attn_type", FLASH[value]
            setattr(params, name, value)
        params.n_threads = params.n_threads_batch = 1
        self.lines.clear()
        context = self.lib.llama_init_from_model(model, params)
        if context == self.ffi.NULL:
            return {"refused": "".join(self.lines)[-300:]}
        try:
            return self.devices(context) if split else self.breakdown(context)
        finally:
            self.lib.llama_free(context)

    def breakdown(self, context: Any) -> dict[str, Any]:
        """Bytes by kind: walks the std::map that llama_get_memory_breakdown returns."""
        out = {"context": 0, "compute": 0, "model": 0}
        for _, sizes in self.buffers(context):
            for name, value in zip(("model", "context", "compute"), sizes, strict=True):
                out[name] += value
        return out

    def devices(self, context: Any) -> dict[str, int]:
        """Bytes of the compute buffers: of GPUs by their number, and of the host as -1."""
        out: dict[str, int] = {}
        for name, sizes in self.buffers(context):
            device = name.removeprefix("CUDA") if name != "CUDA_Host" else "-1"
            device = device if device.isdigit() else "-1"
            out[device] = out.get(device, 0) + sizes[2]
        return out

    def buffers(self, context: Any) -> Iterator[tuple[str, list[int]]]:
        """Names of buffer types with bytes of model, context and compute."""
        import ctypes

        dll = ctypes.CDLL(self.path)
        label = dll.ggml_backend_buft_name
        label.restype, label.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        call = dll._Z26llama_get_memory_breakdownPK13llama_context
        call.restype, call.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]
        buffer = (ctypes.c_uint64 * 6)()
        call(ctypes.addressof(buffer), int(self.ffi.cast("uintptr_t", context)))
        stack = [buffer[2]]
        while stack:
            place = stack.pop()
            if place:
                # colour, parent, left, right, key, then the three sizes
                node = (ctypes.c_uint64 * 8).from_address(place)
                stack += [node[2], node[3]]
                yield label(node[4]).decode(), node[5:8]


def child() -> None:
    """Answer the job on standard input, one JSON line a case."""
    job = json.loads(sys.stdin.read())
    library = Library()
    gpus = job.get("gpus", 0)
    if gpus:
        from llamacpp_gpus import Gpus

        library.kept = (*library.kept, Gpus(library.path, gpus))
    load = library.load_file if job.get("file") else library.load
    model = load(job["path"], job.get("layers", 0))
    if model == library.ffi.NULL:
        print(json.dumps({"unloadable": "".join(library.lines)[-400:]}), flush=True)
        return
    for case in job["cases"]:
        print(json.dumps(library.ask(model, case, split=bool(gpus))), flush=True)


def ask(path: Path, cases: list[dict[str, Any]], **more: int) -> tuple[list[dict[str, Any]], str]:
    run = subprocess.run(
        [sys.executable, __file__, "--child"],
        input=json.dumps({"path": str(path), "cases": cases, **more}),
        capture_output=True,
        text=True,
        check=False,
    )
    return [
        json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")
    ], run.stderr


def predict(arch: str, keys: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    import kvproof

    model = kvproof.load_model(
        {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in keys.items()}}
    )
    flags = {FLAGS.get(name, name): value for name, value in case.items()}
    flags.setdefault("n_outputs_max", 0)  # the C API reserves outputs for the whole batch
    try:
        budget = kvproof.budget(model, kvproof.Deployment("llamacpp@b11549", **flags))
    except kvproof.KvproofError as error:
        return {"refused": str(error)}
    compute = next(term.value for term in budget.terms if term.name.startswith("compute"))
    return {"context": budget.kv_bytes, "compute": compute}


def predict_split(
    source: Any, case: dict[str, Any], gpus: int, layers: int
) -> dict[str, int] | None:
    """Compute buffers by device of metadata or of a file; None where the graph is not known or
    llama.cpp refuses.
    """
    import msgspec

    import kvproof
    from kvproof.engine.llamacpp.context import context_of
    from kvproof.engine.llamacpp.devices import placement
    from kvproof.engine.llamacpp.flags import flags_of
    from kvproof.engine.llamacpp.graph import split_bytes
    from kvproof.engine.llamacpp.graph.schedule import Weights
    from kvproof.engine.llamacpp.memory import loses_flash
    from kvproof.engine.llamacpp.split import where_of

    model = kvproof.load_model(source)
    given = {FLAGS.get(name, name): value for name, value in case.items() if name in FLAGS
             or name in ("kv_unified", "flash_attn", "swa_full", "n_rs_seq")}  # fmt: skip
    given["kv_offload"] = case.get("offload_kqv", True)
    given["n_outputs_max"] = case.get("n_outputs_max", 0)
    try:
        flags = flags_of(kvproof.Deployment("llamacpp@b11549", **given, n_gpu_layers=layers))
        context = context_of(model, flags)
    except kvproof.KvproofError:
        return None
    place = placement(model, flags, gpus)
    if loses_flash(flags, place, context):
        context = context_of(model, msgspec.structs.replace(flags, flash_attn="off"))
    # A dry run does not hold norms in place; weights of a model without tensors are f32.
    where = where_of(model, flags, place)
    where = msgspec.structs.replace(where, norms_stay=False)
    if isinstance(source, dict):
        plain = (Weights(each=4.0, expert=4.0),) * (model.layers + 1)
        where = msgspec.structs.replace(where, weights=plain)
    sizes = split_bytes(model, context, where)
    return None if sizes is None else {str(device): size for device, size in sizes.items()}


def compare_split(recipe: str, seed: int, count: int, folder: Path, tally: Counter[str],
                  errors: dict[str, list[float]], save: list[Any] | None) -> None:  # fmt: skip
    """Ask and predict contexts of a random model over GPUs and host."""
    from llamacpp_models import metadata

    r = Random(f"{recipe}/{seed}/gpus")
    arch, keys = metadata(recipe, r)
    path = folder / f"{recipe}.gguf"
    write_gguf(path, arch, keys)
    recurrent = any(part in key for key in keys for part in ("ssm", "wkv", "conv", "compress"))
    every = keys["block_count"]
    described = {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in keys.items()}}
    for gpus, layers in _splits(every):
        cases = [random_case(r, recurrent=recurrent) | {"offload_kqv": r.random() < 0.7}
                 for _ in range(count)]  # fmt: skip
        answers, _ = ask(path, cases, gpus=gpus, layers=layers)
        for case, real in zip(cases, answers, strict=False):
            same = _compared(recipe, described, case, real, (gpus, layers), tally, errors)
            if save is not None and same:
                save.append({"arch": arch, "keys": keys, "case": case, "gpus": gpus,
                             "layers": layers, "sizes": real})  # fmt: skip


def _splits(layers: int) -> tuple[tuple[int, int], ...]:
    """Counts of GPUs and of layers on them."""
    return (1, 999), (2, 999), (1, layers // 2), (2, layers // 2 + 1), (1, 0)


def _compared(name: str, source: Any, case: dict[str, Any], real: dict[str, Any],
              split: tuple[int, int], tally: Counter[str],
              errors: dict[str, list[float]]) -> bool:  # fmt: skip
    """Whether every device's buffer is as predicted; counted, and printed where it is not."""
    mine = predict_split(source, case, *split)
    if mine is None or "refused" in real or "unloadable" in real:
        tally["not comparable"] += 1
        return False
    tally["asked"] += 1
    same = all(mine[device] == size for device, size in real.items())
    tally["equal" if same else "different"] += 1
    if not same:
        print(f"{name} GPUs {split[0]} layers {split[1]} {case}: {real}, {mine}")
    errors.setdefault(name, []).extend(
        abs(mine[device] / size - 1) for device, size in real.items() if size
    )
    return same


def compare_file(path: Path, seed: int, count: int, tally: Counter[str],
                 errors: dict[str, list[float]]) -> None:  # fmt: skip
    """Ask and predict contexts of a real file over GPUs and host."""
    import kvproof

    r = Random(f"{path.name}/{seed}")
    for gpus, layers in _splits(kvproof.load_model(str(path)).layers):
        cases = [random_case(r, recurrent=False) | {"offload_kqv": r.random() < 0.7}
                 for _ in range(count)]  # fmt: skip
        answers, _ = ask(path, cases, gpus=gpus, layers=layers, file=1)
        for case, real in zip(cases, answers, strict=False):
            _compared(path.name, str(path), case, real, (gpus, layers), tally, errors)


def compare(recipe: str, seed: int, count: int, folder: Path, tally: Counter[str],
            errors: dict[str, list[float]], save: list[Any] | None) -> None:  # fmt: skip
    from llamacpp_models import metadata

    r = Random(f"{recipe}/{seed}")
    arch, keys = metadata(recipe, r)
    path = folder / f"{recipe}.gguf"
    write_gguf(path, arch, keys)
    recurrent = any(
        part in key for key in keys for part in ("ssm", "wkv", "shortconv", "kda", "compress")
    )
    cases = [random_case(r, recurrent=recurrent) for _ in range(count)]
    answers, trouble = ask(path, cases)
    if not answers or "unloadable" in answers[0]:
        tally["unloadable"] += 1
        why = answers[0]["unloadable"] if answers else trouble
        found = re.search(r"GGML_ASSERT.*|terminate.*|what\(\).*", why)
        why = found[0] if found else why
        print(f"{recipe}: llama.cpp does not load it: {' '.join(why.split())[-160:]}")
        return
    for case, real in zip(cases, answers, strict=False):
        mine = predict(arch, keys, case)
        tally["asked"] += 1
        if ("refused" in real) != ("refused" in mine) or real.get("context") != mine.get("context"):
            tally["different"] += 1
            print(f"{recipe} seed {seed} {case}: llama.cpp {real}, kvproof {mine}")
            continue
        tally["equal"] += 1
        if real.get("compute"):
            errors.setdefault(recipe, []).append(abs(mine["compute"] / real["compute"] - 1))
            if save is not None:
                save.append({"arch": arch, "keys": keys, "case": case, "compute": real["compute"]})


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=1, help="random models of an architecture")
    parser.add_argument("--cases", type=int, default=10, help="random contexts of each model")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="architectures, comma-separated")
    parser.add_argument("--save", default="", help="write compute buffers as JSON to this file")
    parser.add_argument("--gpus", action="store_true", help="compare the buffers of GPUs and host")
    parser.add_argument("--file", default="", help="a real file over GPUs and host")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child()
        return 0
    from llamacpp_models import RECIPES

    seed = Random().randint(0, 10**6) if args.seed is None else args.seed
    tally: Counter[str] = Counter()
    errors: dict[str, list[float]] = {}
    save: list[Any] | None = [] if args.save else None
    with tempfile.TemporaryDirectory() as name:
        if args.file:
            compare_file(Path(args.file), seed, args.cases, tally, errors)
        for recipe in [] if args.file else args.only.split(",") if args.only else RECIPES:
            for turn in range(args.models):
                one = compare_split if args.gpus else compare
                one(recipe, seed + turn, args.cases, Path(name), tally, errors, save)
    if save is not None:
        Path(args.save).write_text(json.dumps(save))
    for recipe, values in sorted(errors.items()):
        middle, worst = median(values), max(values)
        print(f"compute buffer of {recipe}: median error {middle:.2%}, worst {worst:.2%}")
    print(
        f"seed {seed}: asked {tally['asked']}, equal {tally['equal']}, "
        f"different {tally['different']}, models llama.cpp did not load: {tally['unloadable']}"
    )
    return 1 if tally["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
