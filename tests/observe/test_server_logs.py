"""Whole logs of `vllm serve` 0.32 on a CPU, as printed; paths and the address scrubbed.

One worker, two tensor-parallel ones, a cache by share of the machine's memory, and two starts that
the machine was too small for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import GROUND_TRUTH

import kvproof
from kvproof.observe import Report
from kvproof.surfaces.report import report_text

FOLDER = Path(__file__).resolve().parent / "logs" / "serve"
MODEL = GROUND_TRUTH / "logs" / "vllm-0.32-cpu-tiny_llama.json"
SERVED = {
    "vllm-0.32-cpu": (1, 2**30, 524_288),
    "vllm-0.32-cpu-tp2": (2, 2**30, 1_048_576),
    "vllm-0.32-cpu-share": (1, round(3.6 * 2**30), 1_887_488),
}
REFUSED = ("vllm-0.32-cpu-refused", "vllm-0.32-cpu-space")


def report_of(name: str) -> Report:
    return kvproof.check(FOLDER / f"{name}.log", model=MODEL)


def test_every_log_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.log")} == {*SERVED, *REFUSED}


@pytest.mark.parametrize("name", [*SERVED, *REFUSED])
def test_the_engine_is_known(name: str) -> None:
    report = report_of(name)
    assert (report.log.version, report.log.model) == ("0.32.0", "tiny-llama")
    assert not report.warnings
    assert "no GPU" not in report_text(report)
    assert "GPU unknown" not in report_text(report)


@pytest.mark.parametrize("name", SERVED)
def test_tokens_and_concurrency_follow_from_the_printed_memory(name: str) -> None:
    ranks, pool, tokens = SERVED[name]
    report = report_of(name)
    assert report.log.flags.get("tensor_parallel_size", 1) == ranks
    assert {f.value for f in report.log.all("available_kv_memory")} == {pool}
    rows = {row.name: row for row in report.rows}
    assert rows["kv_cache_tokens"].printed == tokens
    assert set(rows) == {"kv_cache_tokens", "max_concurrency"}
    assert report.ok
    assert report.fits


def test_the_share_of_a_machine_adds_up() -> None:
    report = report_of("vllm-0.32-cpu-share")
    rows = {row.name: row for row in report.ledger}
    assert {"share of the node", "budget as printed"} <= set(rows)
    assert all(row.ok for row in rows.values())
    assert rows["budget as printed"].printed == round(3.6 * 2**30)


def test_another_share_than_printed_is_seen() -> None:
    text = (FOLDER / "vllm-0.32-cpu-share.log").read_text()
    other = text.replace("with 4.22 GiB requested", "with 5.22 GiB requested")
    report = kvproof.check(kvproof.read_log(other), model=MODEL)
    off = {row.name for row in report.ledger if not row.ok}
    assert off == {"share of the node", "budget as printed"}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("vllm-0.32-cpu-refused", "--gpu-memory-utilization 0.86 (it is 0.999)"),
        ("vllm-0.32-cpu-space", "VLLM_CPU_KVCACHE_SPACE=18 or less (it asks for 30)"),
    ],
)
def test_a_start_that_is_too_large_says_what_to_change(name: str, way: str) -> None:
    report = report_of(name)
    assert not report.fits
    assert report.advice[0].startswith(way)
