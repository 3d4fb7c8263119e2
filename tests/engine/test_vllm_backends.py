"""Attention backends as vLLM 0.32 picked them, on a GPU of every compute capability.

`python scripts/oracle_vllm_backends.py --save tests/ground_truth/vllm_backends.json` asks for new
ones.
"""

from __future__ import annotations

import json

from scripts.oracle_vllm_backends import own_choice, same
from scripts.vllm_planner.pretend import GPUS
from tests.conftest import GROUND_TRUTH

from kvproof.engine.vllm.backend_table import ROWS

TRUTH = json.loads((GROUND_TRUTH / "vllm_backends.json").read_text())


def test_every_choice_is_the_engines() -> None:
    wrong = [(case, real, own) for case, real in TRUTH if not same(own := own_choice(case), real)]
    assert wrong == []


def test_the_cases_touch_every_gpu_and_backend() -> None:
    assert {case["gpu"] for case, _ in TRUTH} == set(GPUS)
    picked = {real["name"] for _, real in TRUTH if "refused" not in real}
    rare = {"TOKENSPEED_MLA", "FLASHINFER_MLA_SPARSE_SM90", "TRITON_FLASH_ATTN",
            "TRITON_FLASHINFER"}  # fmt: skip
    assert set(ROWS) - rare <= picked
