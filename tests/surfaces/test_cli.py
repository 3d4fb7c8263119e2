"""The command line as a user meets it: answers, JSON, charts, and every kind of bad input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.planning.contexts import DEFAULT_CONTEXTS

COMMANDS = (
    "plan", "cache", "compare", "capacity", "models", "gpus", "check", "probe", "lab"
)  # fmt: skip
LLAMA = "meta-llama/Llama-3.1-8B"


def kvproof(
    *args: str, stdin: str | None = None, warnings: str = "error"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", warnings, "-m", "kvproof", *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, input=stdin
    )


def test_the_main_job() -> None:
    done = kvproof(LLAMA, "--gpu", "H100-80GB", "--engine", "formula")
    assert done.returncode == 0
    for words in (
        "8.03B parameters",
        "32 x full",
        "131,072 B",
        "KV cache",
        "overtake",
        "4k",
        "128k",
    ):
        assert words in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(command: str) -> None:
    done = kvproof(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: kvproof")
    assert not done.stderr
    assert kvproof("help", command).stdout == done.stdout


def test_json_is_one_document_with_origins() -> None:
    done = kvproof("plan", LLAMA, "--gpu", "H100-80GB", "--engine", "formula", "--json")
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["command"] == "plan"
    assert document["inputs"]["gpu"] == {"value": "H100-80GB", "origin": "flag"}
    assert document["inputs"]["contexts"]["origin"] == "default"
    assert document["inputs"]["model"]["origin"] == "catalog"
    terms = document["result"]["budget"]["terms"]
    kv = document["result"]["budget"]["kv_bytes"]
    assert kv in [term["value"] for term in terms]
    assert [row["context"] for row in document["result"]["rows"]] == list(DEFAULT_CONTEXTS)
    assert document["inputs"]["contexts"]["value"] == list(DEFAULT_CONTEXTS)
    assert all(isinstance(row["bytes_per_sequence"], int) for row in document["result"]["rows"])


def test_warnings_are_in_the_document_too() -> None:
    args = ["--gpu", "H100-80GB", "--json", "--contexts", "4k"]
    done = kvproof(LLAMA, *args, "--engine", "vllm@99.1", warnings="default")
    heard = json.loads(done.stdout)["warnings"]
    assert any("newer than the newest rules" in line for line in heard)
    words = ["vllm", "serve", LLAMA, "--max-model-len", "4096", "--max-model-len", "8192"]
    done = kvproof("plan", *args, "--", *words)
    document = json.loads(done.stdout)
    assert any("given twice" in line for line in document["warnings"])
    assert document["inputs"]["engine"] == {"value": "vllm", "origin": "flag"}
    assert document["inputs"]["flags"]["value"] == {"max_model_len": 8192}


def test_models_of_ollama_are_served_by_ollama(tmp_path: Path) -> None:
    done = kvproof("plan", "ollama:none", "--gpu", "L40S", "--json")
    assert done.returncode == 2
    assert "ollama pull none" in json.loads(done.stderr)["error"]["hint"]


def test_an_engines_own_name_for_kvproofs_settings() -> None:
    done = kvproof(LLAMA, "--gpu", "H100-80GB", "--engine", "llamacpp", "--max-model-len", "8k",
                   "--kv-dtype", "q8_0")  # fmt: skip
    assert "--ctx-size 8192" in done.stdout
    assert "--cache-type-v q8_0" in done.stdout
    done = kvproof(LLAMA, "--gpu", "H100-80GB", "--engine", "llamacpp", "--tp", "2")
    assert done.returncode == 2


def test_explain_prints_formulas() -> None:
    done = kvproof("cache", LLAMA, "--explain", "--contexts", "4k")
    assert "32 layers x 4,096 positions x 8 KV heads" in done.stdout


def test_transformers_own_variants() -> None:
    short = json.loads(kvproof("cache", "openai-community/gpt2", "--json").stdout)
    assert [row["lengths"] for row in short["result"]["rows"]] == [[1024]]
    paged = kvproof("cache", LLAMA, "--engine", "vllm", "--contexts", "100", "--json")
    held = json.loads(paged.stdout)["result"]["rows"][0]["cache"]
    assert held["allocated_bytes"] == 112 * 131072  # seven blocks of 16
    done = kvproof("cache", LLAMA, "--quantized", "hqq:4", "--contexts", "64", "--json")
    row = json.loads(done.stdout)["result"]["rows"][0]["cache"]
    assert row["quantized_bytes"] == 32 * 2 * (64 * 1024 // 2 + 64 * 1024 // 64 * 4)
    done = kvproof("cache", LLAMA, "--offloaded", "--contexts", "4k", "--json")
    row = json.loads(done.stdout)["result"]["rows"][0]["cache"]
    assert row["device_bytes"] == row["bytes"] // 16
    assert kvproof("cache", LLAMA, "--quantized", "hqq:3x").returncode == 2


def test_without_the_cache() -> None:
    done = kvproof("cache", LLAMA, "--without-cache", "--prompt", "1000", "--output", "500")
    assert done.returncode == 0
    assert "1,250 times" in done.stdout


@pytest.mark.parametrize("ending", ["svg", "png", "html", "json"])
def test_charts(ending: str, tmp_path: Path) -> None:
    target = tmp_path / f"chart.{ending}"
    done = kvproof(LLAMA, "--gpu", "H100", "--engine", "formula", "-o", str(target))
    assert done.returncode == 0, done.stderr
    head = target.read_bytes()[:200]
    sign = {"svg": b"<svg", "png": b"\x89PNG", "html": b"<!DOCTYPE html>", "json": b"{"}[ending]
    assert sign.lower() in head.lower()
    assert [p.name for p in tmp_path.iterdir()] == [target.name]


def test_titles_of_charts_side_by_side_are_level(tmp_path: Path) -> None:
    target = tmp_path / "plan.svg"
    for contexts in ("4k,128k", "4k,8k,32k,128k"):
        kvproof(LLAMA, "--gpu", "H100-80GB", "--contexts", contexts, "-o", str(target))
        drawn = target.read_text()
        titles = [
            re.findall(r'role-title"><g transform="translate\([-\d.]+,([-\d.]+)\)', panel)[0]
            for panel in drawn.split("concat_1_concat_")[1:]
            if "role-title" in panel
        ]
        assert len(titles) == 2
        assert abs(float(titles[0]) - float(titles[1])) <= 1


def test_every_term_of_a_plan_has_its_own_sign() -> None:
    done = kvproof("deepseek-ai/DeepSeek-V3", "--gpu", "8xH200", "--tp", "8", "--contexts", "4k")
    table = done.stdout.partition("Memory of")[2].partition("How many fit")[0]
    signs = [line[2] for line in table.splitlines() if "iB" in line and line[3:4] == " "]
    assert len(signs) >= 11
    assert len(set(signs)) == len(signs)


def test_it_does_not_fit_is_status_1() -> None:
    done = kvproof("meta-llama/Meta-Llama-3-70B", "--gpu", "L4", "--engine", "formula")
    assert done.returncode == 1
    assert "missing" in done.stdout


def test_what_is_missing_is_in_the_table() -> None:
    done = kvproof("Qwen/Qwen3-32B", "--gpu", "RTX-4090", "--contexts", "4k")
    assert done.returncode == 1
    assert re.search(r"^ +missing +4\d\.\d\d GiB", done.stdout, re.M)
    # SGLang's pools take a page more than its sizing counts; nothing is missing.
    fitting = kvproof(LLAMA, "--gpu", "H100-80GB", "--contexts", "4k", "--engine", "sglang")
    assert "missing" not in fitting.stdout


def test_the_heading_says_what_the_weights_are_loaded_as() -> None:
    asked = kvproof(
        "plan", "--gpu", "H100", "--contexts", "256", "--explain", "--", "vllm", "serve",
        "Qwen/Qwen3-8B", "--quantization", "fp8",
    )  # fmt: skip
    said = " ".join(asked.stdout.split())
    assert "weights bf16: 16.38 GB (15.26 GiB), loaded as fp8: 9.44 GB (8.79 GiB)" in said
    assert "Weights of the checkpoint, by role" in asked.stdout
    plain = kvproof("Qwen/Qwen3-8B", "--gpu", "H100", "--contexts", "256")
    assert "loaded as" not in plain.stdout


def test_a_gpu_that_the_default_engine_does_not_run_on() -> None:
    done = kvproof(LLAMA, "--gpu", "M3-Max-64GB", "--contexts", "4k,1m")
    assert done.returncode == 0
    assert "M3-Max-64GB runs llamacpp, not vllm" in done.stderr
    assert "llama-server -m ./MODEL.gguf" in done.stdout
    assert "n_ctx_seq" in done.stdout
    assert "max_model_len" not in done.stdout + done.stderr
    document = json.loads(
        kvproof(LLAMA, "--gpu", "M3-Max-64GB", "--contexts", "4k", "--json").stdout
    )
    assert any("runs llamacpp, not vllm" in line for line in document["warnings"])
    assert document["result"]["engine"] == "llamacpp"
    both = kvproof("compare", LLAMA, "--gpu", "M3-Max-64GB,H100-80GB")
    assert both.returncode == 0
    told = kvproof(LLAMA, "--gpu", "TPU-v5p-95GB", "--contexts", "4k")
    assert "Google's hardware is not known" in told.stderr


def test_replicas_of_several_gpus() -> None:
    done = kvproof(LLAMA, "--gpu", "4xH100-80GB", "--tp", "2", "--contexts", "4k")
    assert "2 replicas of 2 GPUs" in done.stdout
    figures = re.findall(r"([\d,]{2,}) \(([\d,]+)\)", done.stdout)
    assert len(figures) == 2  # sequences, tokens per second
    for alone, all_of_them in figures:
        twice = 2 * int(alone.replace(",", ""))
        assert abs(int(all_of_them.replace(",", "")) - twice) <= 1  # rounded apart


def test_an_option_beside_the_pasted_one_is_named() -> None:
    pasted = ("vllm", "serve", LLAMA, "-tp", "2")
    done = kvproof("plan", "--gpu", "H100-80GB", "--tp", "4", "--contexts", "4k", "--", *pasted)
    assert "tensor_parallel_size of 2 is not used: 4 was given" in done.stderr
    same = kvproof("plan", "--gpu", "H100-80GB", "--tp", "2", "--contexts", "4k", "--", *pasted)
    assert "not used" not in same.stderr


def test_a_note_is_said_once() -> None:
    done = kvproof(LLAMA, "--gpu", "H100-80GB", "--engine", "vllm@99.0", "--contexts", "4k",
                   warnings="default")  # fmt: skip
    assert done.stderr.count("newer than the newest rules") == 1


def test_one_gpu_is_called_one() -> None:
    done = kvproof(LLAMA, "--gpu", "M3-Max-64GB", "--contexts", "4k", "--engine", "llamacpp")
    assert "Memory of one M3-Max-64GB" in done.stdout
    done = kvproof(LLAMA, "--gpu", "2xL40S", "--tp", "2", "--contexts", "4k")
    assert "Memory of each GPU of 2xL40S-48GB" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["no/such-model-anywhere", "--gpu", "H100", "--offline"], "unknown model"),
        ([LLAMA, "--gpu", "M3-Max-64GB", "--engine", "vllm"], "plan it with llamacpp"),
        ([LLAMA, "--gpu", "MI300X", "--engine", "tensorrt_llm"], "no rules for AMD's"),
        ([LLAMA, "--gpu", "H100-80GB", "--used", "100GiB"], "used is 100.00 GiB"),
        ([LLAMA, "--gpu", "H100-80GB", "--used", "3"], "write 3GiB"),
        (["plan", "--", "vllm", "serve", LLAMA, "--gpu", "H100"], "put it before --"),
        (["plan", "--", "vllm", "serve", LLAMA, "--device", "cpu"], "kvproof capacity --kv-bytes"),
        ([LLAMA, "--gpu", "H1OO"], "H100"),
        ([LLAMA], "--gpu"),
        ([LLAMA, "--gpu", "H100", "--engine", "vlm"], "vllm"),
        ([LLAMA, "--gpu", "H100", "--contexts", "32k..4k"], "32k..4k"),
        ([LLAMA, "--gpu", "H100", "--engine", "formula", "--kv-dtype", "bf61"], "bf16"),
        ([LLAMA, "--gpu", "8xH100", "--engine", "formula", "--tp", "3"], "multiple"),
        (["cache", "missing/config.json"], "config.json"),
        (["cache", LLAMA, "--dtype", "floaty"], "element type"),
        (["cache", LLAMA, "--no-such-flag"], "no-such-flag"),
        (["plan", "--gpu", "H100", "--engine", "sglang", "--", "vllm", "serve", LLAMA], "starts"),
        (["plan", LLAMA, "--gpu", "H100", "--weight-bytes", "5GB", "--", "-tp", "1"], "formula"),
        (["compare"], "model"),
        (["compare", LLAMA, "--gpu", ","], "name is empty"),
        ([LLAMA, "--gpu", "H100", "--bandwidth", "0"], "above 0"),
        ([LLAMA, "--gpu", "H100", "--contexts", "4k.."], "a length is missing"),
        ([LLAMA, "--gpu", "H100", "--engine", "vllm", "--gpu-memory", "80GB"], "--engine formula"),
        ([LLAMA, "--gpu", "H100", "--server", "a"], "--manifest"),
        ([LLAMA, "--gpu", "H100", "--engine", "sglang@new"], "release 'new' of sglang"),
        (["gpus", "nosuchgpu"], "nosuchgpu"),
        ([LLAMA, "--gpu", "H100", "--engine", "formula", "-o", "chart.bmp"], "chart.bmp"),
        ([LLAMA, "--gpu", "H100", "--engine", "formula", "-o", "/no/such/folder/c.svg"], "folder"),
    ],
)
def test_bad_input_is_one_line_and_status_2(args: list[str], words: str) -> None:
    done = kvproof(*args)
    assert done.returncode == 2, done.stderr
    assert words.lower() in done.stderr.lower()
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout


def test_errors_have_a_json_form() -> None:
    done = kvproof(LLAMA, "--gpu", "H1OO", "--json")
    assert done.returncode == 2
    assert not done.stdout
    assert json.loads(done.stderr)["error"]["code"] == 2


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '"x"', "{}", '{"model_type": 7}', '{"model_type": "llama"}' * 2,
        '{"model_type": "llama", "num_hidden_layers": 1000000000000}',
        '{"model_type": "llama", "rope_scaling": [1]}',
        '{"model_type": "llama", "partial_rotary_factor": {}}',
        '{"model_type": "llama", "rope_scaling": {"original_max_position_embeddings": "x"}}',
        '{"model_type": "llama", "rope_parameters": {"rope_type": 5}}',
        '{"model_type": "llama", "num_hidden_layers": -3}',
        '{"model_type": "llama", "num_hidden_layers": "32"}',
        '{"model_type": "llama", "hidden_size": 1e400}',
        '{"model_type": "llama", "num_attention_heads": 0}',
        '{"model_type": "nosuchthing"}',
        "[" * 100_000, '{"a":' * 50_000, '{"model_type": "' + "x" * 10_000_000 + '"}',
        '{"model_type": "llama", "hidden_size": NaN}',
        '{"model_type": "llama", "num_hidden_layers": Infinity}',
    ],
)  # fmt: skip
def test_hostile_configs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    done = kvproof("cache", str(path))
    assert done.returncode == 2, (done.stdout[:200], done.stderr[:400])
    assert len(done.stderr.strip().splitlines()) == 1
    assert len(done.stderr) < 600
    assert not done.stdout


def test_a_closed_pipe_is_no_fault() -> None:
    command = f"{sys.executable} -m kvproof models | head -1"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_unknown_faults_are_101(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvproof.surfaces import cli

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli.cli, "main", broken)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["models"])
    assert stopped.value.code == 101
    assert "fault of kvproof" in capsys.readouterr().err


def test_a_pasted_gguf_files_quantization_is_not_ignored_silently(tmp_path: Path) -> None:
    pasted = ("llama-server", "-m", str(tmp_path / "Qwen3-8B-Q4_K_M.gguf"), "-c", "8192")
    beside = kvproof("plan", LLAMA, "--gpu", "RTX4090", "--contexts", "4k", "--", *pasted)
    assert "weights are reckoned as Q4_K_M" in beside.stderr
    assert "weights Q4_K_M" in beside.stdout
    untyped = ("llama-server", "-m", str(tmp_path / "model.gguf"), "-c", "8192")
    beside = kvproof("plan", LLAMA, "--gpu", "RTX4090", "--contexts", "4k", "--", *untyped)
    assert "give the GGUF file for its quantization" in beside.stderr
    alone = kvproof("plan", "--gpu", "RTX4090", "--contexts", "4k", "--", *pasted)
    assert alone.returncode == 2
    assert "or name its model: kvproof plan MODEL" in alone.stderr
