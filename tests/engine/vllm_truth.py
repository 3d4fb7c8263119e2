"""Answers of vLLM's planner as test cases, and kvproof's figures beside them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from scripts import vllm_answers
from tests.conftest import GROUND_TRUTH

from kvproof.engine import vllm


@cache
def truth(name: str) -> dict[str, Any]:
    """A file of answers: configs by name, and cases with what the planner said."""
    found: dict[str, Any] = json.loads((GROUND_TRUTH / f"{name}.json").read_text())
    return found


def answered(name: str) -> list[dict[str, Any]]:
    """The cases of a file that the planner planned."""
    return [case for case in truth(name)["cases"] if "refused" not in case["answer"]]


def refused(name: str) -> list[dict[str, Any]]:
    """The cases of a file that vLLM does not start."""
    return [case for case in truth(name)["cases"] if "refused" in case["answer"]]


def capacity_of(
    configs: dict[str, Any], case: dict[str, Any], engine: str = "vllm@0.32"
) -> vllm.VllmCapacity:
    """What kvproof says to a case; `configs` by the case's name of its model."""
    return vllm_answers.capacity_of(configs[case["model"]], case, engine)


def name_of(case: dict[str, Any]) -> str:
    """The case as the name of a test."""
    flags = ",".join(f"{key}={value}" for key, value in case["flags"].items())
    return f"{case['model']}-{case['gpu']}-{flags}"


def check(own: vllm.VllmCapacity, real: dict[str, Any]) -> None:
    """Every figure equals the planner's, or its error does."""
    assert vllm_answers.figures(own) == vllm_answers.worded(real)
