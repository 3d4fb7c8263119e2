"""Pasted command lines: what they start, and the way back."""

from __future__ import annotations

import shlex
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvproof
from kvproof.engine.command import read_command, render_command
from kvproof.errors import UsageError


def test_vllm_serve() -> None:
    found = read_command(
        "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 32K "
        "--enable-prefix-caching --gpu-memory-utilization=0.95 --host 0.0.0.0 --port 8000"
    )
    assert found.model == "Qwen/Qwen3-32B"
    assert found.deployment.engine.name == "vllm"
    assert found.deployment.flags == {
        "tensor_parallel_size": 4,
        "max_model_len": 32768,
        "enable_prefix_caching": True,
        "gpu_memory_utilization": 0.95,
    }
    assert found.ignored == ("host", "port")


def test_module_with_environment_and_continued_lines() -> None:
    found = read_command(
        "CUDA_VISIBLE_DEVICES=0,1 VLLM_ATTENTION_BACKEND=FLASHINFER python3 -m "
        "vllm.entrypoints.openai.api_server \\\n  --model org/name -tp 2 \\\n"
        "  --no-enable-prefix-caching --disable-log-requests --kv-cache-dtype fp8 && echo done"
    )
    assert found.model == "org/name"
    assert found.deployment.flags == {
        "tensor_parallel_size": 2,
        "enable_prefix_caching": False,
        "kv_cache_dtype": "fp8",
        "attention_backend": "FLASHINFER",
    }


def test_the_image_names_the_release() -> None:
    found = read_command(
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.11.0 --model org/name -O3 "
        '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\''
    )
    assert str(found.deployment.engine) == "vllm@0.11.0"
    assert found.deployment.flags["speculative_config"]["num_speculative_tokens"] == 2


def test_dotted_options_make_one_object() -> None:
    found = read_command(
        "$ vllm serve --trust-remote-code --enable-auto-tool-choice org/name "
        "--speculative-config.method eagle --speculative-config.num-speculative-tokens 3"
    )
    assert found.model == "org/name"
    assert found.deployment.flags["speculative_config"] == {
        "method": "eagle",
        "num_speculative_tokens": 3,
    }


def test_flags_given_beside_the_command_win() -> None:
    found = read_command("vllm serve org/name --max-model-len 8192", max_model_len=4096)
    assert found.deployment.flags["max_model_len"] == 4096


def test_from_command_is_the_deployment() -> None:
    found = kvproof.Deployment.from_command("vllm serve org/name -tp 2", gpu="2xH100-80GB")
    assert found.flags["tensor_parallel_size"] == 2
    assert found.gpu_count == 2


@pytest.mark.parametrize(
    "text",
    [
        "ls -l",
        "",
        "vllm serve 'x",
        "vllm serve x --tensor-paralel-size 2",
        "vllm serve x --max-model-len abc",
        "vllm serve x --max-model-len",
        "vllm serve " + "x " * 20_000,
    ],
    ids=lambda text: text[:40],
)
def test_what_can_not_be_read_says_so(text: str) -> None:
    with pytest.raises(UsageError):
        read_command(text)


def test_rendered_commands_read_back() -> None:
    deployment = kvproof.Deployment(
        "vllm",
        tensor_parallel_size=4,
        max_model_len=-1,
        enable_prefix_caching=False,
        speculative_config={"method": "mtp", "num_speculative_tokens": 2},
    )
    text = render_command("org/name", deployment)
    assert text.startswith("vllm serve org/name --tensor-parallel-size 4")
    again = read_command(text)
    assert again.model == "org/name"
    assert dict(again.deployment.flags) == dict(deployment.flags)


@settings(max_examples=200)
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UsageError):
        assert read_command(f"vllm serve org/name {text}").model == "org/name"


@given(st.lists(st.sampled_from(["--port 80", "--enforce-eager", "-tp 2", "--dtype half"])))
def test_words_may_come_in_any_order(parts: list[str]) -> None:
    found = read_command(shlex.join(["vllm", "serve", "org/name", *" ".join(parts).split()]))
    assert found.model == "org/name"
