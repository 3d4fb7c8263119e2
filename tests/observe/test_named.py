"""The model that a log names."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_logs import vllm_log

import kvproof
from kvproof.observe.named import model_of


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("Qwen/Qwen3-14B", "Qwen/Qwen3-14B"),
        ("/models/Qwen3-14B/", "Qwen/Qwen3-14B"),
        (r"D:\models\Qwen3-14B", "Qwen/Qwen3-14B"),
        ("/data/hub/models--Qwen--Qwen3-14B/snapshots/40c0698", "Qwen/Qwen3-14B"),
        ("/models/my-own-finetune", None),
        ("/models/Qwen3-14B.Q4_K_M.gguf", None),
        ("../../etc/passwd", None),
        ("ollama:qwen3", None),
        ("~/secret", None),
    ],
)
def test_what_a_name_stands_for(name: str, source: str | None) -> None:
    found = model_of(name)
    assert found.source == source
    assert bool(found.warning) == (source is None)
    assert bool(found.assumption) == (source is not None and source != name)


@pytest.mark.parametrize("place", ["absolute", "relative"])
def test_no_file_that_a_log_names_is_opened(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "org" / "own-model"
    folder.mkdir(parents=True)
    folder.joinpath("config.json").write_text("{}")  # opening it would be an error of its own
    monkeypatch.chdir(tmp_path)
    name = str(folder) if place == "absolute" else "org/own-model"
    report = kvproof.check(vllm_log().replace("Qwen/Qwen3-14B", name), gpu="H100-80GB")
    assert any("not opened" in line for line in report.warnings)
    assert not report.rows
    assert report.ledger


def test_a_served_folder_is_found_by_its_name() -> None:
    text = vllm_log().replace("Qwen/Qwen3-14B", "/models/Qwen3-14B")
    report = kvproof.check(text, gpu="H100-80GB")
    assert report.model == "Qwen/Qwen3-14B"
    assert any("taken for Qwen/Qwen3-14B" in line for line in report.warnings)
    assert next(row for row in report.rows if row.name == "kv_cache_tokens").ok


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("Qwen/Qwen3-8B", True),
        ("Qwen/Qwen3-14B-FP8", True),
        ("Qwen/Qwen3-14B", False),
        (None, False),
    ],
)
def test_another_model_than_the_logs_is_said(given: str | None, said: bool) -> None:
    report = kvproof.check(vllm_log(), given, "H100-80GB")
    assert any("the log names Qwen/Qwen3-14B;" in line for line in report.warnings) is said
