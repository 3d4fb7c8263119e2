"""SGLang's starts as logs print them: arguments as a dictionary, commands over lines, days."""

from __future__ import annotations

import pytest

import kvproof
from kvproof.observe.releases import candidates

LOADED = "[{day} 08:00:00] Load weight end. avail mem=14.08 GB, mem usage=8.85 GB.\n"


def test_arguments_printed_as_a_dictionary() -> None:
    """0.5.19 on: `server_args={server_args.resolved_dict()}`."""
    text = (
        "[2026-10-11 23:34:03] server_args={'model_path': 'Qwen/Qwen3-8B', 'tp_size': 2, "
        "'mem_fraction_static': 0.8, 'kv_cache_dtype': 'fp8_e4m3', 'cuda_graph_config': "
        "{'decode': {'backend': 'full', 'bs': [1, 2]}}, 'page_size': 64}\n"
        "[2026-10-11 23:34:13 TP0] Load weight begin. avail mem=78.00 GB\n"
    )
    log = kvproof.read_log(text)
    assert log.model == "Qwen/Qwen3-8B"
    assert {name: log.flags[name] for name in ("tp_size", "mem_fraction_static", "page_size")} == {
        "tp_size": 2, "mem_fraction_static": 0.8, "page_size": 64,
    }  # fmt: skip
    assert log.flags["kv_cache_dtype"] == "fp8_e4m3"


@pytest.mark.parametrize(("release", "kept"), [("0.5.4", 0.85), ("0.5.5", 1.0)])
def test_a_printed_share_is_cut_once(release: str, kept: float) -> None:
    """AITER's cut: in the model runner up to 0.5.4, in the printed arguments after."""
    model = kvproof.load_model("Qwen/Qwen3-8B", offline=True)
    flags = {"attention_backend": "aiter", "mem_fraction_static": 0.8}
    printed, given = (
        kvproof.Deployment(f"sglang@{release}", "MI300X", **flags, **more)
        for more in ({"mem_fraction_resolved": True}, {})
    )
    free = {
        name: next(
            term.value for term in kvproof.budget(model, deployment).terms
            if term.name == "kept free for activations and graphs"
        )
        for name, deployment in (("printed", printed), ("given", given))
    }  # fmt: skip
    before = free["given"] / (1 - 0.8 * 0.85)
    assert free["printed"] == pytest.approx(before * (1 - 0.8 * kept), rel=1e-6)


def test_a_command_that_goes_on_behind_backslashes() -> None:
    text = (
        "$ CUDA_VISIBLE_DEVICES=0,2 python -m sglang.launch_server \\\n"
        "    --model-path 'Qwen/Qwen3.5-9B' \\\n"
        "    --tp-size 2 --mem-fraction-static 0.8 \\\r\n"
        "    2>&1 | tee out.log\n" + LOADED.format(day="2026-04-14")
    )
    log = kvproof.read_log(text)
    assert log.model == "Qwen/Qwen3.5-9B"
    assert (log.flags["tp_size"], log.flags["mem_fraction_static"]) == (2, 0.8)
    assert log.lines == 5
    assert log.figures[0].line == 5


def test_other_lines_that_end_in_a_backslash_stay_lines() -> None:
    text = "C:\\models\\\n" + LOADED.format(day="2026-04-14")
    assert kvproof.read_log(text).figures[0].line == 2


@pytest.mark.parametrize(
    ("day", "newest", "next_one"),
    [("2025-07-22", "0.4.9", "0.4.10"), ("2026-02-01", "0.5.8", "0.5.9")],
)
def test_the_newest_release_of_a_logs_day_comes_first(day: str, newest: str, next_one: str) -> None:
    log = kvproof.read_log(LOADED.format(day=day))
    names = [rules.newest for rules in candidates(log)]
    assert names[0] == newest
    later = next(rules for rules in candidates(log) if next_one in rules.releases)
    assert names.index(later.newest) > names.index("0.4.4")
    undated = kvproof.read_log("Load weight end. avail mem=14.08 GB, mem usage=8.85 GB.\n")
    assert candidates(undated)[0].newest == "0.5.23"


def test_the_day_is_said() -> None:
    text = (
        "python3 -m sglang.launch_server --model Qwen/Qwen3-235B-A22B-FP8 --tp 4 "
        "--mem-fraction-static 0.93\n"
        "[2025-07-22 10:00:00 TP0] KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, "
        "V size: 8.23 GB\n"
    )
    report = kvproof.check(text, gpu="H100-80GB")
    assert any("dated 2025-07-22; the rules of 0.4.9" in line for line in report.assumptions)
    assert all(row.ok for row in report.rows)


def test_shared_memory_counts_what_the_process_grows_by() -> None:
    """GB10, Gemma-4-E4B: 15.56 GB where the tensors have 14.8; pools of 79.94 GB."""
    text = (
        "python -m sglang.launch_server --model-path google/gemma-4-E4B-it --context-length 32768 "
        "--mem-fraction-static 0.85 --max-running-requests 4 --attention-backend triton\n"
        "[2026-09-05 23:07:59] Load weight end. elapsed=2415.46 s, "
        "type=Gemma4ForConditionalGeneration, avail mem=97.30 GB, mem usage=15.56 GB.\n"
        "[2026-09-05 23:07:59] SWAKVPool mem usage: 79.94 GB, swa size: 798276, "
        "full size: 997846\n"
    )
    report = kvproof.check(text, gpu="GB10")
    found = {row.name: row for row in report.rows}
    assert found["weights"].ok
    assert found["available_kv_memory"].ok
