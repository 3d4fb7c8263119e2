"""Rules that only some engines have: what is asked is answered, and what is answered is asked."""

from __future__ import annotations

import re
from pathlib import Path

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
