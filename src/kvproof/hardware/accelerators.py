"""The accelerators kvproof knows: one data table, read once, and the lookups over it.

data/accelerators.json holds the figures and their sources; docs/hardware.md says what each
field means and how to add a row. Memory is what the driver gives a process, not the label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from kvproof.errors import UsageError, unknown_name

Basis = Literal["measured", "datasheet", "estimated"]

_DATA = Path(__file__).with_name("data") / "accelerators.json"
_LONGEST_NAME = 200
_SEE = "`kvproof gpus` lists them"

# What stands in for a type the hardware has no matrix unit for: the weights are widened and the
# product is computed in 16 bits (as fp8 and fp4 kernels do on an A100), or in 32 without those.
_STAND_INS: dict[str, tuple[str, ...]] = {
    "fp4": ("fp4", "bf16", "fp16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("int8", "bf16", "fp16", "fp32"),
    "bf16": ("bf16", "fp16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "tf32": ("tf32", "fp32", "bf16"),
    "fp32": ("fp32", "tf32", "bf16"),
}
_TYPE_NAMES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "f16": "fp16",
    "float32": "fp32", "float": "fp32", "f32": "fp32", "tensorfloat32": "tf32",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "i8": "int8", "w8a8": "int8",
    # 4-bit integers are storage: the kernels widen them to 16 bits before they multiply.
    "int4": "bf16", "w4a16": "bf16",
}  # fmt: skip

# One lane carries 8, 16, 32 and 64 GT/s; less the line code (128b/130b; FLIT's in generation 6).
_PCIE_LANE_BYTES_PER_S = {3: 984_615_384, 4: 1_969_230_769, 5: 3_938_461_538, 6: 7_563_000_000}


class Flops(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak dense rates in FLOP/s (OP/s for int8); None where the hardware has no such unit."""

    fp32: float | None = None
    tf32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    fp8: float | None = None
    int8: float | None = None
    fp4: float | None = None


class MigProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A slice that MIG cuts from a GPU: its memory, and its share of SMs and of bandwidth."""

    profile: str
    memory_bytes: int
    memory_basis: Basis
    memory_source: str
    compute_share: float
    bandwidth_share: float


class Accelerator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator as a process sees it: memory, bandwidth, rates and links, with sources.

    `memory_bytes` is what the driver reports; `memory_basis` says whether that was read from a
    log, stated by the vendor or derived. Rates are per second, dense, and of one device;
    `link_bytes_per_s` is one direction.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    memory_bytes: int
    memory_basis: Basis
    memory_source: str
    nominal_memory_bytes: int
    memory_bandwidth: int
    bandwidth_source: str
    dense_flops: Flops
    flops_source: str
    device_name: str | None = None
    """What the driver calls it (torch.cuda.get_device_name)."""
    family: str | None = None
    """A name that several rows share, so that it picks none of them."""
    compute_capability: str | None = None
    """CUDA compute capability (`9.0`) or AMD's LLVM target (`gfx942`)."""
    other_memory_bytes: tuple[int, ...] = ()
    """What other drivers report for the same card."""
    unified_memory: bool = False
    """The memory is shared with the CPU."""
    link: str | None = None
    link_bytes_per_s: int | None = None
    link_source: str | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    mig: tuple[MigProfile, ...] = ()
    notes: str | None = None

    def flops(self, dtype: str) -> float:
        """Peak dense FLOP/s of products in `dtype`, or in the type that stands in for it.

        A type without a matrix unit of its own is computed in 16 bits: fp8, fp4 and int8 on an
        A100 run at the bf16 rate, bf16 on a T4 at the fp16 rate. Unknown types: UsageError.
        """
        return self.compute_rate(dtype)[1]

    def compute_rate(self, dtype: str) -> tuple[str, float]:
        """The type products in `dtype` are really computed in, and its rate in FLOP/s."""
        key = dtype.strip().lower().removeprefix("torch.")
        chain = _STAND_INS.get(_TYPE_NAMES.get(key, key))
        if chain is None:
            raise unknown_name("element type", dtype, [*_STAND_INS, *_TYPE_NAMES], see=_types())
        for kind in chain:
            rate: float | None = getattr(self.dense_flops, kind)
            if rate is not None:
                return kind, rate
        raise UsageError(f"no rate is known for {dtype[:40]!r} on {self.name}")

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice of a GPU."""
        return ":" in self.name

    @property
    def pcie_bytes_per_s(self) -> int | None:
        """Bytes per second over PCIe in one direction, line code taken off; None without PCIe."""
        if self.pcie_generation is None or self.pcie_lanes is None:
            return None
        return _PCIE_LANE_BYTES_PER_S[self.pcie_generation] * self.pcie_lanes

    def slice(self, profile: str) -> Accelerator:
        """The MIG slice `profile` (`1g.10gb`) as an accelerator of its own.

        Rates scale with the slice's share of SMs, bandwidth with its share of memory; slices
        have no link to other GPUs. A profile that this GPU does not offer raises UsageError.
        """
        wanted = profile.strip().lower()
        found = next((p for p in self.mig if p.profile == wanted), None)
        if found is None:
            known = ", ".join(p.profile for p in self.mig)
            raise UsageError(
                f"{self.name} has no MIG profile {profile[:40]!r}",
                hint=f"it has {known}" if known else "it has none",
            )
        rates = msgspec.structs.asdict(self.dense_flops)
        return msgspec.structs.replace(
            self,
            name=f"{self.name}:{found.profile}",
            aliases=(),
            device_name=f"{self.device_name} MIG {found.profile}" if self.device_name else None,
            memory_bytes=found.memory_bytes,
            memory_basis=found.memory_basis,
            memory_source=found.memory_source,
            nominal_memory_bytes=round(self.nominal_memory_bytes * found.bandwidth_share),
            memory_bandwidth=round(self.memory_bandwidth * found.bandwidth_share),
            dense_flops=Flops(
                **{key: rate and rate * found.compute_share for key, rate in rates.items()}
            ),
            link=None,
            link_bytes_per_s=None,
            link_source=None,
            mig=(),
            notes=f"MIG slice of {self.name}",
        )


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sources: dict[str, str]
    accelerators: tuple[Accelerator, ...]


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Every accelerator of the table, in its order, with the sources spelled out."""
    table = msgspec.json.decode(_DATA.read_bytes(), type=_Table)
    text = table.sources
    return tuple(
        msgspec.structs.replace(
            row,
            bandwidth_source=text[row.bandwidth_source],
            flops_source=text[row.flops_source],
            link_source=text[row.link_source] if row.link_source is not None else None,
        )
        for row in table.accelerators
    )


def accelerator(name: str) -> Accelerator:
    """The accelerator called `name`: a name of the table, an alias, or what the driver prints.

    Case, spaces, dashes, underscores and vendor words in front do not matter. A MIG slice is
    its GPU with the profile behind it: `A100-80GB:1g.10gb`, `NVIDIA H200 MIG 1g.18gb`.
    An unknown name raises UsageError with the nearest known ones; so does one that several
    accelerators share (`Apple M3 Max` does not say how much memory).
    """
    if not isinstance(name, str) or not name.strip():
        raise UsageError("a GPU's name is empty", hint=_SEE)
    short = name[:_LONGEST_NAME]
    sliced = _SLICE.fullmatch(short.strip())
    if sliced and len(name) <= _LONGEST_NAME:
        return accelerator(sliced["gpu"]).slice(sliced["profile"])
    key = _key(short)
    found = _index().get(key)
    if found is not None and len(name) <= _LONGEST_NAME:
        return found
    _refuse_shared(short, key)
    known = [text for row in accelerators() for text in (row.name, *row.aliases)]
    raise unknown_name("GPU", short, known, see=_SEE)


def parse_gpus(text: str) -> tuple[int, Accelerator]:
    """How many of which accelerator `8xH100-80GB` (or `H100:8`, `H100 x8`) means; a name is one.

    Several kinds at once (`H100-80GB,L40S`) are read by `parse_gpu_list`; here they raise
    UsageError, as do unknown names and counts out of range.
    """
    if isinstance(text, str) and "," in text:
        raise UsageError(
            f"one kind of GPU is needed, not a list: {text[:80]!r}", hint="write 8xH100-80GB"
        )
    short = text[:_LONGEST_NAME] if isinstance(text, str) else ""
    counted = _COUNTED.fullmatch(short) or _COUNTED_BEHIND.fullmatch(short)
    if counted is None or _key(text) in _index():  # `7900 XTX` is a name, not 7900 of something
        return 1, accelerator(text)
    count = int(counted["count"])
    if not 1 <= count <= _MOST_GPUS:
        raise UsageError(f"the count of GPUs in {text[:80]!r} is not from 1 to {_MOST_GPUS:,}")
    return count, accelerator(counted["gpu"])


def parse_gpu_list(text: str) -> tuple[tuple[int, Accelerator], ...]:
    """The counts and accelerators of a list such as `8xH100-80GB, L40S`, in its order."""
    parts = text.split(",", _MOST_KINDS)
    if len(parts) > _MOST_KINDS:
        raise UsageError(f"more than {_MOST_KINDS} kinds of GPU in one list")
    return tuple(parse_gpus(part) for part in parts)


def parse_ranks(text: str) -> tuple[tuple[int, Accelerator], ...]:
    """The GPUs of one deployment's ranks: `8xH100-80GB`, or different ones, `H100-80GB+L40S`.

    Joined by a plus or a comma; parts of the same kind are added up.
    """
    if not isinstance(text, str) or len(text) > _LONGEST_NAME * _MOST_KINDS:
        return (parse_gpus(text),)
    if _key(text) in _index():  # a name with a plus of its own: `Ryzen AI Max+ 395`
        return (parse_gpus(text),)
    found: dict[str, tuple[int, Accelerator]] = {}
    for count, kind in parse_gpu_list(_JOINED.sub(",", text)):
        found[kind.name] = (found.get(kind.name, (0, kind))[0] + count, kind)
    return tuple(found.values())


_MOST_GPUS = 1_000_000
_MOST_KINDS = 64
_COUNTED = re.compile(r"\s*(?P<count>[0-9]{1,12})\s*[xX*\u00d7]\s*(?P<gpu>.+)", re.DOTALL)
_COUNTED_BEHIND = re.compile(
    r"(?P<gpu>.*[^\s:])(?:\s*:\s*|\s+[xX*\u00d7]\s*)(?P<count>[0-9]{1,7})\s*", re.DOTALL
)
"""`H100:8`, as SkyPilot writes it, or `H100 x8`."""
_SLICE = re.compile(
    r"(?P<gpu>.+?)[\s:_-]+(?:mig[\s:_-]+)?(?P<profile>[0-9]g\.[0-9]{1,3}gb)(?:[+-][a-z.]{2,8})?",
    re.IGNORECASE | re.DOTALL,
)
# A plus between GPUs; not the one of a MIG profile (`1g.10gb+me`).
_JOINED = re.compile(r"\s*\+\s*(?!(?:me|gfx|395)\b)")
_WORDS = re.compile(r"[a-z0-9+]+")
_MARKS = re.compile(r"\((?:r|tm|c)\)")
_VENDOR_WORDS = frozenset(
    (
        *("nvidia", "amd", "intel", "apple", "google", "aws"),
        *("geforce", "tesla", "quadro", "radeon", "instinct"),
    )
)


def _key(name: str) -> str:
    """`name` without case, separators, marks and the vendor words in front."""
    words = _WORDS.findall(_MARKS.sub(" ", name[:_LONGEST_NAME].lower()))
    first = next((i for i, word in enumerate(words) if word not in _VENDOR_WORDS), len(words))
    return "".join(words[first:])


def _names(row: Accelerator) -> Iterator[str]:
    yield row.name
    yield from row.aliases
    if row.device_name is not None and row.family is None:
        yield row.device_name


@cache
def _index() -> dict[str, Accelerator]:
    return {_key(name): row for row in reversed(accelerators()) for name in _names(row)}


def _refuse_shared(name: str, key: str) -> None:
    """Raise UsageError when `name` is a family: a driver's name that says too little."""
    members = [r.name for r in accelerators() if r.family is not None and _key(r.family) == key]
    if members:
        raise UsageError(
            f"several GPUs are called {name[:80]!r}", hint=f"choose one: {', '.join(members)}"
        )


def _types() -> str:
    return f"known: {', '.join(_STAND_INS)}"
