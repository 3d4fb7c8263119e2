"""Python that starts an engine, pasted or named: read as its command line, and the way back."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.engine.command import Command, read_command, render_command
from kvproof.engine.manifest import read_manifest
from kvproof.engine.python_calls import calls_in
from kvproof.errors import KvproofError, UsageError

SCRIPT = """
import argparse
from vllm import LLM as Model, SamplingParams

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=str, default="Qwen/Qwen3-4B")
parser.add_argument("-tp", "--tensor-parallel-size", type=int, default=2)
args = parser.parse_args()
LENGTH = 8 * 1024
settings = {"enforce_eager": False, "kv_cache_dtype": "fp8"}
prompts = ["LLM(model='other')"]


class LLM:
    pass


engine = Model(
    args.model,
    tensor_parallel_size=args.tensor_parallel_size,
    max_model_len=LENGTH,
    quantization=chosen(),
    dtype=torch.bfloat16,
    **settings,
)
"""


def engine_of(read: Command) -> str:
    return read.deployment.engine.name


@pytest.mark.parametrize(
    ("text", "engine", "flags"),
    [
        (
            'LLM("Qwen/Qwen3-8B", max_model_len=4096)',
            "vllm",
            {"max_model_len": 4096, "usage_context": "llm_class"},
        ),
        (
            'from tensorrt_llm import LLM\nfrom tensorrt_llm.llmapi import KvCacheConfig\n'
            'LLM("Qwen/Qwen3-8B", kv_cache_config=KvCacheConfig(free_gpu_memory_fraction=0.7))',
            "tensorrt_llm",
            {"kv_cache_config": {"free_gpu_memory_fraction": 0.7}},
        ),
        (
            'sgl.Engine(model_path="Qwen/Qwen3-8B", tp_size=2, disable_radix_cache=False)',
            "sglang",
            {"tp_size": 2},
        ),
        (
            'AsyncEngineArgs(model="Qwen/Qwen3-8B", enable_prefix_caching=False, seed=None)',
            "vllm",
            {"enable_prefix_caching": False, "usage_context": "engine_context"},
        ),
    ],
)  # fmt: skip
def test_a_call_is_its_engines_command(text: str, engine: str, flags: dict[str, object]) -> None:
    for pasted in (text, f"python3 -u - <<'EOF'\n{text}\nEOF"):
        read = read_command(pasted, "2xH100-80GB")
        assert engine_of(read) == engine
        assert read.model == "Qwen/Qwen3-8B"
        assert read.deployment.flags == flags


def test_a_bare_name_is_the_wanted_engines() -> None:
    read = read_command('LLM(model="Qwen/Qwen3-8B")', "H100-80GB", engine="tensorrt_llm")
    assert engine_of(read) == "tensorrt_llm"
    with pytest.raises(UsageError, match="starts sglang"):
        read_command('sgl.Engine(model_path="Qwen/Qwen3-8B")', engine="vllm@0.11")
    with pytest.raises(UsageError, match="no known engine"):
        read_command('from somewhere import LLM\nLLM(model="Qwen/Qwen3-8B")')


@pytest.mark.parametrize(
    ("words", "model", "ranks"),
    [("", "Qwen/Qwen3-4B", 2), ("--model Qwen/Qwen3-8B -x 1 --tensor-parallel-size=4", None, 4)],
)
def test_a_script_with_its_own_options(
    tmp_path: Path, words: str, model: str | None, ranks: int
) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    read = read_command(f"CUDA_VISIBLE_DEVICES=0,1 python {script} {words}", "H100-80GB")
    assert read.model == (model or "Qwen/Qwen3-8B")
    assert read.deployment.flags == {
        "usage_context": "llm_class", "tensor_parallel_size": ranks, "max_model_len": 8192,
        "dtype": "bfloat16", "enforce_eager": False, "kv_cache_dtype": "fp8",
    }  # fmt: skip
    assert "left aside from LLM(...): quantization (not known)" in read.notes
    assert read_manifest(SCRIPT, "H100-80GB").model == "Qwen/Qwen3-4B"


def test_scripts_that_start_nothing_say_so(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("print(1)")
    with pytest.raises(UsageError, match=r"gone\.py is not here"):
        read_command("python gone.py")
    with pytest.raises(UsageError, match="calls none"):
        read_command(f"python {other}")
    with pytest.raises(UsageError, match="no known engine"):
        read_command("python -c 'print(2)'")


@pytest.mark.parametrize("name", ["LLM", "EngineArgs"])
def test_a_class_is_printed_as_it_was_pasted(name: str) -> None:
    text = (
        f'{name}(model="Qwen/Qwen3-8B", revision="abc", max_model_len=4096, enforce_eager=True, '
        'hf_overrides={"a": "it\'s", "b": [1, None]}, attention_backend="FLASHINFER")'
    )
    assert name in text
    read = read_command(text, "H100-80GB")
    assert read.model is not None
    printed = render_command(read.model, read.deployment)
    assert printed.startswith("python -c ")
    again = read_command(printed, "H100-80GB")
    assert (again.model, again.deployment.flags) == (read.model, read.deployment.flags)


@pytest.mark.parametrize(
    ("text", "model", "flag", "own"),
    [
        ("python3 -m dynamo.vllm --model org/a --connector nixl --max-model-len 4096",
         "org/a", ("max_model_len", 4096), "--connector"),
        ("python -m sglang.bench_one_batch --model org/a --batch 1 2 --tp 2",
         "org/a", ("tp_size", 2), "--batch"),
        ("vllm bench latency --model org/a --input-len 9 --max-num-seqs 3",
         "org/a", ("usage_context", "llm_class"), "--input-len"),
        ("python3 -m dynamo.trtllm --model-path org/a --max-num-tokens 64 --modality text",
         "org/a", ("max_num_tokens", 64), "--modality"),
    ],
)  # fmt: skip
def test_wrappers_options_are_left_aside(
    text: str, model: str, flag: tuple[str, object], own: str
) -> None:
    read = read_command(text, "H100-80GB")
    assert read.model == model
    assert flag in read.deployment.flags.items()
    assert any(own in note and "left aside" in note for note in read.notes)


def test_llama_bench_is_the_largest_of_its_tests() -> None:
    read = read_command(
        "./llama-bench -m a-Q4_K_M.gguf -p 512,1024-4096*2 -n 128 -pg 5000,200 -d 0,1000 -fa 1 "
        "-ctk q8_0 -ts 3/1 -ngl 99 -ub 256,512 -r 3 -nkvo 1 --progress",
        "2xRTX-3090-24GB",
    )
    assert read.model == "a-Q4_K_M.gguf"
    assert read.deployment.flags == {
        "ctx_size": 6200, "parallel": 1, "fit": "off", "flash_attn": "on", "cache_type_k": "q8_0",
        "tensor_split": "3,1", "n_gpu_layers": 99, "ubatch_size": 512, "kv_offload": False,
    }  # fmt: skip
    with pytest.raises(UsageError, match="no number of tokens"):
        read_command("llama-bench -p many")


NAMES = ("LLM", "Engine")
PIECES = st.sampled_from(
    ["LLM(", "sgl.Engine(", ")", "model=", '"a/b"', ",", "**", "x", "=", "{", "}", "[", "]", "\n",
     "import vllm as sgl", "9" * 30, "*", "<<", "(" * 150, "lambda:", "torch.", "-" * 90, "f'{x}'",
     "getenv('A', ", "dict(", "\x00", "b''", "1j", "...", "await ", ":="]
)  # fmt: skip


@given(st.lists(PIECES, max_size=24).map("".join) | st.text(max_size=60).map("LLM({})".format))
def test_hostile_python_ends(text: str) -> None:
    for call in calls_in(text, NAMES):
        assert call.name in NAMES
    with suppress(KvproofError):
        read_command(text)


def test_names_that_hold_one_another_end() -> None:
    text = "a = b\nb = a\nLLM(model=a, max_model_len=4)"
    [call] = calls_in(text, NAMES)
    assert call.unknown == ("model",)
    assert call.keywords == {"max_model_len": 4}
