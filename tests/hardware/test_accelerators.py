"""The table of accelerators: its figures, its names, and the lookups over it."""

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.errors import UsageError
from kvproof.hardware import (
    Accelerator,
    Flops,
    accelerator,
    accelerators,
    parse_gpu_list,
    parse_gpus,
)
from kvproof.hardware.accelerators import _key, _names

GIB = 2**30
ROWS = accelerators()
TYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")


def ids(rows):
    return [row.name for row in rows]


# --- the table ---


def test_the_table_covers_the_vendors():
    assert len(ROWS) > 150
    assert {row.vendor for row in ROWS} == {"NVIDIA", "AMD", "Intel", "Apple", "Google", "AWS"}


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_every_row_is_whole_and_sourced(row):
    for source in (row.memory_source, row.bandwidth_source, row.flops_source):
        assert len(source) > 10
    assert row.memory_bytes > 2 * GIB
    assert row.memory_bytes <= row.nominal_memory_bytes
    assert 30e9 < row.memory_bandwidth < 20e12
    rates = [rate for rate in msgspec.structs.astuple(row.dense_flops) if rate is not None]
    assert rates
    assert all(1e12 <= rate < 2e16 for rate in rates)
    assert (row.link is None) == (row.link_bytes_per_s is None) == (row.link_source is None)
    if row.unified_memory:
        assert row.notes


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_memory_is_near_the_label(row):
    """A figure far from the label is a slip of a digit; only shared memory gives much less."""
    share = row.memory_bytes / row.nominal_memory_bytes
    assert share >= (0.66 if row.unified_memory else 0.9), share


def test_nvidia_drivers_keep_some_memory():
    for row in ROWS:
        if row.vendor == "NVIDIA" and not row.unified_memory:
            assert 0.9 < row.memory_bytes / row.nominal_memory_bytes < 0.9999, row.name


def test_the_name_states_the_nominal_memory():
    for row in ROWS:
        assert row.name.endswith(f"-{round(row.nominal_memory_bytes / GIB)}GB"), row.name


def test_peaks_grow_as_types_shrink():
    """fp16 and bf16 agree, 8 bits are no slower than 16, fp4 no slower than fp8."""
    for row in ROWS:
        f = row.dense_flops
        if f.fp16 is not None and f.bf16 is not None:
            assert f.fp16 == f.bf16, row.name
        if f.fp8 is not None and f.bf16 is not None:
            assert 1 <= f.fp8 / f.bf16 <= 4, row.name
        if f.fp4 is not None and f.fp8 is not None:
            assert 1 <= f.fp4 / f.fp8 <= 4.1, row.name


def test_names_pick_one_row():
    owners: dict[str, str] = {}
    for row in ROWS:
        assert len(set(row.aliases)) == len(row.aliases)
        for name in _names(row):
            assert _key(name), name
            assert owners.setdefault(_key(name), row.name) == row.name, name


def test_mig_slices_are_shares():
    sliced = [row for row in ROWS if row.mig]
    assert {"A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB"} <= {r.name for r in sliced}
    for row in sliced:
        assert len({p.profile for p in row.mig}) == len(row.mig)
        for profile in row.mig:
            assert 0 < profile.compute_share <= 1
            assert 0 < profile.bandwidth_share <= 1
            expected = row.memory_bytes * profile.bandwidth_share
            assert 0.9 * expected < profile.memory_bytes <= 1.001 * expected, profile.profile


# --- figures read from logs ---


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("H100-80GB", 79.18), ("H200-141GB", 139.80), ("A100-40GB", 39.39), ("A100-80GB", 79.25),
        ("B300-288GB", 267.69), ("L4-24GB", 22.06), ("T4-16GB", 14.56), ("V100-16GB", 15.77),
        ("RTX-3090-24GB", 23.56), ("RTX-5090-32GB", 31.36), ("RX-7900-XTX-24GB", 23.98),
        ("RTX-5090-Laptop-24GB", 22.36),
    ],
)  # fmt: skip
def test_memory_as_engines_print_it(name, gib):
    row = accelerator(name)
    assert row.memory_basis == "measured"
    assert round(row.memory_bytes / GIB, 2) == gib


def test_rtx_4090_to_the_byte():
    assert accelerator("RTX 4090").memory_bytes == 25_250_627_584


# --- lookups ---


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("H100", "H100-80GB"), ("h100_sxm", "H100-80GB"), ("H100-SXM-80GB", "H100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"), ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("nvidia-h100-nvl", "H100-NVL-94GB"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("A100-SXM4-40GB", "A100-40GB"), ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090-24GB"), ("4090", "RTX-4090-24GB"),
        ("geforce_rtx_5090", "RTX-5090-32GB"), ("Tesla T4", "T4-16GB"),
        ("NVIDIA H200-SXM-141GB", "H200-141GB"), ("NVIDIA B200-SXM-180GB", "B200-180GB"),
        ("NVIDIA B300 SXM6 AC", "B300-288GB"), ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA GB10", "GB10-128GB"), ("AMD Instinct MI300X", "MI300X-192GB"),
        ("AMD Instinct MI325X 256GB HBM3e", "MI325X-256GB"), ("7900 XTX", "RX-7900-XTX-24GB"),
        ("Intel(R) Arc(TM) Pro B60 Graphics", "Arc-Pro-B60-24GB"),
        ("Apple M3 Max 64GB", "M3-Max-64GB"), ("m2 ultra 192gb", "M2-Ultra-192GB"),
        ("TPU v5e", "TPU-v5e-16GB"), ("trn2", "Trainium2-96GB"), ("Gaudi 3", "Gaudi3-128GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Blackwell-Server-96GB"),
    ],
)  # fmt: skip
def test_names_people_and_drivers_use(said, name):
    assert accelerator(said).name == name


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_every_name_of_a_row_finds_it(row):
    for name in _names(row):
        assert accelerator(name) is accelerator(row.name)
        assert accelerator(f"  {name.lower().replace('-', '_')} ").name == row.name


@pytest.mark.parametrize("said", ["Apple M3 Max", "M4", "Orin", "NVIDIA Orin"])
def test_a_name_that_says_too_little_lists_the_choices(said):
    with pytest.raises(UsageError, match="several GPUs are called") as caught:
        accelerator(said)
    assert "choose one: " in str(caught.value)
    for choice in str(caught.value).split("choose one: ")[1].split(", "):
        assert accelerator(choice).name == choice


@pytest.mark.parametrize(
    ("said", "near"), [("H1000", "H100"), ("rtx 4091", "RTX 4090"), ("MI300", "MI300X")]
)
def test_unknown_names_offer_near_ones(said, near):
    with pytest.raises(UsageError, match="did you mean") as caught:
        accelerator(said)
    assert near in str(caught.value)


@pytest.mark.parametrize("said", ["", "  ", "NVIDIA", "()", "\x00", "🦙", "x" * 100_000, None, 7])
def test_hostile_names_are_usage_errors(said):
    with pytest.raises(UsageError) as caught:
        accelerator(said)
    assert len(str(caught.value)) < 500


@given(st.text(max_size=300))
def test_any_text_is_an_accelerator_or_a_usage_error(text):
    for read in (accelerator, parse_gpus, parse_gpu_list):
        message = ""
        try:
            read(text)
        except UsageError as error:
            message = str(error)
        assert len(message) < 1000


def test_difflib_is_loaded_only_for_a_mistake():
    code = (
        "import sys; from kvproof.hardware import accelerator; accelerator('H100');"
        "sys.exit('difflib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- counts and lists ---


@pytest.mark.parametrize(
    ("said", "count", "name"),
    [
        ("8xH100-80GB", 8, "H100-80GB"), ("H100-80GB", 1, "H100-80GB"), ("1xL4", 1, "L4-24GB"),
        (" 4 X a100-80gb", 4, "A100-80GB"), ("2*MI300X", 2, "MI300X-192GB"),
        ("7900 XTX", 1, "RX-7900-XTX-24GB"), ("2x7900 XTX", 2, "RX-7900-XTX-24GB"),
        ("9070 XT", 1, "RX-9070-XT-16GB"), ("8x4090", 8, "RTX-4090-24GB"),
        ("7xA100-80GB:1g.10gb", 7, "A100-80GB:1g.10gb"),
    ],
)  # fmt: skip
def test_counts(said, count, name):
    found, row = parse_gpus(said)
    assert (found, row.name) == (count, name)


@pytest.mark.parametrize(
    "said", ["0xH100", "-1xH100", "9" * 12 + "xH100", "xH100", "8x", "H100,L4"]
)
def test_bad_counts(said):
    with pytest.raises(UsageError):
        parse_gpus(said)


def test_lists_of_kinds():
    found = parse_gpu_list("8xH100-80GB, L40S")
    assert [(count, row.name) for count, row in found] == [(8, "H100-80GB"), (1, "L40S-48GB")]
    assert [row.name for _, row in parse_gpu_list("L4")] == ["L4-24GB"]
    with pytest.raises(UsageError):
        parse_gpu_list("H100,,L4")
    with pytest.raises(UsageError, match="more than"):
        parse_gpu_list("L4," * 1000)


# --- slices ---


@pytest.mark.parametrize(
    "said",
    [
        "A100-80GB:1g.10gb", "a100 1G.10GB", "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100-80GB:1g.10gb+me",
    ],
)  # fmt: skip
def test_a_slice_by_name(said):
    part = accelerator(said)
    whole = accelerator("A100-80GB")
    assert part.name == "A100-80GB:1g.10gb"
    assert part.memory_bytes == 9728 * 2**20
    assert part.memory_bandwidth == whole.memory_bandwidth / 8
    assert part.flops("bf16") == pytest.approx(whole.flops("bf16") * 14 / 108, rel=1e-5)
    assert part.link is None
    assert part.mig == ()
    assert accelerator(part.name) == part


def test_a_slice_that_the_gpu_lacks():
    with pytest.raises(UsageError, match=r"it has 1g\.10gb"):
        accelerator("H100-80GB:5g.50gb")
    with pytest.raises(UsageError, match="it has none"):
        accelerator("L4:1g.10gb")
    with pytest.raises(UsageError):
        accelerator("H100-80GB:1g.10gb:1g.10gb")


# --- rates ---


@pytest.mark.parametrize(
    ("gpu", "dtype", "computed_in", "rate"),
    [
        ("H100", "bf16", "bf16", 989.4e12), ("H100", "fp8", "fp8", 1978.9e12),
        ("H100", "nvfp4", "bf16", 989.4e12), ("A100", "fp8", "bf16", 312e12),
        ("A100", "torch.float8_e4m3fn", "bf16", 312e12), ("A100", "int4", "bf16", 312e12),
        ("T4", "bfloat16", "fp16", 65e12), ("B200", "fp4", "fp4", 9000e12),
        ("GTX 1080 Ti", "fp16", "fp32", 11.3e12), ("TPU v5p", "fp32", "bf16", 459e12),
    ],
)  # fmt: skip
def test_rates_by_element_type(gpu, dtype, computed_in, rate):
    row = accelerator(gpu)
    assert row.flops(dtype) == rate
    assert row.compute_rate(dtype) == (computed_in, rate)


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_every_row_answers_for_every_type(row):
    assert all(row.flops(dtype) > 0 for dtype in TYPES)


def test_rates_that_are_not_there():
    with pytest.raises(UsageError, match="element type"):
        accelerator("H100").flops("fp3")
    bare = msgspec.structs.replace(accelerator("H100"), dense_flops=Flops(int8=1e12))
    with pytest.raises(UsageError, match="no rate is known"):
        bare.flops("bf16")


def test_pcie_of_one_direction():
    assert accelerator("H100").pcie_bytes_per_s == pytest.approx(63.0e9, rel=1e-3)
    assert accelerator("T4").pcie_bytes_per_s == pytest.approx(15.75e9, rel=1e-3)
    assert accelerator("TPU v4").pcie_bytes_per_s is None


def test_rows_are_frozen_values():
    row = accelerator("H100")
    with pytest.raises(AttributeError):
        row.memory_bytes = 1
    assert isinstance(hash(row), int)
    assert msgspec.convert(msgspec.to_builtins(row), Accelerator) == row


@pytest.mark.parametrize("said", ["8xH100-80GB", "H100:8", "H100 x8", "H100 80GB HBM3 × 8"])
def test_a_count_may_stand_behind_its_gpu(said: str) -> None:
    assert parse_gpus(said) == (8, accelerator("H100-80GB"))


@pytest.mark.parametrize("said", ["H100:1g.10gb", "RTX 4090", "RX 7900 XTX", "Ryzen AI Max+ 395"])
def test_a_name_with_numbers_is_no_count(said: str) -> None:
    assert parse_gpus(said) == (1, accelerator(said))


@pytest.mark.parametrize("said", ["H100:0", "H100 x9999999"])
def test_a_count_behind_is_bounded_too(said: str) -> None:
    with pytest.raises(UsageError, match="the count of GPUs"):
        parse_gpus(said)
