from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import kvproof


def test_every_given_log_agrees_with_its_flags(data_dir: Path) -> None:
    """The caches of the real program's logs, from the flags in the log and GGUF metadata."""
    whole = json.loads((data_dir / "llamacpp" / "cases.json").read_text())
    models = {
        name: kvproof.load_model(
            {"general.architecture": row["arch"]}
            | {f"{row['arch']}.{key}": value for key, value in row["gguf_keys"].items()}
        )
        for name, row in whole["models"].items()
    }
    seen: Counter[tuple[str, bool]] = Counter()
    wrong = []
    for case in whole["cases"]:
        if not case.get("lines"):
            continue
        report = kvproof.check("\n".join(case["lines"]) + "\n", model=models[case["model"]])
        for row in report.rows:
            seen[row.name, row.ok] += 1
            if not row.ok and row.exact:
                wrong.append((case["id"], row.name, row.predicted, row.printed))
        assert all(row.ok for row in report.ledger)
    assert not wrong
    assert seen["base cache", True] > 280
    assert seen["compute_buffer", True] > 0.95 * (seen["compute_buffer", False] + 1)


def _ollama(cache: str, context: str = "") -> str:
    return (
        'time=2025-09-15T10:00:00.000Z level=INFO source=routes.go:1332 msg="Listening on '
        '127.0.0.1:11434 (version 0.11.10)"\n'
        "time=2025-09-15T10:00:01.000Z level=INFO source=server.go:177 msg=offload library=cuda "
        f'memory.required.full="6.2 GiB" memory.required.kv="{cache}"\n{context}'
    )


def test_an_ollama_log_without_a_context_is_no_miss() -> None:
    report = kvproof.check(_ollama("576.0 MiB"), "Qwen3-8B", "RTX4090")
    assert not report.off
    assert not report.compared
    (note,) = [line for line in report.warnings if "num_ctx is not known" in line]
    assert "576.0 MiB of cache mean 4,096 tokens" in note


def test_bytes_that_no_context_gives_name_none() -> None:
    report = kvproof.check(_ollama("600.1 MiB"), "Qwen3-8B", "RTX4090")
    (note,) = [line for line in report.warnings if "num_ctx is not known" in line]
    assert "tokens" not in note


def test_an_ollama_log_with_a_context_is_compared() -> None:
    log = _ollama("576.0 MiB", "llama_context: n_ctx      = 8192\n")
    (row,) = kvproof.check(log, "Qwen3-8B", "RTX4090").off
    assert row.predicted == 2 * row.printed
