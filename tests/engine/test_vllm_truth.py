"""Every saved answer of vLLM 0.32's planner: what it planned figure by figure, what it refused.

wide: random deployments of every flag, drafts and towers too; tiny: small models of transformers'
types (those with one group of plain attention are left out); corners: chosen kinds.
`python scripts/oracle_vllm.py [--corner KIND] --save FILE` asks for new ones.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.vllm_truth import answered, capacity_of, check, name_of, refused, truth

from kvproof.errors import KvproofError

FILES = ("vllm_wide", "vllm_tiny", "vllm_corners")


@pytest.mark.parametrize(
    ("file", "case"),
    [pytest.param(file, case, id=name_of(case)) for file in FILES for case in answered(file)],
)
def test_every_figure_equals_the_planner(file: str, case: dict[str, Any]) -> None:
    check(capacity_of(truth(file)["configs"], case), case["answer"])


@pytest.mark.parametrize(
    ("file", "case"),
    [pytest.param(file, case, id=name_of(case)) for file in FILES for case in refused(file)],
)
def test_what_vllm_refuses_is_refused(file: str, case: dict[str, Any]) -> None:
    with pytest.raises(KvproofError):
        capacity_of(truth(file)["configs"], case)
