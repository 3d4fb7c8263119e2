"""Activations and experts' workspaces of vLLM explain themselves: their formulas give them."""

from __future__ import annotations

import math
import re

import pytest

import kvproof

_MODELS = (
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen3.5-9B",
    "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "Qwen/Qwen3-30B-A3B",
)


def given(formula: str) -> float:
    """What the products and sums of a formula give; brackets hold sums."""
    sums = re.sub(r"\(([\d,]+) rows\)", "", formula.partition(": ")[2].rpartition(" = ")[0])
    while inner := re.search(r"\(([^()]*)\)", sums):
        sums = sums.replace(inner.group(0), f"{_sum(inner.group(1)):.0f}")
    return _sum(sums)


def _sum(text: str) -> float:
    products = [part.split(" x ") for part in text.split(" + ")]
    return sum(math.prod(_number(factor) for factor in product) for product in products)


def _number(text: str) -> float:
    found = re.search(r"\d[\d,.]*", text)
    assert found is not None, text
    return float(found.group(0).replace(",", ""))


@pytest.mark.parametrize("tokens", [8192, 65_536])
@pytest.mark.parametrize("release", ["0.9.2", "0.11", "0.32"])
@pytest.mark.parametrize("name", _MODELS)
def test_formulas_give_their_terms(name: str, release: str, tokens: int) -> None:
    model = kvproof.load_model(name)
    made = kvproof.Deployment(f"vllm@{release}", "4xH200", tensor_parallel_size=4,
                              max_num_batched_tokens=tokens)  # fmt: skip
    terms = [term for term in kvproof.budget(model, made).terms
             if term.name in ("activations", "experts' workspace")]  # fmt: skip
    assert terms[0].name == "activations"
    for term in terms:
        assert given(term.formula) == pytest.approx(term.value, abs=2), term.formula
        assert term.low is not None


def test_slots_of_adapters_show_their_numbers() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    made = kvproof.Deployment("vllm@0.32", "H200", enable_lora=True, max_loras=2, max_lora_rank=32)
    lora = next(t for t in kvproof.budget(model, made).terms if t.name == "LoRA slots")
    found = re.match(r"(\d+) slots of rank (\d+) x ([\d,]+) widths .* x (\d) B =", lora.formula)
    assert found is not None
    assert math.prod(int(part.replace(",", "")) for part in found.groups()) == lora.value


def test_what_sparse_attention_gathers_is_its_formula() -> None:
    model = kvproof.load_model("deepseek-ai/DeepSeek-V3.2")
    made = kvproof.Deployment("vllm@0.11", "8xH200", tensor_parallel_size=8)
    named = {term.name: term for term in kvproof.budget(model, made).terms}
    term = named["sparse attention's workspace"]
    whole, _, less = term.formula.partition(": ")[2].rpartition(" = ")[0].partition(" - ")
    assert _sum(whole) - (_number(less) if less else 0) == term.value
