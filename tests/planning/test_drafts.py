"""What a draft adds to a plan: its cache in a sequence's bytes, its weights in the budget."""

from __future__ import annotations

import pytest

import kvproof
from kvproof.kinds import ConvSlot
from kvproof.surfaces.show import slot_table

LLAMA = kvproof.load_model("meta-llama/Llama-3.1-8B")
EAGLE = {"method": "eagle", "model": "no/such-draft", "num_speculative_tokens": 3}


def _plan(
    model: kvproof.Model, engine: str = "vllm@0.32", gpu: str = "8xH200", **flags: object
) -> kvproof.Plan:
    return kvproof.plan(model, kvproof.Deployment(engine, gpu, **flags), contexts=[4096])


def test_a_head_adds_a_layer_like_the_targets_to_every_sequence() -> None:
    plain, drafted = _plan(LLAMA), _plan(LLAMA, speculative_config=EAGLE)
    layer = 2 * 8 * 128 * 2
    assert plain.draft is None
    assert plain.rows[0].draft_bytes == 0
    assert drafted.draft is not None
    assert drafted.draft.bytes_per_token == layer
    assert drafted.rows[0].draft_bytes == 4096 * layer
    more = drafted.rows[0].bytes_per_sequence - plain.rows[0].bytes_per_sequence
    assert more == 4096 * layer
    assert drafted.bytes_per_token - plain.bytes_per_token == layer


def test_a_draft_model_has_its_own_layers_and_its_own_weights() -> None:
    model = kvproof.load_model("Qwen/Qwen3-32B")
    small = kvproof.load_model("Qwen/Qwen3-0.6B")
    drafted = _plan(
        model,
        gpu="H200",
        speculative_config={"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 4},
    )
    assert drafted.draft is not None
    assert drafted.draft.slots == small.slots
    weights = next(t.value for t in drafted.budget.terms if t.name == "draft model")
    assert weights == pytest.approx(2 * small.parameters, rel=0.01)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm@0.32", {"tensor_parallel_size": 8,
                       "speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}),
        ("sglang@0.5.18", {"tp_size": 8, "speculative_algorithm": "EAGLE",
                           "speculative_num_steps": 3}),
        ("llamacpp", {"spec_type": "draft-mtp"}),
    ],
)  # fmt: skip
def test_a_layer_for_further_tokens_is_a_row_of_its_own(
    engine: str, flags: dict[str, object]
) -> None:
    model = kvproof.load_model("deepseek-ai/DeepSeek-V3")
    found = _plan(model, engine, **flags)
    assert found.draft is not None
    assert len(found.draft.slots) == model.predicting_layers == 1
    assert "1 x latent, draft" in slot_table(model, found.draft.types, found.draft)


def test_an_asked_type_of_a_drafts_cache_is_its_own() -> None:
    found = _plan(
        LLAMA, "sglang@0.5.18", speculative_algorithm="EAGLE", speculative_num_steps=3,
        speculative_draft_kv_cache_dtype="fp8_e4m3",
    )  # fmt: skip
    assert found.draft is not None
    assert found.draft.types.k.name == "fp8_e4m3"


@pytest.mark.parametrize("engine", ["vllm@0.32", "sglang", "tensorrt_llm", "llamacpp", "ollama"])
def test_engines_keep_the_inputs_before_the_current_one(engine: str) -> None:
    model = kvproof.load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    found = kvproof.Deployment(engine, "H200")
    from kvproof.engine.base import served_model

    kernels = [s.kernel for s in model.slots if isinstance(s, ConvSlot)]
    kept = [s.columns for s in served_model(model, found).slots if isinstance(s, ConvSlot)]
    assert kept == [kernel - 1 for kernel in kernels] != []


def test_drafted_tokens_are_kept_beside_a_convolutions_inputs() -> None:
    from kvproof.engine.base import served_model

    model = kvproof.load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    config = {"method": "mtp", "num_speculative_tokens": 2}
    served = served_model(model, kvproof.Deployment("vllm@0.32", "H200", speculative_config=config))
    assert {s.columns for s in served.slots if isinstance(s, ConvSlot)} == {4 - 1 + 2}


def test_layers_without_a_cache_share_with_nobody() -> None:
    model = kvproof.load_model("nvidia/Nemotron-H-8B-Base-8K")
    from kvproof.engine.formula import types_of

    text = slot_table(model, types_of(model, None))
    assert "24 x none" in text
    assert "shared" not in text


def test_a_feed_forward_width_for_each_layer_is_read() -> None:
    model = kvproof.load_model("google/gemma-3n-E4B-it")
    assert isinstance(model.text_config["intermediate_size"], list)
    assert model.number("intermediate_size") == max(model.text_config["intermediate_size"])
    assert _plan(model, gpu="H100-80GB").rows[0].sequences > 0


def test_states_are_named_with_the_type_they_are_kept_in() -> None:
    from kvproof.engine.formula import types_of

    model = kvproof.load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    text = slot_table(model, types_of(model, "fp8"))
    assert "8,192 channels x 4 bf16" in text
    assert "gdn state 32 x 128 x 128 f32" in text


def test_the_formulas_states_are_transformers_own() -> None:
    from kvproof.model import catalog

    for name in catalog.entries():
        model = kvproof.load_model(name, offline=True)
        at = [i for i, slot in enumerate(model.slots) if slot.kind in ("conv", "recurrent")]
        if not at:
            continue
        plain = kvproof.cache(model, 4096, engine="formula").slots
        own = kvproof.cache(model, 4096, engine="transformers").slots
        assert [plain[i] for i in at] == [own[i] for i in at], name
