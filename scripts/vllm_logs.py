"""Start-up logs as deployments: what scripts/fit_vllm_budget.py and the accuracy table read.

A row names a model, a GPU and flags in the words of whoever posted it; this module turns them
into the names that kvproof knows. What a row leaves out stays out.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvproof
from kvproof.engine.vllm.versions import V0_MODULE, planned_by
from kvproof.errors import KvproofError
from kvproof.hardware import accelerator
from kvproof.model.types import Model
from kvproof.observe.deploy import by_memory

GIB = 2**30

SAME_SHAPE = {
    "Qwen3.8-27B 4-bit": "Qwen/Qwen3.8-27B",
    "RedHatAI/DeepSeek-R1-Distill-Qwen-1.5B-quantized.w8a8": "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen2.5-Math-1.5B": "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen2.5-0.5B(-Instruct)": "Qwen/Qwen2.5-0.5B",
    "XiaomiMiMo/MiMo-V2.6-Flash-MOPD": "XiaomiMiMo/MiMo-V2-Flash",
    "zai-org/GLM-5.2/5.3-class": "zai-org/GLM-5.2",
    "gemma-4-31B class": "google/gemma-4-31B",
    "Qwen3.6-35B-A3B NVFP4": "nvidia/Qwen3.6-35B-A3B-NVFP4",
    "Qwen3.6-27B NVFP4": "nvidia/Qwen3.6-27B-NVFP4",
    "Qwen3.6-27B": "Qwen/Qwen3.5-27B",
    "Qwen3.x-27B": "Qwen/Qwen3.5-27B",
    "Qwen3.6/3.8-27B class": "Qwen/Qwen3.5-27B",
    "llava/mistral-7B class VLM": "mistralai/Mistral-7B-v0.3",
    "Qwen2/2.5-VL-7B class": "Qwen/Qwen2.5-VL-7B-Instruct",
    "Phi-3-medium/Phi-4 4-bit class": "microsoft/phi-4",
    "lightonai/LightOnOCR-2-1B": "Qwen/Qwen3-0.6B",
    "Llama-3.1-8B/Mistral-7B class": "meta-llama/Meta-Llama-3.1-8B",
}
"""Models of the logs that share another model's shapes (their weights may be stored otherwise)."""

EQUAL = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "Qwen/Qwen2.5-14B",
    "GLM-4.7-NVFP4": "nvidia/GLM-4.7-NVFP4",
    "chankhavu/Nemotron-Cascade-2-30B-A3B-NVFP4": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4",
    "RedHatAI/Qwen3-Coder-Next-FP8-dynamic": "RedHatAI/Qwen3-Next-80B-A3B-Instruct-FP8-dynamic",
    "Qwen/Qwen3.6-27B-FP8": "Qwen/Qwen3.5-27B-FP8",
}
"""Models of the logs whose shapes and storage are those of another that kvproof knows: the weights
that they print are met to 0.3 %."""

_GPUS = (
    ("h100-class 94", "H100-NVL-94GB"), ("h100", "H100-80GB"), ("h200", "H200"), ("b300", "B300"),
    ("b200", "B200"),
    ("rtx pro 6000", "RTX-PRO-6000"), ("gb10", "GB10"), ("5090 laptop", None),
    ("5090", "RTX-5090"), ("3090", "RTX-3090"), ("4090", "RTX-4090"), ("5080", "RTX-5080"),
    ("5060", "RTX-5060-Ti-16GB"), ("t4", "T4"), ("a100 80", "A100-80GB"), ("a100", "A100-40GB"),
    ("l40s", "L40S"), ("l4", "L4"), ("mi300", "MI300X"), ("rocm", "MI300X"),
    ("v100", "V100-32GB"), ("h20", "H20"),
)  # fmt: skip
_PLAIN = (
    "gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "max_num_seqs",
    "block_size", "enable_prefix_caching", "enforce_eager", "mamba_ssm_cache_dtype",
    "mamba_cache_mode", "quantization", "dtype", "attention_backend", "language_model_only",
)  # fmt: skip
_RENAMED = (
    ("tp", "tensor_parallel_size"), ("pp", "pipeline_parallel_size"),
    ("dcp", "decode_context_parallel_size"),
)  # fmt: skip
_COMMAND_VALUES = (
    "block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len",
    "gpu_memory_utilization", "mm_encoder_tp_mode",
)  # fmt: skip
_COMMAND_SWITCHES = ("enable_expert_parallel", "language_model_only", "async_scheduling")


# Releases that a log does not name but its own arithmetic settles: requested - weights - peak
# - non-torch is the printed memory to 0.02 GiB, so graphs were not charged (before 0.21), and the
# peak is that of the sampler that sorted for top-p (before 0.17).
#
# 0.6.5 to 0.6.6 print weights, memory outside torch and the peak apart, 0.6.4 all in one line.
SETTLED = {
    **dict.fromkeys(("log091", "log094", "log097", "log098"), "0.11"),
    **dict.fromkeys(("log014", "log202", "log302"), "0.6.6"),
}


@dataclass(frozen=True)
class Point:
    """One start-up: who, on what, with which flags, and what it printed."""

    id: str
    name: str
    confidence: str
    version: str | None
    gpu: str | None
    flags: dict[str, Any]
    observed: dict[str, Any]
    note: str
    release: str | None = None
    """The release as written, a vendor's build included."""

    @property
    def own_shape(self) -> bool:
        """Whether the model itself is known, not only one of its shape."""
        return self.name not in SAME_SHAPE

    def model(self) -> Model | None:
        """The model, None when the catalogue has neither it nor one of its shape."""
        try:
            return kvproof.load_model(
                SAME_SHAPE.get(self.name) or EQUAL.get(self.name, self.name), offline=True
            )
        except KvproofError:
            return None

    def deployment(self) -> kvproof.Deployment:
        engine = f"vllm@{self.version}" if self.version else "vllm"
        return kvproof.Deployment(engine, self.gpu, **self.flags)


def read_points(folder: Path, *, settled: bool = True) -> Iterator[Point]:
    """Every vLLM row of the two files of start-up logs in `folder`.

    With `settled`, those in SETTLED have the release that their own arithmetic gives.
    """
    for name in ("engine_startups.jsonl", "server_startups.jsonl"):
        for line in (folder / name).read_text().splitlines():
            row = json.loads(line)
            if row["engine"] == "vllm":
                yield _point(row, settled=settled)


def _point(row: dict[str, Any], *, settled: bool) -> Point:
    known = SETTLED.get(row["id"]) if settled else None
    return Point(
        id=row["id"],
        name=re.split(r" \(| \+|,| W4A16", row["model"].replace(" (FP8)", "-FP8"))[0].strip(),
        confidence=row["model_confidence"],
        version=known or _version(row.get("engine_version")),
        gpu=_by_memory(_gpu((row.get("gpu") or {}).get("name") or ""), row["observed"]),
        flags=_flags(row),
        observed=row["observed"],
        note=row.get("note", ""),
        release=row.get("engine_version"),
    )


def _version(text: str | None) -> str | None:
    if not text or text.startswith("0.1.dev"):
        return None
    if text.startswith("0.1x"):
        return "0.11"
    if text.startswith("0.2x"):
        return "0.28"
    if text.startswith("0.6-0.8"):
        return "0.7"
    match = re.search(r"\d+\.\d+(\.\d+)?", text)
    if match and "V0 engine" in text:
        return planned_by(match[0], (V0_MODULE,))
    return match[0] if match else None


def _gpu(text: str) -> str | None:
    low = text.lower()
    found = next((name for part, name in _GPUS if part in low), None)
    for name in (text.split(" (")[0], found):
        if name and _known(name):
            return name
    return None


def _by_memory(name: str | None, observed: dict[str, Any]) -> str | None:
    """The board of that chip that has the memory which the driver was seen to report.

    A B200 of 184.31 GiB is a GB200's.
    """
    seen = observed.get("total_gpu_memory_gib")
    if name is None or not seen:
        return name
    card = accelerator(name)
    near, own = [row.name for row in by_memory(seen * GIB, (card.vendor,))], card.name
    chip = own.split("-")[0]
    return own if own in near else next((other for other in near if chip in other), name)


def _known(name: str) -> bool:
    try:
        kvproof.Deployment("vllm", name)
    except KvproofError:
        return False
    return True


def _flags(row: dict[str, Any]) -> dict[str, Any]:
    args, observed = row["args"], row["observed"]
    flags = {key: args[key] for key in _PLAIN if args.get(key) is not None}
    flags |= {new: args[old] for old, new in _RENAMED if args.get(old)}
    batched = flags.get("max_num_batched_tokens")
    if isinstance(batched, str):
        del flags["max_num_batched_tokens"]  # "2048 scheduled": another quantity
    if args.get("kv_cache_dtype"):
        flags["kv_cache_dtype"] = args["kv_cache_dtype"].split(" ")[0]
    if args.get("ep"):
        flags["enable_expert_parallel"] = True
    if flags.get("mamba_cache_mode") == "align":
        flags["enable_prefix_caching"] = True
    if args.get("speculative"):
        flags["speculative_config"] = _speculative(args["speculative"])
    flags |= _command(args.get("command"))
    if "max_model_len" not in flags and observed.get("max_concurrency_len"):
        flags["max_model_len"] = observed["max_concurrency_len"]
    return flags


def _speculative(text: str) -> dict[str, Any]:
    counts = re.findall(r"\b(\d+)\b", text)
    method = text.split()[0].lower().rstrip("0123456789")
    return {"method": method, "num_speculative_tokens": int(counts[-1]) if counts else 1}


def _command(command: object) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in (command if isinstance(command, dict) else {}).items():
        name = key.replace("-", "_")
        if name == "no_enable_prefix_caching":
            out["enable_prefix_caching"] = False
        elif name in _COMMAND_VALUES:
            out[name] = value
        elif name in _COMMAND_SWITCHES:
            out[name] = True
    return out


warnings.simplefilter("ignore")
