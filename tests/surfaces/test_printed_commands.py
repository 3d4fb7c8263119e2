"""Command lines that are given and printed: quoted ones, and flags that a release has no more."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import kvproof
from kvproof.engine.command import gone_flags
from kvproof.errors import UsageError
from kvproof.surfaces.cli import cli
from kvproof.surfaces.cli.chosen import refuse_command


@pytest.mark.parametrize(
    "text", ["vllm serve Qwen/Qwen3-8B", "docker run x; sglang serve --model-path Qwen/Qwen3-8B"]
)
def test_a_quoted_command_is_no_model(text: str) -> None:
    with pytest.raises(UsageError, match="is a command line, not a model; put it after --"):
        refuse_command(text)


def test_a_folder_with_a_space_is_no_command() -> None:
    refuse_command("my models/Qwen3-8B")
    refuse_command("my model's folder")


def test_plan_and_cache_say_so() -> None:
    for verb in (["plan", "--gpu", "T4"], ["cache"]):
        found = CliRunner().invoke(cli, [*verb, "vllm serve Qwen/Qwen3-8B"])
        assert isinstance(found.exception, UsageError)


def test_flags_that_went_are_named() -> None:
    """--swap-space is gone since 0.18; a rope_scaling is said as an override."""
    flags = {"swap_space": 8.0, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
    new, old = (kvproof.Deployment(f"vllm@{release}", **flags) for release in ("0.32", "0.9.0"))
    assert gone_flags(new) == ("swap_space",)
    assert gone_flags(old) == ()


def test_the_printed_command_names_them() -> None:
    pasted = ["vllm", "serve", "Qwen/Qwen3-8B", "--swap-space", "8"]
    shown = CliRunner().invoke(cli, ["plan", "--contexts", "4k", "--gpu", "H100", "--", *pasted])
    assert "left out, no options of this release: --swap-space" in shown.output
