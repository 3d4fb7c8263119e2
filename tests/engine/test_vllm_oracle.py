"""The oracle's worker: a case that ends it is not askable, and ends no run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scripts import oracle_vllm

_WORKER = """
import json, os, sys
with open(sys.argv[2], "w") as out:
    for case in json.load(open(sys.argv[1])):
        if case["flags"].get("ends"):
            out.write('{"num_blocks": ')
            out.flush()
            print("no more memory", file=sys.stderr, flush=True)
            os._exit(case["flags"]["ends"])
        out.write(json.dumps({"num_blocks": case["flags"]["blocks"]}) + "\\n")
        out.flush()
"""


def test_a_case_that_ends_the_worker_ends_no_run(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(_WORKER)
    cases = [
        {"gpu": gpu, "flags": flags}
        for flags in ({"blocks": 1}, {"ends": 9}, {"ends": 1}, {"blocks": 2})
        for gpu in ("B200", "H200")
    ]
    answers = oracle_vllm.ask(sys.executable, cases, worker)
    assert [answer.get("num_blocks") for answer in answers] == [1, 1, *[None] * 4, 2, 2]
    for status, answer in zip((9, 9, 1, 1), answers[2:6], strict=True):
        assert answer["refused"] == f"the worker ended with status {status}: no more memory"
        assert not oracle_vllm.askable(answer)


def test_a_gpu_that_the_worker_does_not_know_is_said_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["oracle_vllm.py", "--gpus", "H100-80GB,B200-180GB"])
    with pytest.raises(SystemExit):
        oracle_vllm.main()
    assert "--gpus: B200-180GB is none of T4," in capsys.readouterr().err
