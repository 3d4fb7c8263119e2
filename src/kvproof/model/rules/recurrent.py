"""Rules of classes with recurrent states: widths, ranks and lists that they compute."""

from __future__ import annotations

from math import ceil

from kvproof.model.rules import Config, Rule
from kvproof.model.rules.layer_types import LEGACY, LINEAR


def hrm_text(c: Config) -> None:
    """Each cycle runs the stack again, each time with a cache of its own."""
    if c.get("num_layers_per_stack") is None:
        c["num_layers_per_stack"] = c["num_hidden_layers"]
        c["num_hidden_layers"] *= c["H_cycles"] * (c["L_cycles"] + 1)


def mamba1(c: Config) -> None:
    """Mamba 1: the inner width and the rank of the step projection."""
    c["intermediate_size"] = c["expand"] * c["hidden_size"]
    auto_rank("time_step_rank")(c)


def auto_rank(key: str) -> Rule:
    """A rank given as "auto" is a sixteenth of the hidden size."""

    def rule(c: Config) -> None:
        if c.get(key) == "auto":
            c[key] = ceil(c["hidden_size"] / 16)

    return rule


def auto_heads(c: Config) -> None:
    """A head width given as "auto" shares the inner width out."""
    inner = c.get("mamba_d_ssm") or c["mamba_expand"] * c["hidden_size"]
    if c.get("mamba_d_head") == "auto":
        c["mamba_d_head"] = inner // c["mamba_n_heads"]


def zamba(c: Config) -> None:
    """Zamba: shared attention twice as wide, in "hybrid" layers at a period."""
    c["attention_hidden_size"] = c.get("attention_hidden_size") or 2 * c["hidden_size"]
    heads = c["num_attention_heads"]
    c["attention_head_dim"] = c.get("attention_head_dim") or 2 * c["hidden_size"] // heads
    auto_rank("mamba_dt_rank")(c)
    if c.get("layers_block_type") is None:
        period, offset = c["attn_layer_period"], c["attn_layer_offset"]
        rest = range(c["num_hidden_layers"] - 3)
        tail = ["hybrid" if i % period == offset else LINEAR for i in rest]
        c["layers_block_type"] = [LINEAR, LINEAR, "hybrid", *tail]
    c["layers_block_type"] = [LEGACY.get(kind, kind) for kind in c["layers_block_type"]]


def zamba2(c: Config) -> None:
    """Zamba 2: the same with a fixed list of hybrid layers."""
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    c["intermediate_size"] = c.get("intermediate_size") or 4 * hidden
    c["attention_hidden_size"] = 2 * hidden
    c["attention_head_dim"] = 2 * hidden // heads
    c["mamba_headdim"] = int(c["mamba_expand"] * hidden) // c["n_mamba_heads"]
    c["kv_channels"], c["num_query_groups"] = hidden // heads, heads
    if c.get("layers_block_type") is None:
        runs = [6, 5, 5, 5, 5, 5, 5, 4, 3]  # linear layers before each hybrid one
        kinds = [kind for run in runs for kind in [*[LINEAR] * run, "hybrid"]]
        c["layers_block_type"] = [*kinds, LINEAR, LINEAR]
    c["layers_block_type"] = [LEGACY.get(kind, kind) for kind in c["layers_block_type"]]
    types = c["layers_block_type"]
    c["hybrid_layer_ids"] = [i for i, kind in enumerate(types) if kind == "hybrid"]


def xlstm(c: Config) -> None:
    """xLSTM: two names for width and depth; key and value widths rounded up to 64."""
    hidden = c["hidden_size"] if c.get("hidden_size") is not None else c.get("embedding_dim")
    c["hidden_size"] = hidden
    c["embedding_dim"] = c["embedding_dim"] if c.get("embedding_dim") is not None else hidden
    layers = c["num_hidden_layers"]
    c["num_hidden_layers"] = layers if layers is not None else c["num_blocks"]
    c["num_blocks"] = c["num_blocks"] if c.get("num_blocks") is not None else layers
    for part in ("qk", "v"):
        c[f"{part}_dim"] = -(-int(c["hidden_size"] * c[f"{part}_dim_factor"]) // 64) * 64
        c[f"{part}_head_dim"] = c[f"{part}_dim"] // c["num_heads"]


def olmo_hybrid(c: Config) -> None:
    """OLMo hybrid: linear heads and widths that follow the attention."""
    for key in ("linear_num_key_heads", "linear_num_value_heads"):
        c[key] = c["num_attention_heads"] if c.get(key) is None else c[key]
    if c.get("linear_key_head_dim") is None:
        c["linear_key_head_dim"] = int(0.75 * c["hidden_size"] / c["linear_num_key_heads"])
    if c.get("linear_value_head_dim") is None:
        c["linear_value_head_dim"] = 2 * c["linear_key_head_dim"]


def bailing(c: Config) -> None:
    """Bailing 2.5: linear attention as wide as the heads before MLA renames them."""
    c["linear_head_dim"], c["linear_num_heads"] = c["head_dim"], c["num_attention_heads"]
    c["linear_conv_kernel_dim"] = c["short_conv_kernel_size"]


def nemotron_h(c: Config) -> None:
    """Nemotron-H: the list of kinds decides how many layers there are."""
    c["layers_block_type"] = c["layer_types"]
    c["num_hidden_layers"] = len(c["layer_types"])
