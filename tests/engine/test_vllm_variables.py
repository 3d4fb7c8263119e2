"""Variables of the environment that name what an option says: by release."""

from __future__ import annotations

import pytest

import kvproof
from kvproof.engine.command import in_release, read_command, render_command
from kvproof.engine.vllm.flags import read_flags

_BY_VARIABLE = "VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve Qwen/Qwen3-8B"
_BY_OPTION = "vllm serve Qwen/Qwen3-8B --attention-backend FLASHINFER"


@pytest.mark.parametrize(
    ("release", "command", "printed", "read"),
    [
        ("0.12.0", _BY_VARIABLE, _BY_VARIABLE, True),
        ("0.12.0", _BY_OPTION, _BY_VARIABLE, True),
        ("0.13.0", _BY_OPTION, _BY_OPTION, True),
        ("0.14.1", _BY_VARIABLE, _BY_VARIABLE, True),
        ("0.15.0", _BY_VARIABLE, "vllm serve Qwen/Qwen3-8B", False),
        ("0.15.0", _BY_OPTION, _BY_OPTION, True),
    ],
)
def test_a_backend_is_named_as_the_release_reads_it(
    release: str, command: str, printed: str, read: bool
) -> None:
    """PR 26315 (0.13.0) brought the option, PR 32812 (0.15.0) took the variable."""
    deployment = in_release(read_command(command, gpu="H100-80GB"), f"vllm@{release}").deployment
    assert render_command("Qwen/Qwen3-8B", deployment) == printed
    model = kvproof.load_model("Qwen/Qwen3-8B")
    planned = kvproof.capacity(model, deployment, kv_bytes=1 << 33)
    assert planned.attention_backend == ("FLASHINFER" if read else "FLASH_ATTN")
    said = kvproof.plan(model, deployment, contexts=[4096]).warnings
    assert any("reads no VLLM_ATTENTION_BACKEND" in note for note in said) is not read


def test_limits_written_as_pairs_are_numbers() -> None:
    """`image=0` of early releases is `{"image": 0}` to the later ones, which take no "0"."""
    text = "vllm serve org/name --limit-mm-per-prompt image=0,video=2"
    read = read_command(text, engine="vllm@0.9.2").deployment
    assert read_flags(read)["limit_mm_per_prompt"] == {"image": 0, "video": 2}
    assert '{"image":0,"video":2}' in render_command("org/name", read)
