"""Options as people paste them: short negations, a release without them, settings in files."""

from __future__ import annotations

import pytest

from kvproof.engine.command import read_command, read_flags, render_command
from kvproof.engine.manifest import read_manifest
from kvproof.errors import UsageError


@pytest.mark.parametrize("word", ["-nkvo", "--no-kv-offload"])
def test_a_short_negation_switches_off(word: str) -> None:
    read = read_command(f"llama-server -m x.gguf -c 4096 {word}")
    assert read.deployment.flags["kv_offload"] is False
    assert "--no-kv-offload" in render_command("x.gguf", read.deployment)


def test_an_unknown_llama_server_option_offers_options_as_they_are_typed() -> None:
    with pytest.raises(UsageError, match="did you mean --ctx-size"):
        read_command("llama-server -m x.gguf --ctxsize 4096")


_NEWER = "meta-llama/Llama-3.1-8B --async-scheduling --watchdog-config {}"
_MANIFEST = """
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.6.4
    args: [--model, meta-llama/Llama-3.1-8B, --async-scheduling]
"""


@pytest.mark.parametrize(
    ("release", "said"),
    [("0.6.0", r"async-scheduling \(from 0.10.0 on\), --watchdog-config \(from 0.33.0 on\)"),
     ("0.9.2", r"0.9.2 has no --async-scheduling"),
     ("0.10.0", r"0.10.0 has no --watchdog-config \(from 0.33.0 on\)")],
)  # fmt: skip
def test_options_that_a_release_has_not_yet_are_refused(release: str, said: str) -> None:
    engine = f"vllm@{release}"
    with pytest.raises(UsageError, match=said):
        read_command(f"vllm serve {_NEWER}", engine=engine)
    with pytest.raises(UsageError, match=said):
        read_flags(engine, _NEWER.split()[1:])


def test_options_of_the_release_are_taken() -> None:
    for engine in ("vllm@0.33.0", "vllm", "vllm@0.32.1.dev3", None):
        read_command(f"vllm serve {_NEWER}", engine=engine)
    assert read_flags("vllm@0.10.0", ["--async-scheduling"]).deployment.flags["async_scheduling"]


def test_a_release_between_two_that_were_read_may_have_an_option() -> None:
    """--all2all-backend is not in 0.11.0 and is in 0.11.1; data_parallel_size 0.8.1 and 0.8.4."""
    read_flags("vllm@0.8.3", ["--data-parallel-size=2"])
    with pytest.raises(UsageError, match="data-parallel-size"):
        read_flags("vllm@0.8.1", ["--data-parallel-size=2"])


def test_the_images_release_counts_unless_another_is_named() -> None:
    with pytest.raises(UsageError, match=r"0.6.4 has no --async-scheduling"):
        read_manifest(_MANIFEST)
    assert read_manifest(_MANIFEST, engine="vllm@0.11.0").deployment.flags["async_scheduling"]


@pytest.mark.parametrize(
    ("release", "written"), [("0.8.4", "image=0,video=0"), ("0.8.5", '\'{"image":0,"video":0}\'')]
)
def test_limits_of_pictures_are_printed_as_the_release_reads_them(
    release: str, written: str
) -> None:
    read = read_command(
        "vllm serve a/b --limit-mm-per-prompt image=0,video=0", engine=f"vllm@{release}"
    )
    printed = render_command("a/b", read.deployment)
    assert f"--limit-mm-per-prompt {written}" in printed
    again = read_command(printed, engine=f"vllm@{release}")
    assert again.deployment.flags == read.deployment.flags
