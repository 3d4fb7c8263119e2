"""The gathered start-ups as points: model, deployment, and what was printed."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kvproof
from kvproof.errors import KvproofError
from kvproof.model.types import Model

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("KVPROOF_DATA", ROOT.parent / "shared" / "data"))
GIB = 2**30

_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt_llm"}
_SHORT = {
    "vllm": {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size",
             "dcp": "decode_context_parallel_size", "ep": None},
    "sglang": {"tp": "tp_size", "ep": "ep_size", "dp": "dp_size"},
    "tensorrt_llm": {"tp": "tp_size"},
}  # fmt: skip
# Keys of the records that say what was observed or how, not what was given.
_NO_FLAG = ("attention_block_size", "command", "cpu_offload", "experts", "speculative")
# Releases of records that only give a date: the newest before it.
_DATED = {
    "vllm": {"Jan 2026": "0.13", "mid-2026": "0.24", "Aug 2026": "0.28", "Sep 2026": "0.29",
             "Sep-Oct 2026": "0.30", "0.1x": "0.11", "0.2x": "0.28", "vllm fork": "0.28",
             "2026": "0.24"},
    "sglang": {"May 2025": "0.4.6", "Feb 2026": "0.5.9", "May 2026": "0.5.12",
               "mid-2026": "0.5.13", "Jul 2026": "0.5.16", "2026": "0.5.12"},
    "tensorrt_llm": {"2026": "1.2"},
}  # fmt: skip
_GPUS = (
    (r"RTX PRO 6000", "RTX-PRO-6000-96GB"), (r"GB10|DGX Spark", "GB10"),
    (r"MI355X|MI35x", "MI355X"), (r"5090 Laptop", "RTX-5090-Laptop-24GB"),
    (r"A10/A10G", "A10G"), (r"H100-class 94", None),
    (r"A100/H100 80GB|H100 80GB", "H100-80GB"), (r"A100 40GB", "A100-40GB"),
    (r"A100/A800 80GB|A100 80GB", "A100-80GB"), (r"^H100$", "H100-80GB"), (r"B300", "B300"),
    (r"B200", "B200"), (r"MI300X", "MI300X-192GB"), (r"Instinct \(ROCm, 192GB", "MI300X-192GB"),
    (r"^H200", "H200-141GB"), (r"RTX 3090/4090", "RTX-3090-24GB"),
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One start: how it was deployed and the figures that it printed."""

    id: str
    engine: str
    version: str | None
    model_name: str
    model: Model
    deployment: kvproof.Deployment
    confident: bool
    kv_bytes: float | None
    kv_half: float
    observed: dict[str, Any]
    note: str = ""
    dropped: tuple[str, ...] = field(default=())

    @property
    def architecture(self) -> str:
        """The model's class without its suffix."""
        return re.sub(r"For(Causal|Conditional).*", "", self.model.architecture)

    @property
    def gpu(self) -> str:
        """The GPU's name, or a dash."""
        found = self.deployment.accelerator
        return found.name if found is not None else "-"


def points() -> Iterator[Point | tuple[str, str]]:
    """Every record with its model and deployment, or (id, why it has none)."""
    for name in ("engine_startups", "server_startups"):
        for line in (DATA / "logs" / f"{name}.jsonl").read_text().splitlines():
            record = json.loads(line)
            try:
                yield _point(record)
            except KvproofError as error:
                yield record["id"], error.message


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    path = Path(__file__).with_name("accuracy_models.json")
    found: dict[str, dict[str, Any]] = json.loads(path.read_text())["models"]
    return found


@functools.cache
def causes() -> dict[str, str]:
    """Why a point lies outside, where someone looked."""
    path = Path(__file__).with_name("accuracy_causes.json")
    found: dict[str, str] = json.loads(path.read_text())
    return found


@functools.cache
def model_of(name: str) -> Model:
    """The model that a record names: a published config first, then the catalogue."""
    row = _table().get(name, {"model": name})
    path = DATA / "configs" / (row["model"].replace("/", "--") + ".json")
    if not path.is_file():
        return kvproof.load_model(row["model"], offline=True)
    config = json.loads(path.read_text())
    return kvproof.load_model({**config, **row.get("set", {}), "_name_or_path": row["model"]})


def _point(record: dict[str, Any]) -> Point:
    engine, seen = _ENGINES[record["engine"]], record["observed"]
    model = model_of(record["model"])
    version = _version(engine, record.get("engine_version"))
    gpu = _gpu(record.get("gpu") or {})
    deployment, dropped = _deployment(engine, version, gpu, _flags(engine, record))
    value, half = _memory(seen)
    return Point(
        id=record["id"],
        engine=engine,
        version=version,
        model_name=record["model"],
        model=model,
        deployment=deployment,
        confident=record.get("model_confidence") == "high",
        kv_bytes=value,
        kv_half=half,
        observed=seen,
        note=record.get("note", ""),
        dropped=tuple(dropped),
    )


def _memory(seen: dict[str, Any]) -> tuple[float | None, float]:
    value = seen.get("available_kv_memory_gib")
    if value is None:
        return None, 0.0
    digits = 4 if round(value, 2) != value else 2
    half = 0.5 * 10**-digits * (2 if "k_size_gb" in seen else 1)
    return value * GIB, half * GIB


_RELEASE = re.compile(r"(?<![\d.])\d+\.\d+(?:\.\d+)?(?:rc\d+|\.post\d+)?(?:\.dev\d+)?")


def _version(engine: str, text: str | None) -> str | None:
    found = _RELEASE.search(text or "")
    vague = re.search(r"\d\.\dx", text or "")
    if found and not vague and not found[0].startswith(("0.0.0", "0.1.dev")):
        return found[0]
    dates = _DATED[engine]
    return next((version for date, version in dates.items() if date in (text or "")), None)


def _gpu(row: dict[str, Any]) -> str | None:
    from kvproof.hardware import accelerator

    name = str(row.get("name") or "")
    for pattern, known in _GPUS:
        if re.search(pattern, name):
            name = known or ""
            break
    try:
        return accelerator(name).name if name else None
    except KvproofError:
        return None


def _flags(engine: str, record: dict[str, Any]) -> dict[str, Any]:
    given = dict(record["args"])
    command = {k.replace("-", "_"): v for k, v in (given.get("command") or {}).items()}
    out: dict[str, Any] = {}
    for name, value in given.items():
        key = _SHORT[engine].get(name, name)
        if key is not None and name not in _NO_FLAG and value is not None:
            out[key] = value.split(" (")[0] if isinstance(value, str) else value
    if out.get("mamba_cache_mode") == "align":
        out.setdefault("enable_prefix_caching", True)  # the mode is what caching resolves to
    spoken = given.get("speculative")
    if spoken and engine == "vllm":
        out["speculative_config"] = _speculative(str(spoken))
    if given.get("ep") and engine == "vllm" and given["ep"] > 1:
        out["enable_expert_parallel"] = True
    for name, value in command.items():
        if name not in out and not name.startswith(("disable_log", "uvicorn", "trust", "no_")):
            out[name] = value
    out |= _table().get(record["model"], {}).get("flags", {})
    length = record["observed"].get("max_concurrency_len")
    if length and engine == "vllm":
        out.setdefault("max_model_len", length)
    return out


def _speculative(text: str) -> str:
    words = text.split()
    count = re.search(r"\d+$", text)
    method = {"dflash2": "dflash", "eagle": "eagle"}.get(words[0].lower(), words[0].lower())
    return json.dumps({"method": method, "num_speculative_tokens": int(count[0]) if count else 1})


def _deployment(
    engine: str, version: str | None, gpu: str | None, flags: dict[str, Any]
) -> tuple[kvproof.Deployment, list[str]]:
    """The deployment with every flag that the engine's rules take."""
    name = f"{engine}@{version}" if version else engine
    kept: dict[str, Any] = {}
    dropped = []
    try:
        return kvproof.Deployment(name, gpu, **flags), []
    except KvproofError:
        pass  # one by one then, to leave aside what is refused
    for key, value in flags.items():
        try:
            kvproof.Deployment(name, gpu, **{**kept, key: value})
        except KvproofError:
            dropped.append(key)
        else:
            kept[key] = value
    return kvproof.Deployment(name, gpu, **kept), dropped
