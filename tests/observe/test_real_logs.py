"""Whole logs that vLLM 0.32 printed for tiny models on a CPU; the line with the paths left out."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvproof

FOLDER = Path(__file__).resolve().parent.parent / "ground_truth" / "logs"
LOGS = sorted(FOLDER.glob("vllm-*.log"))


@pytest.mark.parametrize("path", LOGS, ids=[path.stem for path in LOGS])
def test_every_figure_of_a_real_log_is_predicted(path: Path) -> None:
    report = kvproof.check(path, model=path.with_suffix(".json"))
    assert report.log.version == "0.32.0"
    assert report.log.on_cpu
    assert {row.name for row in report.rows} >= {"kv_cache_tokens", "max_concurrency"}
    assert not report.off
    assert not report.warnings
    tokens = next(row for row in report.rows if row.name == "kv_cache_tokens")
    assert tokens.printed == tokens.predicted


def test_there_are_real_logs() -> None:
    assert len(LOGS) >= 5
