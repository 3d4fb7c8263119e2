"""A plan uses what check --learn kept, and says so."""

from __future__ import annotations

import kvproof
from kvproof.engine.overheads import Overheads


def test_learned_overheads_move_the_budget() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    deployment = kvproof.Deployment(engine="vllm", gpu="H100-80GB")
    learned = Overheads(
        engine="vllm", gpu="H100-80GB", starts=3, models=2, kv_bytes=-(2**30), spread=2**28
    )
    fresh = kvproof.plan(model, deployment, [4096])
    plan = kvproof.plan(model, deployment, [4096], overheads=learned)
    assert plan.budget.kv_bytes == fresh.budget.kv_bytes - 2**30
    assert sum(t.value for t in plan.budget.terms) == sum(t.value for t in fresh.budget.terms)
    assert "learned overhead" in [t.name for t in plan.budget.terms]
    assert plan.rows[0].sequences == fresh.rows[0].sequences - 2
