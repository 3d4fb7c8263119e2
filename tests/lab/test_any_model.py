"""Any causal model of transformers over PagedCache: its own cache's tokens, the plan's bytes."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import DynamicCache  # noqa: E402

from kvproof.api import load_model  # noqa: E402
from kvproof.errors import UsageError  # noqa: E402
from kvproof.lab.elements import cache_types  # noqa: E402
from kvproof.lab.paged_cache import PagedCache  # noqa: E402
from kvproof.lab.paged_layers import PagedLayer  # noqa: E402
from kvproof.lab.pool.blocks import PoolFullError  # noqa: E402
from kvproof.lab.pool.slots import is_state  # noqa: E402

pytestmark = [
    pytest.mark.lab,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

BASE = {"vocab_size": 131, "hidden_size": 64, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
           "shared_expert_intermediate_size": 32}  # fmt: skip
MODELS = {
    "llama": {},
    "mistral": {"sliding_window": 9},
    "gemma3_text": {"head_dim": 32, "sliding_window": 9, "tie_word_embeddings": False,
                    "layer_types": ["sliding_attention", "full_attention"] * 2},
    "llama4_text": {"head_dim": 16, "attention_chunk_size": 9, "intermediate_size_mlp": 96,
                    "num_local_experts": 2, "num_experts_per_tok": 1,
                    "layer_types": ["chunked_attention", "full_attention"] * 2},
    "falcon": {},
    "deepseek_v3": {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "n_group": 1,
                    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
                    "n_routed_experts": 4, "num_experts_per_tok": 2, "topk_group": 1,
                    "moe_intermediate_size": 32, "first_k_dense_replace": 1},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "jamba": {"num_experts": 2, "attn_layer_period": 4, "attn_layer_offset": 2,
              "mamba_d_state": 8},
    "qwen3_next": {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                   "linear_key_head_dim": 16, "linear_value_head_dim": 16, **EXPERTS},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16,
                  "mamba_n_groups": 1, "mamba_chunk_size": 16},
    "nemotron_h": {"hybrid_override_pattern": "M*-M", "head_dim": 16, "mamba_num_heads": 4,
                   "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1, "chunk_size": 16},
}  # fmt: skip
RECURRENT = ("mamba", "mamba2", "lfm2", "jamba", "qwen3_next", "falcon_h1", "nemotron_h")
TOKENS = 32


def model_of(name):
    """A tiny model with weights large enough that its greedy tokens vary.

    Tied and scaled, Gemma's embeddings would make it repeat the last token for ever.
    """
    torch.manual_seed(0)
    heads = {} if name in ("mamba", "mamba2") else HEADS
    config = transformers.AutoConfig.for_model(name, **{**BASE, **heads, **MODELS[name]})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def tokens_of(model, rows=2, cache=None, beams=1, count=16, ids=None):
    if ids is None:
        ids = torch.randint(5, 131, (rows, 13), generator=torch.Generator().manual_seed(1))
    given = {} if cache is None else {"past_key_values": cache}
    return model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
        num_beams=beams, eos_token_id=None, pad_token_id=0, **given,
    ).tolist()  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_same_tokens_and_the_plans_bytes(name):
    model = model_of(name)
    want, cache = tokens_of(model), PagedCache(model.config, tokens=TOKENS)
    assert tokens_of(model, cache=cache) == want
    assert len(set(want[0][-16:])) > 5, "the tokens collapsed and prove little"
    cache.pool.check_integrity()
    types = cache_types()
    slots = load_model(json.loads(model.config.to_json_string())).slots
    planned = sum(TOKENS * s.entry_bytes(types) + s.fixed_bytes(types) for s in slots)
    assert cache.pool.allocated_bytes == 2 * planned


@pytest.mark.parametrize("name", RECURRENT)
def test_states_are_as_large_as_the_models_own(name):
    model = model_of(name)
    own = DynamicCache(config=model.config)
    tokens_of(model, cache=own)
    theirs = sum(
        t.nbytes for layer in own.layers
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {}))
        for t in states.values() if t is not None
    )  # fmt: skip
    cache = PagedCache(model.config, tokens=TOKENS)
    tokens_of(model, cache=cache)
    ours = sum(t.nbytes for g in cache.pool.groups if g.is_state for t in g.tensors())
    assert ours == theirs > 0


@pytest.mark.parametrize("name", ["gemma3_text", "jamba", "falcon_h1"])
def test_beams_share_entries_and_copy_states(name):
    model = model_of(name)
    cache = PagedCache(model.config, tokens=TOKENS)
    want = tokens_of(model, rows=1, beams=3)
    assert tokens_of(model, rows=1, beams=3, cache=cache) == want
    cache.pool.check_integrity()


def test_a_reset_cache_starts_anew():
    model = model_of("jamba")
    cache = PagedCache(model.config, tokens=TOKENS)
    first = tokens_of(model, cache=cache)
    cache.reset()
    assert all(s.length == 0 for s in cache.sequences)
    assert not cache.has_previous_state()
    assert tokens_of(model, cache=cache) == first


@pytest.mark.parametrize("name", MODELS)
def test_swapped_rows_come_back_whole(name):
    """In the middle of a generation: all blocks are released, and overwritten meanwhile."""
    model = model_of(name)
    own, cache = DynamicCache(config=model.config), PagedCache(model.config, tokens=2 * TOKENS)
    begun = torch.tensor(tokens_of(model, cache=own, count=8))
    want = tokens_of(model, cache=own, count=8, ids=begun)
    tokens_of(model, cache=cache, count=8)
    groups = cache.pool.groups
    held = sum(g.books.held * t[0].nbytes for g in groups for t in g.tensors())
    assert cache.swap_out() == held > 0
    assert all(group.books.held == 0 for group in groups)
    with pytest.raises(UsageError, match="swapped out"):
        tokens_of(model, cache=cache, count=8, ids=begun)
    for tensor in [t for group in groups for t in group.tensors()]:
        tensor.fill_(7)
    cache.swap_in()
    cache.pool.check_integrity()
    assert tokens_of(model, cache=cache, count=8, ids=begun) == want


@pytest.mark.parametrize("name", ["llama", "mistral", "jamba"])
def test_decode_steps_read_in_place(name, monkeypatch):
    """Only the prefill gathers: once for keys and once for values of each attention layer."""
    gathered = []
    plain = PagedLayer._gather
    monkeypatch.setattr(PagedLayer, "_gather", lambda *a: gathered.append(1) or plain(*a))
    model = model_of(name)
    cache = PagedCache(model.config, tokens=TOKENS)
    tokens_of(model, cache=cache)
    assert len(gathered) == 2 * sum(not is_state(slot) for slot in cache.slots)


def test_heads_that_transformers_repeats(monkeypatch):
    """Falcon 40B's: eight heads are cached of two that have weights."""
    more = {"new_decoder_architecture": True, "num_kv_heads": 2, "num_attention_heads": 8,
            "multi_query": False, "bias": False}  # fmt: skip
    monkeypatch.setitem(MODELS, "falcon", more)
    model = model_of("falcon")
    cache = PagedCache(model.config, tokens=TOKENS)
    assert tokens_of(model, cache=cache) == tokens_of(model)
    assert {slot.kv_heads for slot in cache.slots} == {8}


def test_padding_is_not_read_in_place():
    """A mask that hides entries goes to torch's attention, with the same tokens."""
    model = model_of("llama")
    ids = torch.randint(5, 131, (2, 13), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    rest = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False,
            "eos_token_id": None, "pad_token_id": 0}  # fmt: skip
    cache = PagedCache(model.config, tokens=TOKENS)
    want = model.generate(ids, **rest)
    assert torch.equal(model.generate(ids, past_key_values=cache, **rest), want)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text", "deepseek_v3"])
def test_rejected_guesses_are_taken_back(name):
    """Of windows too, whose blocks go only with the next pass."""
    model = model_of(name)
    ids = torch.randint(5, 131, (1, 13), generator=torch.Generator().manual_seed(1))
    ids = torch.cat((ids, ids, ids[:, :5]), 1)
    rest = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 24, "do_sample": False,
            "eos_token_id": None, "pad_token_id": 0}  # fmt: skip
    cache, cropped = PagedCache(model.config, tokens=64), []
    crop = cache.crop
    cache.crop = lambda count: (cropped.append(-count), crop(count))[1]
    guessed = model.generate(ids, past_key_values=cache, prompt_lookup_num_tokens=3, **rest)
    assert torch.equal(guessed, model.generate(ids, **rest))
    assert sum(cropped) > 0
    cache.pool.check_integrity()


def test_a_full_cache_is_one_clear_error():
    model = model_of("llama")
    with pytest.raises(PoolFullError, match="of 32 tokens a row has no room") as caught:
        tokens_of(model, cache=PagedCache(model.config, tokens=32), count=30)
    assert "tokens=" in caught.value.hint


def test_kinds_that_it_does_not_run_are_one_clear_error():
    config = transformers.T5Config(vocab_size=131, d_model=64, num_layers=2, num_heads=4)
    with pytest.raises(UsageError, match="PagedCache does not run cross slots"):
        PagedCache(config)


def test_a_state_of_another_shape_is_refused():
    """The plan read one kernel, the model has another: told at once, not stored wrongly."""
    cache = PagedCache(model_of("lfm2").config, tokens=TOKENS)
    other = transformers.Lfm2Config(**BASE, **HEADS, layer_types=["conv"] * 3 + ["full_attention"],
                                    conv_L_cache=5)  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(other)
    with pytest.raises(UsageError, match="the plan says"):
        model(torch.tensor([[1, 2, 3]]), cache=cache)
