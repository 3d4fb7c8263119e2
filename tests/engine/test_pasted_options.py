"""Options as people paste them: short negations, a release without them, settings in files."""

from __future__ import annotations

import pytest

from kvproof.engine.command import read_command, render_command
from kvproof.errors import UsageError


@pytest.mark.parametrize("word", ["-nkvo", "--no-kv-offload"])
def test_a_short_negation_switches_off(word: str) -> None:
    read = read_command(f"llama-server -m x.gguf -c 4096 {word}")
    assert read.deployment.flags["kv_offload"] is False
    assert "--no-kv-offload" in render_command("x.gguf", read.deployment)


def test_an_unknown_llama_server_option_offers_options_as_they_are_typed() -> None:
    with pytest.raises(UsageError, match="did you mean --ctx-size"):
        read_command("llama-server -m x.gguf --ctxsize 4096")
