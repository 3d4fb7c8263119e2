"""The command under a plan: names that engines take, and what is left out of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvproof.surfaces.cli.capacity import capacity
from kvproof.surfaces.cli.plan import plan


def _run(name: str, *arguments: str) -> Result:
    command = {"plan": plan, "capacity": capacity}[name]
    return CliRunner().invoke(command, list(arguments), standalone_mode=False)


def _command(*arguments: str) -> list[str]:
    lines = _run("plan", *arguments).stdout.splitlines()
    return [line.strip() for line in lines[lines.index("Command") + 1 :] if line.strip()]


LLAMACPP = ("Qwen/Qwen3-8B", "--gpu", "RTX-4090", "--contexts", "4k")


@pytest.mark.parametrize(
    ("arguments", "command", "put"),
    [
        (("--engine", "llamacpp"), "llama-server -m ./MODEL.gguf", "the path of its GGUF file"),
        (("--engine", "ollama"), "ollama run MODEL", "its name in Ollama"),
    ],
)
def test_a_name_that_holds_no_gguf_is_not_printed(
    arguments: tuple[str, ...], command: str, put: str
) -> None:
    lines = _command(*LLAMACPP, *arguments)
    assert lines[0] == command
    assert put in lines[1]


@pytest.mark.parametrize(
    ("pasted", "command"),
    [
        ("llama-server -hf org/x-GGUF:Q4_K_M -c 8192",
         "llama-server -hf org/x-GGUF:Q4_K_M --ctx-size 8192"),
        ("llama-server -hf org/x-GGUF", "llama-server -hf org/x-GGUF"),
        ("llama-server -m ./there/x.gguf", "llama-server -m ./there/x.gguf"),
        ("ollama run qwen3:8b", "ollama run qwen3:8b"),
    ],
)  # fmt: skip
def test_a_pasted_commands_own_name_is_printed(pasted: str, command: str) -> None:
    assert _command(*LLAMACPP, "--", pasted)[0] == command


def test_flags_that_are_left_out_are_named() -> None:
    pasted = "vllm serve Qwen/Qwen3-8B --port 80 --api-key sk --max-model-len 8192"
    lines = _command("--gpu", "H100-80GB", "--contexts", "4k", "--", pasted)
    assert lines[0] == "vllm serve Qwen/Qwen3-8B --max-model-len 8192"
    assert lines[1] == "left out, without bearing on memory: --port, --api-key"


@pytest.mark.parametrize(
    "command", [("plan", "--gpu", "RTX-4090"), ("capacity", "--kv-bytes", "9GiB")]
)
def test_a_quantized_name_beside_a_model_is_said(command: tuple[str, ...]) -> None:
    name, *options = command
    said = _run(name, "Qwen/Qwen3-8B", *options, "--", "llama-server -hf org/x:Q4_K_M -c 4096")
    assert "not the pasted command's org/x:Q4_K_M" in said.stderr
    assert "weights are reckoned as Q4_K_M, by the name org/x:Q4_K_M" in said.stderr


def test_a_length_beyond_the_engines_is_no_number_of_blocks() -> None:
    asked = ("capacity", "Qwen/Qwen3-8B", "--kv-bytes", "9GiB", "--contexts", "4k,8k")
    found = _run(*asked, "--", "llama-server -hf org/x -c 4096")
    row = next(line.split() for line in found.stdout.splitlines() if line.strip()[:2] == "8k")
    assert row == ["8k", "-", "0", "beyond", "context", "(n_ctx_seq)"]
    document = json.loads(_run(*asked, "--json", "--", "llama-server -hf org/x -c 4096").stdout)
    assert document["result"]["sequences"]["8192"] == 0


SPOKEN = "vllm serve Qwen/Qwen3-32B --speculative-model Qwen/Qwen3-0.6B --num-speculative-tokens 3"


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ("vllm@0.7.3", SPOKEN),
        ("vllm@0.32", "vllm serve Qwen/Qwen3-32B --speculative-config "
         """'{"model":"Qwen/Qwen3-0.6B","num_speculative_tokens":3}'"""),
    ],
)  # fmt: skip
def test_a_drafts_own_flags_are_never_dropped(release: str, command: str) -> None:
    asked = ("--gpu", "H200", "--contexts", "4k", "--engine", release, "--", SPOKEN)
    assert _command(*asked)[0] == command
    assert "28 x full, draft" in _run("plan", *asked).stdout


def test_n_grams_are_no_model() -> None:
    asked = ("--gpu", "H200", "--engine", "vllm@0.7.3", "--contexts", "4k", "--")
    found = _run("plan", *asked, SPOKEN.replace("Qwen/Qwen3-0.6B", "[ngram]"))
    assert "draft" not in found.stdout
    assert "neither here" not in found.stderr


def test_a_draft_that_is_not_known_is_said() -> None:
    found = _run(
        "plan", "--gpu", "H200", "--contexts", "4k", "--", SPOKEN.replace("Qwen/Qwen3-0.6B", "a/b")
    )
    assert "the draft a/b is neither here nor in the catalogue" in found.stderr


def test_a_draft_that_cant_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": "x"}')
    spoken = SPOKEN.replace("Qwen/Qwen3-0.6B", str(tmp_path))
    found = _run("plan", "--gpu", "H200", "--contexts", "4k", "--", spoken)
    assert "can't be read (llama: config key 'num_hidden_layers' is 'x')" in found.stderr
    asked = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B"
    asked += f" --speculative-algorithm EAGLE3 --speculative-draft-model-path {tmp_path}"
    found = _run("plan", "--gpu", "H200", "--contexts", "4k", "--", asked)
    assert "'num_hidden_layers' is 'x'): it is taken for 1 of the model's layers" in found.stderr


def test_both_long_names_of_the_share_are_one() -> None:
    pasted = "vllm serve Qwen/Qwen3-8B --device-memory-utilization 0.7"
    lines = _command("--gpu", "H100-80GB", "--contexts", "4k", "--", pasted)
    assert lines == ["vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.7"]


@pytest.mark.parametrize(
    "asked",
    [
        ("zai-org/GLM-5.2", "--gpu", "8xB200", "--tp", "8"),
        ("deepseek-ai/DeepSeek-V4-Flash", "--gpu", "8xB300", "--tp", "8"),
        ("meta-llama/Llama-3.1-8B", "--gpu", "RTX-5090", "--engine", "tensorrt_llm@0.19"),
        ("Qwen/Qwen3-8B", "--gpu", "GB10", "--engine", "sglang"),
    ],
)
def test_a_source_is_one_that_a_reader_can_place(asked: tuple[str, ...]) -> None:
    shown = _run("plan", *asked, "--contexts", "4k", "--explain").stdout
    assert "Memory, term by term" in shown
    assert not re.search(r"\blog\d{3}\b", shown)


def test_weights_that_leave_nothing_say_what_helps() -> None:
    shown = _run("plan", "Qwen/Qwen3-32B", "--gpu", "RTX-4090", "--contexts", "4k").stdout
    assert "Does not start:" in shown
    assert "at full length:" not in shown
    words = " ".join(shown.split())
    assert "are missing on each GPU: spread the weights over more of them (--tp)" in words


def test_memory_that_others_hold_is_what_is_missing() -> None:
    asked = ("Qwen/Qwen3-8B", "--gpu", "H100-80GB", "--contexts", "4k", "--used", "70GiB")
    for engine in ("sglang", "vllm@0.6.3"):
        model = "meta-llama/Llama-3.1-8B" if engine.startswith("vllm") else asked[0]
        shown = _run("plan", model, *asked[1:], "--engine", engine).stdout
        words = " ".join(shown.split())
        assert re.search(r"are missing on each GPU: others hold 70.00 GiB of it", words)
        assert "SGLang starts" not in words


def test_flags_that_free_more_than_is_missing_are_named_first() -> None:
    asked = ("plan", "Qwen/Qwen3-4B", "--gpu", "H100:1g.10gb", "--max-model-len", "8192", "--")
    asked = (*asked, "--gpu-memory-utilization", "0.87")
    shown = " ".join(_run(*asked).stdout.split())
    assert re.search(r"Probably does not start, \d+\.\d\d [MG]iB of cache at the most:", shown)
    told = re.search(r"([\d.]+) MiB are missing on each GPU, and a cache on top: (.*?) give", shown)
    assert told is not None
    freed = [float(size) for size in re.findall(r"([\d.]+) MiB\)", told[2])]
    assert "--enforce-eager (CUDA graphs, " in told[2]
    assert freed == sorted(freed, reverse=True)
    assert freed[0] > float(told[1])
    # What is off already frees nothing more.
    eager = " ".join(_run(*asked, "--enforce-eager").stdout.split())
    assert "missing" not in eager
    # Where the weights alone are too large, no flag is named.
    large = _run("plan", "Qwen/Qwen3-32B", "--gpu", "RTX-4090", "--contexts", "4k").stdout
    assert "enforce-eager" not in large


def test_what_llama_cpp_lowers_is_said() -> None:
    shown = _run("plan", "Qwen/Qwen3-32B", "--gpu", "RTX-4090", "--engine", "llamacpp")
    assert re.search(
        r"started \(--fit\): a context of 4,096 tokens and \d+ of 64 layers", shown.stderr
    )
    fits = _run("plan", "Qwen/Qwen3-4B", "--gpu", "RTX-4090", "--engine", "llamacpp")
    assert "--fit" not in fits.stderr


def test_memory_shared_with_the_cpu_says_the_gpus_part() -> None:
    said = _run("plan", "Qwen/Qwen3-4B", "--gpu", "M3-Max-64GB", "--contexts", "4k").stderr
    assert "48.00 GiB of 64.00 GiB are the GPU's" in said


def test_weights_are_named_by_the_types_they_are_stored_in() -> None:
    shown = _run("plan", "openai/gpt-oss-20b", "--gpu", "H100", "--contexts", "4k", "--explain")
    roles = dict(re.findall(r"weights: (\w+): [\d,]+ parameters stored as ([^:]+):", shown.stdout))
    assert roles["expert"] == "mxfp4 and bf16"
    assert {roles[name] for name in ("attention", "embedding", "head", "router")} == {"bf16"}


def test_every_slot_of_the_catalogue_is_in_words() -> None:
    import kvproof
    from kvproof.engine.formula import types_of
    from kvproof.model import catalog
    from kvproof.surfaces.show import describe

    said = set()
    for name in catalog.entries():
        model = kvproof.load_model(name, offline=True)
        types = types_of(model, None)
        said |= {(slot.kind, describe(slot, types)) for slot in model.slots}
    assert not [text for _, text in said if re.search(r"True|None|_|\b1 KV heads", text)]
    assert ("compressed", "last 128 tokens, then 512 for each 128") in said
    assert ("indexer", "index keys of 128 bf16") in said
    assert not [kind for kind, text in said if text == kind]


def test_wrong_words_name_the_help() -> None:
    from test_cli import kvproof

    for words, said in (
        (("cache",), "kvproof: missing argument 'MODEL'; see kvproof cache --help"),
        (("plan", "x", "--tp", "many"), "is not a valid integer; see kvproof plan --help"),
        (("models", "--jsn"), "kvproof: no such option '--jsn'"),
    ):
        done = kvproof(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
