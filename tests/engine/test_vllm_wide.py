"""Random deployments of every flag, drafts and multimodal towers too, as the planner saw them.

`python scripts/oracle_vllm.py --save tests/ground_truth/vllm_wide.json` asks for new ones.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.conftest import GROUND_TRUTH
from tests.engine.vllm_truth import capacity_of, check, name_of

from kvproof.errors import KvproofError

TRUTH = json.loads((GROUND_TRUTH / "vllm_wide.json").read_text())
ANSWERED = [case for case in TRUTH["cases"] if "refused" not in case["answer"]]
REFUSED = [case for case in TRUTH["cases"] if "refused" in case["answer"]]


@pytest.mark.parametrize("case", ANSWERED, ids=name_of)
def test_every_figure_equals_the_planner(case: dict[str, Any]) -> None:
    check(capacity_of(TRUTH["configs"], case), case["answer"])


@pytest.mark.parametrize("case", REFUSED, ids=name_of)
def test_what_vllm_refuses_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(KvproofError):
        capacity_of(TRUTH["configs"], case)


def test_the_cases_touch_what_deployments_differ_in() -> None:
    flags = {name for case in ANSWERED for name in case["flags"]}
    assert {"speculative_config", "pipeline_parallel_size", "kv_cache_dtype", "block_size",
            "num_gpu_blocks_override", "enable_lora", "mamba_ssm_cache_dtype"} <= flags  # fmt: skip
    assert sum("draft" in case for case in ANSWERED) >= 5
    assert len({case["model"] for case in ANSWERED}) >= 60
