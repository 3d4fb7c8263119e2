"""A plan uses what check --learn kept, and says so."""

from __future__ import annotations

import kvproof
from kvproof.engine.overheads import Overheads
from kvproof.surfaces.show import budget_text, rows_text


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


def test_a_learned_gain_is_shown_so_that_the_shown_terms_add_up() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    deployment = kvproof.Deployment(engine="vllm", gpu="H100-80GB")
    less = Overheads(engine="vllm", gpu="H100-80GB", starts=1, models=1, kv_bytes=3 * 2**30)
    text = budget_text(kvproof.plan(model, deployment, [4096], overheads=less))
    row = next(line for line in text.splitlines() if "learned overhead" in line)
    assert "-3.00 GiB" in row
    assert "missing" not in text


def test_rows_of_one_copy_of_the_attention_say_so() -> None:
    model = kvproof.load_model("deepseek-ai/DeepSeek-V3")
    split = {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}
    plan = kvproof.plan(model, kvproof.Deployment("sglang", "8xH200", **split), [4096])
    text = rows_text(plan)
    assert "each of 8 copies of the attention" in text
    assert f"{plan.rows[0].sequences} ({8 * plan.rows[0].sequences})" in text


def test_the_caches_term_is_bounded_as_the_budget_is() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    deployment = kvproof.Deployment(engine="vllm", gpu="H100-80GB")
    less = Overheads(
        engine="vllm", gpu="H100-80GB", starts=3, models=2, kv_bytes=-(2**30), spread=2**27
    )
    for learned in (None, less):
        budget = kvproof.plan(model, deployment, [4096], overheads=learned).budget
        term = next(term for term in budget.terms if term.name == "KV cache")
        assert (term.value, term.low, term.high) == (budget.kv_bytes, *budget.interval)
        assert not term.exact
