"""Random deployments of every flag, drafts and multimodal towers too, as the planner saw them.

`python scripts/oracle_vllm.py --save tests/ground_truth/vllm_wide.json` asks for new ones.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import GROUND_TRUTH
from tests.engine.vllm_truth import answered

import kvproof
from kvproof.engine import vllm

ANSWERED = answered("vllm_wide")


def test_the_cases_touch_what_deployments_differ_in() -> None:
    flags = {name for case in ANSWERED for name in case["flags"]}
    assert {"speculative_config", "pipeline_parallel_size", "kv_cache_dtype", "block_size",
            "num_gpu_blocks_override", "enable_lora", "mamba_ssm_cache_dtype"} <= flags  # fmt: skip
    assert sum("draft" in case for case in ANSWERED) >= 5
    assert len({case["model"] for case in ANSWERED}) >= 60


GIVEN_GPUS = {"H100": "H100-80GB", "B200": "B200", "A100": "A100-80GB"}


def test_every_given_planning_case(data_dir: Path) -> None:
    """The cases handed out with the project, models of full size by name."""
    known = json.loads((GROUND_TRUTH / "vllm_cases.json").read_text())["configs"]
    asked, wrong = 0, []
    for row in json.loads((data_dir / "vllm" / "planning_cases.json").read_text()):
        case, real = row["case"], row["result"]
        config, gpu = known.get(case["model"].split("/")[-1]), GIVEN_GPUS.get(case["device"])
        if config is None or gpu is None:
            continue
        flags = dict(case["engine_args"], usage_context=case.get("usage_context", "api_server"))
        deployment = kvproof.Deployment("vllm@0.32", gpu, **flags)
        own = vllm.capacity(kvproof.load_model(config), deployment, int(case["available_memory"]))
        asked += 1
        figures = (own.num_blocks, own.bytes_per_block, own.tokens, own.max_concurrency,
                   own.max_model_len, own.blocks_per_sequence, len(own.groups))  # fmt: skip
        names = ("num_blocks", "bytes_per_block", "kv_cache_size_tokens", "max_concurrency",
                 "max_model_len", "blocks_per_max_len_request", "num_groups")  # fmt: skip
        if "error" in real:
            same = own.error is not None and own.error in real["error"]
        else:
            same = figures == tuple(real[name] for name in names)
        if not same:
            wrong.append((row["id"], figures))
    assert wrong == []
    assert asked >= 40
