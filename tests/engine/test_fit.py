"""What a capacity and a plan's rows show is derived, for every engine, and gives the figure."""

from __future__ import annotations

import re

import pytest

import kvproof
from kvproof.engine.fit import capacity_terms, fit_term
from kvproof.model.types import Model

_ENGINES = ("vllm", "vllm@0.6.4", "sglang", "tensorrt_llm", "llamacpp", "formula")
_MODELS = ("meta-llama/Llama-3.1-8B", "google/gemma-2-9b", "Qwen/Qwen3.5-9B")


@pytest.fixture(scope="module", params=_MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return kvproof.load_model(request.param)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm", "llamacpp", "formula"])
def test_every_figure_of_a_capacity_is_a_term(model: Model, engine: str) -> None:
    found = kvproof.capacity(model, kvproof.Deployment(engine, "H200"), kv_bytes=40 * 2**30)
    named = {term.name: term for term in capacity_terms(found)}
    assert named["tokens"].value == found.tokens
    assert named["concurrency"].value == pytest.approx(found.max_concurrency)
    assert named["blocks"].value == found.num_blocks
    assert all("own figure" not in term.formula and term.source for term in named.values())


@pytest.mark.parametrize("engine", _ENGINES)
def test_a_fit_is_its_formula(engine: str) -> None:
    """The numbers put in, divided, give the count."""
    llama = kvproof.load_model("meta-llama/Llama-3.1-8B")
    found = kvproof.capacity(llama, kvproof.Deployment(engine, "H200"), kv_bytes=40 * 2**30)
    for context in (100, 5000, 70_000):
        term = fit_term(found, context)
        numbers = re.sub(r"\(ceil.*?\)\)|[, ]*of a sequence.*|blocks|pages|cells|B|min|reserved",
                         "", term.formula.partition(" that may run")[0])  # fmt: skip
        usable, _, each = numbers.replace(",", "").replace("(", "").replace(")", "").partition("//")
        whole, _, kept = usable.partition("-")
        given = (int(whole) - int(kept or 0)) // int(each)
        limit = found.max_num_seqs
        assert term.value == (given if limit is None else min(given, limit))
        assert term.value == found.sequences(context)


def test_no_sequence_fits_beyond_what_may_run() -> None:
    llama = kvproof.load_model("meta-llama/Llama-3.1-8B")
    found = kvproof.capacity(llama, kvproof.Deployment("vllm", "H200"), kv_bytes=40 * 2**30)
    term = fit_term(found, 200_000, 131_072)
    assert (term.value, found.sequences(200_000) > 0) == (0, True)
    assert "131,072" in term.formula


def test_a_plan_explains_what_it_shows() -> None:
    llama = kvproof.load_model("meta-llama/Llama-3.1-8B")
    made = kvproof.plan(llama, kvproof.Deployment("vllm", "8xH100-80GB", tensor_parallel_size=4))
    assert {term.name for term in made.terms} == {"bytes per token", "crossover"}
    assert made.terms[0].value == made.bytes_per_token
    for row in made.rows:
        named = {term.name: term.value for term in row.terms}
        assert row.step is not None
        assert named["per sequence"] == row.bytes_per_sequence
        assert (named["fit"], named["fit on all"]) == (row.sequences, row.total_sequences)
        assert named["KV share"] == row.step.kv_share
        assert named["step"] == row.step.seconds
        assert named["tokens/s of all"] == pytest.approx(2 * row.step.tokens_per_second)
