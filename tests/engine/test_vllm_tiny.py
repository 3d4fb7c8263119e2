"""Small models of transformers' types, as the planner of vLLM 0.32 saw them or refused them.

Those with one group of plain attention are left out: the wide cases have many.
"""

from __future__ import annotations

import pytest
from tests.engine.vllm_truth import capacity_of, refused, truth

from kvproof.engine.vllm.fallback import table
from kvproof.errors import KvproofError

TRUTH = truth("vllm_tiny")
REFUSED = refused("vllm_tiny")


def test_every_class_that_is_refused_was_asked() -> None:
    asked = {TRUTH["configs"][case["model"]]["architectures"][0] for case in REFUSED}
    known = table()
    names = frozenset().union(*known.refused.values(), known.one_stage)
    assert names <= asked


def test_a_release_before_the_one_asked_is_not_judged() -> None:
    case = next(c for c in REFUSED if c["model"] == "bart" and "position_ids" in str(c["answer"]))
    with pytest.raises(KvproofError, match="position_ids"):
        capacity_of(TRUTH["configs"], case)
    assert capacity_of(TRUTH["configs"], case, "vllm@0.30").num_blocks > 0
