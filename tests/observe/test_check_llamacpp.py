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
