"""Which kind each layer is, where the config leaves it to its class.

`LAYER_TYPES[class]` gives the list from a config whose `layer_types` is missing. Patterns that
many classes share are data: sliding layers broken by a full one every n-th layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Config = dict[str, Any]
Make = Callable[[Config], list[str]]
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
INDEXED = "indexed_attention"


def by_index(test: Callable[[int, Config], bool], yes: str, no: str) -> Make:
    """`yes` for layers whose index passes `test`, `no` for the others."""
    return lambda c: [yes if test(i, c) else no for i in range(c["num_hidden_layers"])]


def _every(period: int, yes: str = FULL, no: str = SLIDING) -> Make:
    """`yes` for each `period`-th layer, counted from one."""
    return by_index(lambda i, c: (i + 1) % period == 0, yes, no)


def _every_key(key: str, default: int | None, yes: str = FULL, no: str = SLIDING) -> Make:
    """The same with the period read from the config under `key`."""

    def make(c: Config) -> list[str]:
        period: int = c[key] if default is None else c.get(key, default)
        return [no if (i + 1) % period else yes for i in range(c["num_hidden_layers"])]

    return make


def _first(period: int, key: str | None = None) -> Make:
    """Full attention at layers 0, n, 2n, ..."""
    return by_index(lambda i, c: i % (c.get(key, period) if key else period) == 0, FULL, SLIDING)


def _all(kind: str) -> Make:
    return lambda c: [kind] * c["num_hidden_layers"]


def _from_the_end(c: Config) -> list[str]:
    n = c["num_hidden_layers"]
    return [FULL if (n - 1 - i) % 4 == 0 else SLIDING for i in range(n)]


def _beam(c: Config) -> list[str]:
    out = _every(6)(c)
    out[-1:] = [FULL]
    return out


def _cohere2_moe(c: Config) -> list[str]:
    dense = c.get("first_k_dense_replace", 0)
    head, rest = c["prefix_dense_sliding_window_pattern"], c["sliding_window_pattern"]
    n = c["num_hidden_layers"]
    first = [SLIDING if (i + 1) % head else FULL for i in range(dense)]
    return first + [SLIDING if (i + 1) % rest else FULL for i in range(n - dense)]


def _upper_window(c: Config) -> list[str]:
    """qwen2, qwen3, dots1: the layers from max_window_layers on slide."""
    slides = c.get("sliding_window") is not None
    first = c["max_window_layers"]
    return [SLIDING if slides and i >= first else FULL for i in range(c["num_hidden_layers"])]


def _qwen2_moe(c: Config) -> list[str]:
    last = c["max_window_layers"] if c["use_sliding_window"] else 0
    return [SLIDING if (i + 1) % 2 and i < last else FULL for i in range(c["num_hidden_layers"])]


def _smollm3(c: Config) -> list[str]:
    slides = c["use_sliding_window"] and c["sliding_window"] is not None
    return [SLIDING if slides and not rope else FULL for rope in c["no_rope_layers"]]


def _exaone(c: Config) -> list[str]:
    n, period = c["num_hidden_layers"], c["sliding_window_pattern"]
    if isinstance(period, str):  # EXAONE 4.0 as published: "LLLG"
        return [SLIDING if period[i % len(period)] == "L" else FULL for i in range(n)]
    if c["sliding_window"] is None or not period:
        return [FULL] * n
    return [SLIDING if (i + 1) % period else FULL for i in range(n)]


def _llama4(c: Config) -> list[str]:
    chunked = c["attention_chunk_size"] is not None
    return ["chunked_attention" if rope and chunked else FULL for rope in c["no_rope_layers"]]


def _deepseek_v4(c: Config) -> list[str]:
    heavy, sparse = "heavily_compressed_attention", "compressed_sparse_attention"
    n = c["num_hidden_layers"]
    ratios = c.get("compress_ratios")
    if ratios is not None:
        return [{0: SLIDING, 4: sparse, 128: heavy}[r] for r in ratios]
    return [heavy] * min(n, 2) + [sparse if i % 2 else heavy for i in range(max(n - 2, 0))]


def _dots3_note(c: Config) -> list[str]:
    full = FULL if c.get("use_dsa") is False else INDEXED
    slide = c.get("use_sliding_window", True)
    n = c["num_hidden_layers"]
    return [full if not slide or i < 2 or i % 4 == 1 else SLIDING for i in range(n)]


def _inkling(c: Config) -> list[str]:
    local = c.get("local_layer_ids")
    ids = {i for i in range(c["num_hidden_layers"]) if (i + 1) % 6} if local is None else set(local)
    return ["hybrid_sliding" if i in ids else "hybrid" for i in range(c["num_hidden_layers"])]


def _kimi_linear(c: Config) -> list[str]:
    given = c.get("linear_attn_config") or {}
    n = c["num_hidden_layers"]
    if "full_attn_layers" not in given or "kda_layers" not in given:
        return [FULL if i and i % 4 == 0 else LINEAR for i in range(n)]
    full, linear = set(given["full_attn_layers"]), set(given["kda_layers"])  # counted from one
    if full & linear or full | linear != set(range(1, n + 1)):
        raise ValueError("linear_attn_config does not name every layer once")
    return [FULL if i + 1 in full else LINEAR for i in range(n)]


def _lara(c: Config) -> list[str]:
    pattern = [LINEAR, SLIDING, LINEAR, FULL, SLIDING]
    return [pattern[i % 5] for i in range(c["num_hidden_layers"])]


def _lfm2(c: Config) -> list[str]:
    n = c["num_hidden_layers"]
    full = range(n) if c.get("full_attn_idxs") is None else c["full_attn_idxs"]
    return [FULL if i in full else "conv" for i in range(n)]


def _lfm3(c: Config) -> list[str]:
    kinds = {2: FULL, 0: SLIDING}
    n = c["num_hidden_layers"]
    return [kinds.get(i % 4, "conv") if i else "conv" for i in range(n)]


def _olmo_hybrid(c: Config) -> list[str]:
    out = [FULL if i % 4 == 3 else LINEAR for i in range(c["num_hidden_layers"])]
    if FULL not in out:
        out[-1:] = [FULL]
    return out


def _minimax(c: Config) -> list[str]:
    if isinstance(c.get("attn_type_list"), list):  # as published: 1 is softmax attention
        return [FULL if kind else LINEAR for kind in c["attn_type_list"]]
    return by_index(lambda i, _: (i + 1) % 2 == 1, FULL, LINEAR)(c)


def _minimax_m3(c: Config) -> list[str]:
    given = c.get("sparse_attention_config") or {}
    if "sparse_attention_freq" in given:
        return ["minimax_m3_sparse" if f else FULL for f in given["sparse_attention_freq"]]
    return [FULL] * c["num_hidden_layers"]


def _nemotron_h(c: Config) -> list[str]:
    kinds = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
    pattern = c.get("hybrid_override_pattern")
    if not pattern:
        return [LINEAR, "moe", FULL, "mlp"]
    return [kinds[letter] for letter in pattern]


def _sliding_when_windowed(kind: str) -> Make:
    return lambda c: [FULL if c["sliding_window"] is None else kind] * c["num_hidden_layers"]


def _flint(i: int, c: Config) -> bool:
    return i < 2 or i % 4 == 1 or i == c["num_hidden_layers"] - 1


def _bamba(i: int, c: Config) -> bool:
    return i in (c["attn_layer_indices"] or ())


def _jamba(i: int, c: Config) -> bool:
    return bool(i % c["attn_layer_period"] == c["attn_layer_offset"])


def _recurrent_gemma(c: Config) -> list[str]:
    blocks = c["block_types"]
    n = c["num_hidden_layers"]
    return [LINEAR if blocks[i % len(blocks)] == "recurrent" else SLIDING for i in range(n)]


_GEMMA3 = _every_key("sliding_window_pattern", 6)
_QWEN_HYBRID = _every_key("full_attention_interval", 4, FULL, LINEAR)

LAYER_TYPES: dict[str, Make] = {
    "afmoe": _every_key("global_attn_every_n_layers", None),
    "axk2": _all(INDEXED),
    "bailing_hybrid": _every_key("layer_group_size", None, FULL, LINEAR),
    "bamba": by_index(_bamba, FULL, LINEAR),
    "beam": _beam,
    "cohere2": _every_key("sliding_window_pattern", 4),
    "cohere2_moe": _cohere2_moe,
    "cohere_compass_text": _all(FULL),
    "cwm": _first(4),
    "deepseek_v32": _all(INDEXED),
    "deepseek_v4": _deepseek_v4,
    "diffusion_gemma_text": _every(6),
    "dory": _every(4),
    "dots1": _upper_window,
    "dots3_note_text": _dots3_note,
    "exaone4": _exaone,
    "exaone_moe": _exaone,
    "falcon_h1": _all("hybrid"),
    "falcon_mamba": _all(LINEAR),
    "flint": by_index(_flint, FULL, SLIDING),
    "gemma2": _every(2),
    "gemma3_text": _GEMMA3,
    "gemma3n_text": _every(5),
    "gemma4_text": _every(6),
    "gemma4_unified_text": _every(6),
    "glm5_next_text": by_index(lambda i, c: i % 4 != 3, LINEAR, INDEXED),
    "glm_moe_dsa": _all(INDEXED),
    "gpt_oss": _every(2),
    "granite_swa": _first(4),
    "granitemoe_swa": _first(4),
    "granitemoehybrid": _all(LINEAR),
    "hy_v4": _all(INDEXED),
    "hy_v4_vl_text": _all(INDEXED),
    "inkling_text": _inkling,
    "inkling2_text": _every(6, "hybrid", "hybrid_sliding"),
    "inkling2_loop_text": _every(6, "hybrid", "hybrid_sliding"),
    "jamba": by_index(_jamba, FULL, LINEAR),
    "kimi_linear": _kimi_linear,
    "kolibri1": _every(5),
    "laguna": _all(FULL),
    "lara_mini": _lara,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "lfm3": _lfm3,
    "llama4_text": _llama4,
    "mamba": _all(LINEAR),
    "mamba2": _all(LINEAR),
    "mellum": _all(FULL),
    "mimo_v2_flash": by_index(lambda i, c: i == 0 or (i + 1) % 6 == 0, FULL, SLIDING),
    "minimax": _minimax,
    "minimax_m3_vl_text": _minimax_m3,
    "ministral": _sliding_when_windowed(SLIDING),
    "mistral_large4_text": _all(INDEXED),
    "modernbert-decoder": _first(3, "global_attn_every_n_layers"),
    "muse_glimmer_text": _from_the_end,
    "muse_spark_text": _from_the_end,
    "nemotron_h": _nemotron_h,
    "olmo3": _every(4),
    "olmo_hybrid": _olmo_hybrid,
    "qwen2": _upper_window,
    "qwen2_5_omni_text": _upper_window,
    "qwen2_5_omni_talker": _upper_window,
    "qwen2_5_vl_text": _upper_window,
    "qwen2_moe": _qwen2_moe,
    "qwen2_vl_text": _upper_window,
    "qwen3": _upper_window,
    "qwen3_5_moe_text": _QWEN_HYBRID,
    "qwen3_5_text": _QWEN_HYBRID,
    "qwen3_next": _QWEN_HYBRID,
    "qwen3_omni_moe_talker_code_predictor": _upper_window,
    "qwen4_exp_text": _every_key("full_attention_interval", 4, INDEXED, LINEAR),
    "recurrent_gemma": _recurrent_gemma,
    "smollm3": _smollm3,
    "step3p5": _all(FULL),
    "t5_gemma_module": _every(2),
    "t5gemma2_decoder": _GEMMA3,
    "t5gemma2_text": _GEMMA3,
    "unlimited_ocr_text": _sliding_when_windowed("reference_sliding_attention"),
    "vaultgemma": _every(2),
    "zaya": _all("hybrid"),
}
LEGACY = {
    "mamba": LINEAR,
    "attention": FULL,
    "deepseek_sparse_attention": INDEXED,
    "qwen_sparse_attention": INDEXED,
}
