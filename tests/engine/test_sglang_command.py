from __future__ import annotations

import pytest

from kvproof.engine.base import Deployment
from kvproof.engine.command import read_command, read_flags, render_command
from kvproof.errors import UsageError

SGLANG = """
docker run --gpus all lmsysorg/sglang:v0.5.8-cu126 python3 -m sglang.launch_server \\
  --model-path deepseek-ai/DeepSeek-V3 --tp 8 --trust-remote-code --mem-fraction-static 0.85 \\
  --enable-dp-attention --dp 8 --cuda-graph-bs 1 2 4 --host 0.0.0.0 --port 30000
"""


def test_a_pasted_launch_server() -> None:
    command = read_command(SGLANG, gpu="8xH200")
    assert command.model == "deepseek-ai/DeepSeek-V3"
    assert str(command.deployment.engine) == "sglang@0.5.8"
    assert dict(command.deployment.flags) == {
        "tp_size": 8, "mem_fraction_static": 0.85, "enable_dp_attention": True, "dp_size": 8,
        "cuda_graph_bs": ["1", "2", "4"],
    }  # fmt: skip
    assert set(command.ignored) == {"trust_remote_code", "host", "port"}


def test_sglang_serve_and_equals_signs() -> None:
    command = read_command("sglang serve --model-path=org/name --context-length=8192")
    assert command.model == "org/name"
    assert command.deployment.flags["context_length"] == 8192


def test_a_pasted_trtllm_serve() -> None:
    command = read_command(
        "mpirun -n 1 trtllm-llmapi-launch trtllm-serve serve meta-llama/Llama-3.1-8B "
        "--tp_size 2 --max_batch_size 64 --kv_cache_free_gpu_memory_fraction 0.8 --port 8000"
    )
    assert command.model == "meta-llama/Llama-3.1-8B"
    assert dict(command.deployment.flags) == {
        "tp_size": 2, "max_batch_size": 64, "free_gpu_memory_fraction": 0.8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("sglang", {"tp_size": 4, "mem_fraction_static": 0.8, "disable_radix_cache": True}),
        ("tensorrt_llm", {"tp_size": 4, "free_gpu_memory_fraction": 0.8, "max_seq_len": 8192}),
    ],
)
def test_the_way_back(engine: str, flags: dict[str, object]) -> None:
    text = render_command("org/name", Deployment(engine, **flags))
    command = read_command(text)
    assert command.model == "org/name"
    assert dict(command.deployment.flags) == flags


def test_a_drafts_steps_come_back_with_its_tokens() -> None:
    given = (
        "python -m sglang.launch_server --model-path org/name --speculative-algorithm EAGLE "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )
    command = read_command(given)
    assert render_command("org/name", command.deployment) == given


def test_flags_after_the_dashes() -> None:
    command = read_flags("sglang@0.5.12", ["--tp", "2", "--page-size", "64"])
    assert dict(command.deployment.flags) == {"tp_size": 2, "page_size": 64}


@pytest.mark.parametrize(
    "command", ["python -m sglang.launch_server --tq 2", "trtllm-serve m --tp_sise 2"]
)
def test_unknown_flags_are_named(command: str) -> None:
    with pytest.raises(UsageError, match="unknown"):
        read_command(command)


def test_the_router_starts_copies_of_the_server() -> None:
    found = read_command(
        "python -m sglang_router.launch_server --model-path org/name --dp-size 4 --tp-size 2 "
        "--router-policy cache_aware --router-cache-threshold 0.5 --mem-fraction-static 0.8"
    )
    assert found.model == "org/name"
    assert found.deployment.flags == {"dp_size": 4, "tp_size": 2, "mem_fraction_static": 0.8}
    assert found.ignored == ("router_policy", "router_cache_threshold")


START = "python -m sglang.launch_server --model-path org/a"


@pytest.mark.parametrize(
    ("options", "release", "first"),
    [
        ("--mamba-full-memory-ratio 0.5", "0.5.3", "0.5.4"),
        ("--pp-size 2 --page-size 64", "0.4.6", "0.4.7"),
        ("--swa-full-tokens-ratio 0.5", "0.4.9.post6", None),
        ("--swa-full-tokens-ratio 0.5", "0.4.9", "0.4.10"),
        ("--moe-a2a-backend deepep", "0.4.10", "0.5.1"),
        ("--mamba-full-memory-ratio 0.5", "0.5.3.dev3", None),
        ("--tp 2 --max-running-requests 8 --mem-fraction-static 0.8", "0.3.0", None),
    ],
)
def test_options_of_a_later_release_are_refused(
    options: str, release: str, first: str | None
) -> None:
    """36 releases were read; one after a release's post releases may have what the next has."""
    if first is None:
        assert read_command(f"{START} {options}", engine=f"sglang@{release}").deployment.flags
        return
    with pytest.raises(UsageError, match=rf"SGLang {release} has no --\S+ \(from {first} on\)"):
        read_command(f"{START} {options}", engine=f"sglang@{release}")
    assert read_command(f"{START} {options}", engine=f"sglang@{first}").deployment.flags


@pytest.mark.parametrize(
    ("release", "named"),
    [("0.5.10", "--nsa-decode-backend"), ("0.5.14", "--dsa-decode-backend"), (None, "--dsa-")],
)
def test_a_renamed_option_is_printed_as_the_release_has_it(release: str | None, named: str) -> None:
    """nsa_decode_backend came with 0.5.4 and is dsa_decode_backend from 0.5.13 on."""
    engine = "sglang" if release is None else f"sglang@{release}"
    read = read_command(f"{START} --nsa-decode-backend flashmla_kv", engine=engine)
    printed = render_command("org/a", read.deployment)
    assert named in printed
    assert read_command(printed, engine=engine).deployment.flags == read.deployment.flags
