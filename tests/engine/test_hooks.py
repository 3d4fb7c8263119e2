"""Rules that only some engines have: what is asked is answered, and what is answered is asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kvproof
from kvproof.engine.base import engine_module, parse_engine

ENGINES = ("formula", "transformers", "vllm", "sglang", "tensorrt_llm", "llamacpp", "ollama")
ROOM = Path(str(kvproof.__file__)).parent / "engine"


def test_every_rule_that_is_asked_for_is_some_engines_and_the_other_way_round() -> None:
    asked = {
        name
        for path in ROOM.glob("*.py")
        for name in re.findall(r'own_rule\(deployment, "(\w+)"\)', path.read_text())
    }
    answered = {
        name
        for engine in ENGINES
        for name in dir(engine_module(parse_engine(engine).name))
        if name.endswith("_for") or name == "served_model"
    }
    assert asked == answered - {"rules_for"}  # those of a release


def test_planning_timing_and_surfaces_ask_no_engines_name() -> None:
    """What differs by engine is asked of its module; transformers' own variants are its alone."""
    named = re.compile(r"engine(?:\.name)? (?:==|!=|in|not in) (?!\"transformers\")[\"(_A-Z]")
    for room in ("planning", "timing", "surfaces"):
        for path in (ROOM.parent / room).rglob("*.py"):
            assert not named.search(path.read_text()), path.name


@pytest.mark.parametrize(
    ("known", "beyond"),
    [
        ("sglang@0.5.23", "sglang@0.5.24"),
        ("tensorrt_llm@1.3.0rc5", "tensorrt_llm@1.4"),
        ("llamacpp@b11549", "llamacpp@b11550"),
        ("ollama@0.32.15", "ollama@0.33.0"),
    ],
)
def test_a_release_beyond_those_read_is_said(known: str, beyond: str) -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    for engine, newer in ((known, False), (beyond, True)):
        deployment = kvproof.Deployment(engine, gpu="H100-80GB")
        said = kvproof.plan(model, deployment, contexts=[4096]).warnings
        assert any(note.startswith(f"{engine} is newer than") for note in said) is newer


def test_a_later_release_of_vllm_is_said() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    with pytest.warns(UserWarning, match="is newer than the newest rules known"):
        kvproof.plan(model, kvproof.Deployment("vllm@0.99", gpu="H100-80GB"), contexts=[4096])
