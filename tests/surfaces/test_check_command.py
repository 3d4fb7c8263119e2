from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof.observe.compare import compared
from kvproof.observe.figures import Figure
from kvproof.surfaces.cli.check import check
from kvproof.surfaces.cli.plan import plan
from kvproof.surfaces.report import comparisons

LOG = """
INFO vLLM API server version 0.11.0
INFO non-default args: {'model': 'Qwen/Qwen3-14B', 'max_model_len': 32768, \
'gpu_memory_utilization': 0.9}
INFO Available KV cache memory: 39.6 GiB
INFO GPU KV cache size: 259,520 tokens
INFO Maximum concurrency for 32,768 tokens per request: 7.92x
"""


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROOF_STORE", str(tmp_path / "observed.sqlite"))


def run(*arguments: str, text: str = LOG) -> tuple[int, str]:
    result = CliRunner().invoke(check, list(arguments), input=text, standalone_mode=False)
    status = result.return_value if result.exception is None else 2
    return int(status or 0), result.output


def test_the_table_names_each_figure() -> None:
    _, out = run("-", "--gpu", "H100-80GB", "--offline")
    assert "tokens in the cache" in out
    assert "memory for the cache" in out


def test_json_holds_the_python_names() -> None:
    _, out = run("-", "--gpu", "H100-80GB", "--json", "--offline")
    document = json.loads(out[: out.rindex("}") + 1])
    assert document["command"] == "check"
    names = {row["name"]: row for row in document["result"]["rows"]}
    assert names["kv_cache_tokens"]["ok"] is True
    assert document["result"]["observed"]["kv_cache_tokens"] == 259_520


def test_status_one_when_a_figure_is_off() -> None:
    status, out = run("-", "--gpu", "H100-80GB", "--offline",
                      text=LOG.replace("259,520", "519,040"))  # fmt: skip
    assert status == 1
    assert "Off:" in out


def test_status_two_when_nothing_can_be_compared() -> None:
    text = "INFO Available KV cache memory: 39.6 GiB\n"
    status, out = run("-", text=text)
    assert status == 2
    assert "give --model and --gpu" in out
    _, known = run("-", "--gpu", "H100-80GB", text=text)
    assert "give --model\n" in known


@pytest.mark.parametrize("words", [("x.log", "--export"), ("--learn", "--import", "x.jsonl")])
def test_a_log_beside_the_store_alone_is_refused(words: tuple[str, ...]) -> None:
    status, _ = run(*words)
    assert status == 2


def test_learn_export_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("-", "--gpu", "H100-80GB", "--learn", "--offline")
    _, out = run("--export")
    line = json.loads(out.strip().splitlines()[0])
    assert line["model"] == "Qwen/Qwen3-14B"
    kept = tmp_path / "kept.jsonl"
    kept.write_text(out)
    monkeypatch.setenv("KVPROOF_STORE", str(tmp_path / "other.sqlite"))
    status, said = run("--import", str(kept))
    assert status == 0
    assert "1 start(s) added" in said
    _, table = run("-", "--gpu", "H100-80GB", "--offline")
    assert "learned" in table


def test_a_size_whose_unit_stands_elsewhere_is_shown_with_it() -> None:
    line = "INFO Free memory on device (23.08/23.57 GiB) on startup."
    _, out = run("-", "--offline", text=f"{line}\n")
    assert "23.08 GiB" in out
    assert "1 line read" in out


def test_what_was_learned_says_by_how_much_it_moves_this_cache() -> None:
    run("-", "--gpu", "H100-80GB", "--learn", "--offline")
    _, out = run("-", "--gpu", "H100-80GB", "--json", "--offline")
    report = json.loads(out[: out.rindex("}") + 1])
    (note,) = [line for line in report["assumptions"] if "learned from" in line]
    (term,) = [t for t in report["result"]["terms"] if t["name"] == "learned overhead"]
    assert f": {-term['value'] / 2**30:+.2f} GiB for this cache (" in note
    assert "by 1 start(s) of this model and release" in note


def test_a_plan_that_learned_figures_move_says_so_on_stderr() -> None:
    from kvproof.surfaces.cli.plan import plan

    def notes(*more: str) -> str:
        asked = ["Qwen/Qwen3-14B", "--gpu", "H100-80GB", "--engine", "vllm@0.11.0", "--offline"]
        return CliRunner().invoke(plan, [*asked, *more], standalone_mode=False).stderr

    learned = "note: overheads learned from 1 start(s) of 1 model(s) of vllm on H100-80GB"
    run("-", "--gpu", "H100-80GB", "--learn", "--offline")
    assert learned in notes()
    assert learned not in notes("--fresh")


@pytest.mark.parametrize(
    ("printed", "shown"),
    [(287.0, "0.3 x"), (958.0, "+0.00 %"), (1916.0, "+50.00 %"), (600.0, "-59.67 %"), (-5.0, "-")],
)
def test_a_difference_beyond_all_that_is_printed_is_a_ratio(printed: float, shown: str) -> None:
    figure = Figure(name="graphs", value=printed, unit="B", step=1, text="", line=1)
    table = comparisons((compared(figure, 958.0, exact=True),))
    assert re.search(rf"B +{re.escape(shown)} +(ok|off)", table)


@pytest.mark.parametrize(
    ("model", "said"),
    [("Qwen/Qwen3-14B", "overheads learned from 1 start(s)"),
     ("Qwen/Qwen3-8B", "1 start(s) learned on H100-80GB move this plan by nothing")],
)  # fmt: skip
def test_a_plan_says_what_a_learned_start_did_to_it(model: str, said: str) -> None:
    run("-", "--gpu", "H100-80GB", "--offline", "--learn")
    asked = [model, "--gpu", "H100-80GB", "--engine", "vllm@0.11.0", "--contexts", "4k"]
    result = CliRunner().invoke(plan, asked, standalone_mode=False)
    assert said in result.output
    fresh = CliRunner().invoke(plan, [*asked, "--fresh"], standalone_mode=False)
    assert "learned" not in fresh.output
