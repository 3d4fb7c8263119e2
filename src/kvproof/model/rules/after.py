"""Rules that compute fields of a config once its class defaults are in place."""

from __future__ import annotations

from typing import Any

from kvproof.model.checks import check_count
from kvproof.model.classes import class_row
from kvproof.model.rules import Config, Rule, recurrent
from kvproof.model.rules.layer_types import FULL, INDEXED, SLIDING
from kvproof.model.rules.parts import chain


def _latent(c: Config) -> None:
    """Multi-head latent attention: the rotary width stands under head_dim."""
    c["qk_head_dim"] = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    c["head_dim"] = c["qk_rope_head_dim"]


def _even_heads(c: Config) -> None:
    c["head_dim"] = c["hidden_size"] // c["num_attention_heads"]


def _window_if_used(c: Config) -> None:
    if not c["use_sliding_window"]:
        c["sliding_window"] = None


def _dense_first(key: str, default: int) -> Rule:
    """mlp_layer_types: the first `key` layers are dense, the rest have experts."""

    def rule(c: Config) -> None:
        if c.get("mlp_layer_types") is None:
            first = c.get(key, default)
            freq = c.get("moe_layer_freq", 1)
            n = c["num_hidden_layers"]
            c["mlp_layer_types"] = [
                "sparse" if i >= first and _chosen(freq, i) else "dense" for i in range(n)
            ]

    return rule


def _chosen(freq: Any, i: int) -> bool:
    return bool(freq[i]) if isinstance(freq, list) else i % (freq or 1) == 0


def _all_sparse(c: Config) -> None:
    if c.get("mlp_layer_types") is None:
        c["mlp_layer_types"] = ["sparse"] * c["num_hidden_layers"]


def _indexer_types(c: Config) -> None:
    if c.get("indexer_types") is not None:
        return
    pattern, n = c.get("index_topk_pattern"), c["num_hidden_layers"]
    if pattern is not None:
        kinds = {"F": "full", "S": "shared"}
        c["indexer_types"] = [kinds[x] for x in pattern] if isinstance(pattern, str) else pattern
        return
    freq, offset = max(c.get("index_topk_freq", 1), 1), c.get("index_skip_topk_offset", 2)
    c["indexer_types"] = ["shared" if max(i - offset + 1, 0) % freq else "full" for i in range(n)]


def _hy_v4(c: Config) -> None:
    c["num_key_value_heads"] = c["num_attention_heads"]
    if c.get("indexer_types") is None:
        c["indexer_types"] = [
            "full" if i == 0 or i % 4 == 1 else "shared" for i in range(c["num_hidden_layers"])
        ]


def _gemma3(c: Config) -> None:
    if c.get("use_bidirectional_attention"):
        c["sliding_window"] = c["sliding_window"] // 2 + 1


def _gemma4(c: Config) -> None:
    if c.get("use_bidirectional_attention") == "all":
        c["sliding_window"] = c["sliding_window"] // 2 + 1
    if c["layer_types"]:
        c["layer_types"] = [*c["layer_types"][:-1], FULL]
    if c.get("per_layer_config") is None:
        wide: dict[str, Any] = {"head_dim": c.get("global_head_dim", 512)}
        heads = c.get("num_global_key_value_heads")
        if heads is not None and c.get("attention_k_eq_v", True):
            wide["num_key_value_heads"] = heads
        _override(c, FULL, wide)


def _override(c: Config, kind: str, values: dict[str, Any]) -> None:
    """Set `values` for the layers of `kind`, as transformers' per_layer_config does."""
    c["per_layer_config"] = {i: values for i, k in enumerate(c["layer_types"]) if k == kind}


_SWA = {
    "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1024,
    "kv_lora_rank": 1024, "head_dim": 256, "qk_nope_head_dim": 192, "v_head_dim": 128,
}  # fmt: skip


def _dots3_note(c: Config) -> None:
    if c.get("sliding_window") is None:
        c["sliding_window"] = c.get("sliding_window_size", 512)
    use = c.get("use_dsa", None if c.get("per_layer_config") is not None else True)
    if use is not None:
        old, new = (FULL, INDEXED) if use else (INDEXED, FULL)
        c["layer_types"] = [new if kind == old else kind for kind in c["layer_types"]]
    if c.get("moe_shared_expert_intermediate_size") is not None:
        c["shared_experts_intermediate_size"] = c["moe_shared_expert_intermediate_size"]
    if c.get("per_layer_config") is None:
        values = {key: c.get(f"swa_{key}", default) for key, default in _SWA.items()}
        rope = values["head_dim"] - values["qk_nope_head_dim"]
        values["qk_rope_head_dim"] = c.get("swa_qk_rope_head_dim", rope)
        _override(c, SLIDING, values)


def _dory_halve(c: Config) -> None:
    """dory's JSON may count attention and MLP blocks apart: two entries a layer."""
    given = c.get("layer_types")
    if given is not None and "mlp" in given:
        c["layer_types"] = given[::2]
        c["num_hidden_layers"] //= 2
        c["n_input_layers"] //= 2
        c["n_output_layers"] //= 2
        if c.get("n_recurrent_layers") is not None:
            c["n_recurrent_layers"] //= 2
    if c.get("n_recurrent_layers") is None:
        used = c["n_input_layers"] + c["n_output_layers"]
        c["n_recurrent_layers"] = c["num_hidden_layers"] - used


def _deepseek_v4(c: Config) -> None:
    n = c["num_hidden_layers"]
    rates = dict(c.get("compress_rates") or {
        "compressed_sparse_attention": 4, "heavily_compressed_attention": 128,
    })  # fmt: skip
    for short, kind in (("csa", "compressed_sparse"), ("hca", "heavily_compressed")):
        if c.get(f"compress_rate_{short}") is not None:
            rates[f"{kind}_attention"] = c[f"compress_rate_{short}"]
    c["compress_rates"] = rates
    c["layer_types"] = c["layer_types"][:n]
    if c.get("mlp_layer_types") is None:
        hashed = c.get("num_hash_layers", 3)
        c["mlp_layer_types"] = ["hash_moe"] * min(n, hashed) + ["moe"] * max(0, n - hashed)
    c["mlp_layer_types"] = c["mlp_layer_types"][:n]
    if c.get("partial_rotary_factor") is None:
        rope = c.get("qk_rope_head_dim")
        check_count("qk_rope_head_dim", rope, "deepseek_v4")
        c["partial_rotary_factor"] = 64 / 512 if rope is None else rope / c["head_dim"]
    c["qk_rope_head_dim"] = int(c["head_dim"] * c["partial_rotary_factor"])


def _decoder_layers(c: Config) -> None:
    if c.get("num_decoder_layers") is None:
        c["num_decoder_layers"] = c["num_layers"]
    parts = str(c["feed_forward_proj"]).split("-")
    c["dense_act_fn"], c["is_gated_act"] = parts[-1], parts[0] == "gated"


def _tied(c: Config) -> None:
    c["tie_word_embeddings"] = True


def _switch(c: Config) -> None:
    if c.get("num_decoder_layers") is None:
        c["num_decoder_layers"] = c["num_layers"]
    for side, layers in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        sparse = c[f"num_sparse_{side}_layers"]
        c[f"{side}_sparse_step"] = c[layers] // sparse if sparse > 0 else c[layers]


def _gemma3n(c: Config) -> None:
    if not isinstance(c["intermediate_size"], list):
        c["intermediate_size"] = [c["intermediate_size"]] * c["num_hidden_layers"]


def _llama4(c: Config) -> None:
    if c.get("moe_layers") is None:
        step = c["interleave_moe_layer_step"]
        c["moe_layers"] = list(range(step - 1, c["num_hidden_layers"], step))


def _no_rope_layers(c: Config) -> None:
    if not c.get("no_rope_layers"):
        step = c.get("no_rope_layer_interval", 4)
        c["no_rope_layers"] = [int((i + 1) % step != 0) for i in range(c["num_hidden_layers"])]


def _step3p5_before(c: Config) -> None:
    """step3p7: lists may be padded by the multi-token-prediction layers."""
    n, extra = c["num_hidden_layers"], c.get("num_nextn_predict_layers", 0) or 0
    for key in ("layer_types", "mlp_layer_types", "swiglu_limits", "swiglu_limits_shared"):
        value = c.get(key)
        if extra and isinstance(value, list) and len(value) == n + extra:
            c[key] = value[:n]


def _step3p5(c: Config) -> None:
    n = c["num_hidden_layers"]
    if c.get("mlp_layer_types") is None:
        given = c.get("moe_layers_enum")
        items = given.split(",") if isinstance(given, str) else given
        sparse = set(range(3, n)) if items is None else {int(i) for i in items if str(i).strip()}
        c["mlp_layer_types"] = ["sparse" if i in sparse else "dense" for i in range(n)]
    other = c.get("attention_other_setting") or {}
    if c.get("num_sliding_attention_heads") is None:
        heads = other.get("num_attention_heads", c["num_attention_heads"])
        c["num_sliding_attention_heads"] = heads
    if c.get("per_layer_config") is None:
        _override(c, SLIDING, {"num_attention_heads": c["num_sliding_attention_heads"]})


def _gpt_neo(c: Config) -> None:
    if c.get("attention_types") is None:
        c["attention_types"] = [[["global", "local"], 12]]
    layers = sum(len(names) * times for names, times in c["attention_types"])
    if layers > 10_000:
        raise ValueError("attention_types names too many layers")
    c["attention_layers"] = [k for names, times in c["attention_types"] for k in names * times]


def _mimo(c: Config) -> None:
    if c.get("sliding_window_size") is not None and c.get("sliding_window") != 0:
        c["sliding_window"] = c["sliding_window_size"] + 1


def _modernbert(c: Config) -> None:
    c["sliding_window"] = c["local_attention"] // 2 if c["local_attention"] else -1


def _own_source(c: Config) -> None:
    c["kv_source_layers"] = c.get("kv_source_layers") or list(range(c["num_hidden_layers"]))


def _indexed_full(c: Config) -> None:
    c["layer_types"] = [INDEXED if kind == FULL else kind for kind in c["layer_types"]]


def _qwen4_exp(c: Config) -> None:
    _indexed_full(c)
    c["ple_layer_ids"] = sorted(set(c.get("ple_layer_ids") or ()))
    c["number_of_conv_states"] = 3 if c["ple_layer_ids"] else 1
    if c.get("ple_embed_dim") is None:
        c["ple_embed_dim"] = c["hidden_size"]


def _section(key: str, name: str) -> Rule:
    """A section with a class of its own that is no nested config of a model."""

    def rule(c: Config) -> None:
        row = class_row(name)
        c[key] = {**(row.defaults if row else {}), **(c.get(key) or {})}

    return rule


def _minicpm3(c: Config) -> None:
    if c.get("v_head_dim") is None:
        c["v_head_dim"] = c["hidden_size"] // c["num_attention_heads"]


def _dbrx(c: Config) -> None:
    c["ffn_config"]["hidden_size"] = c["d_model"]
    c["num_key_value_heads"] = c["attn_config"]["kv_n_heads"]


def _set(key: str, other: str) -> Rule:
    """The field `key` when missing is the field `other`."""

    def rule(c: Config) -> None:
        if c.get(key) is None:
            c[key] = c[other]

    return rule


# Fields that the list of layer kinds needs, computed before it.
EARLY: dict[str, Rule] = {
    "dbrx": chain(
        _section("attn_config", "DbrxAttentionConfig"), _section("ffn_config", "DbrxFFNConfig")
    ),
    "dory": _dory_halve,
    "llama4_text": _no_rope_layers,
    "longcat_flash": lambda c: c.update(num_hidden_layers=2 * c["num_layers"]),
    "mistral_large4_text": chain(_no_rope_layers, _own_source),
    "mpt": _section("attn_config", "MptAttentionConfig"),
    "qwen2": _window_if_used,
    "qwen2_5_omni_talker": _window_if_used,
    "qwen2_5_omni_text": _window_if_used,
    "qwen2_5_vl_text": _window_if_used,
    "qwen2_vl_text": _window_if_used,
    "qwen3": _window_if_used,
    "qwen3_moe": _window_if_used,
    "qwen3_vl_moe_text": lambda c: c.update(sliding_window=None),
    "reformer": lambda c: c.update(num_hidden_layers=len(c["attn_layers"])),
    "smollm3": _no_rope_layers,
    "step3p5": _step3p5_before,
    "xlstm": recurrent.xlstm,
}

_DENSE_ONE = _dense_first("first_k_dense_replace", 1)
_DSA = chain(_latent, _dense_first("first_k_dense_replace", 3))

AFTER: dict[str, Rule] = {
    "axk1": chain(_latent, _DENSE_ONE),
    "axk2": chain(_latent, _DENSE_ONE),
    "bailing_hybrid": chain(recurrent.bailing, _dense_first("first_k_dense_replace", 1), _latent),
    "bamba": recurrent.auto_heads,
    "beam": _dense_first("-", 3),
    "blt_global_transformer": _even_heads,
    "blt_local_decoder": _even_heads,
    "blt_patcher": _even_heads,
    "cohere2": _even_heads,
    "cohere2_moe": _dense_first("first_k_dense_replace", 0),
    "cohere_compass_text": _even_heads,
    "csm": lambda c: c.update(tie_word_embeddings=c["tie_codebooks_embeddings"]),
    "dbrx": _dbrx,
    "deepseek_ocr2_text": _even_heads,
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "deepseek_v32": _DSA,
    "deepseek_v4": _deepseek_v4,
    "diffusion_gemma_text": _gemma4,
    "dots3_note_text": chain(_DENSE_ONE, _dots3_note),
    "ernie4_5_vl_moe_text": _dense_first("-", 1),
    "exaone_moe": _dense_first("first_k_dense_replace", 0),
    "falcon": chain(_set("num_kv_heads", "num_attention_heads"), _even_heads),
    "falcon_h1": recurrent.auto_heads,
    "falcon_mamba": recurrent.mamba1,
    "gemma3_text": _gemma3,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "glm4_moe_lite": chain(_latent, _dense_first("-", 1)),
    "glm5_next_text": chain(_indexed_full, _latent, _dense_first("-", 3), _indexer_types),
    "glm_moe_dsa": chain(_DSA, _indexer_types),
    "gpt_bigcode": lambda c: c.update(num_key_value_heads=1 if c["multi_query"] else c["n_head"]),
    "gpt_neo": _gpt_neo,
    "granitemoehybrid": recurrent.auto_heads,
    "hrm_text": recurrent.hrm_text,
    "hy_v3": _dense_first("-", 1),
    "hy_v4": chain(_latent, _dense_first("-", 1), _hy_v4),
    "hy_v4_vl_text": chain(_latent, _dense_first("-", 1), _hy_v4),
    "jamba": recurrent.auto_rank("mamba_dt_rank"),
    "jetmoe": lambda c: c.update(
        num_attention_heads=c["num_key_value_heads"] * c["num_experts_per_tok"]
    ),
    "kimi_linear": chain(_latent, _DENSE_ONE),
    "laguna": _dense_first("-", 1),
    "llama4_text": _llama4,
    "longcat_flash": lambda c: c.update(qk_head_dim=c["qk_nope_head_dim"] + c["qk_rope_head_dim"]),
    "longt5": chain(_decoder_layers, _tied),
    "mamba": recurrent.mamba1,
    "mamba2": recurrent.auto_rank("time_step_rank"),
    "mellum": _all_sparse,
    "mimo_v2_flash": chain(_dense_first("-", 1), _mimo),
    "minicpm3": chain(_latent, _minicpm3),
    "minimax_m3_vl_text": _all_sparse,
    "mistral4": chain(_latent, lambda c: c.update(head_dim=c["qk_head_dim"])),
    "mistral_large4_text": chain(_DSA, _indexer_types),
    "modernbert-decoder": _modernbert,
    "moonshine": chain(
        _set("encoder_num_key_value_heads", "encoder_num_attention_heads"),
        _set("decoder_num_key_value_heads", "decoder_num_attention_heads"),
    ),
    "mt5": chain(_decoder_layers, _tied),
    "muse_spark_text": _all_sparse,
    "nemotron_h": recurrent.nemotron_h,
    "olmo_hybrid": recurrent.olmo_hybrid,
    "opt": _set("word_embed_proj_dim", "hidden_size"),
    "pop2piano": chain(_decoder_layers, _tied),
    "qwen4_exp_text": _qwen4_exp,
    "recurrent_gemma": chain(_set("lru_width", "hidden_size"), _even_heads),
    "rwkv": _set("attention_hidden_size", "hidden_size"),
    "sarvam_mla": _latent,
    "step3p5": _step3p5,
    "switch_transformers": _switch,
    "t5": chain(_decoder_layers, _tied),
    "udop": chain(_decoder_layers, _tied),
    "umt5": chain(_decoder_layers, _tied),
    "unlimited_ocr_text": chain(_DENSE_ONE, _even_heads),
    "xlnet": lambda c: c.update(d_head=c.get("d_head") or c["d_model"] // c["n_head"]),
    "youtu": _latent,
    "zamba": recurrent.zamba,
    "zamba2": recurrent.zamba2,
}
