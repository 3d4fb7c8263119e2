"""How each architecture's graph is put together: data/graphs.json, read once."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Literal

import msgspec


class Routing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an architecture routes tokens to experts; `normed` None: as its metadata says.

    `leading`: it honours the count of dense layers in front; `interleaved`: every so many layers;
    `gating_key`: it reads the gating from the metadata. `scales` and `merges`: it takes scales of
    experts and merged gates where they exist. `shared_by`: what the width of shared experts
    follows. `early`: the router reads the layer's input. `narrows`: experts may work
    in a narrower space.
    """

    gating: Literal["softmax", "sigmoid", "late"] = "softmax"
    normed: bool | None = True
    scale: bool = True
    biased: bool = False
    weighs_first: bool = False
    form: str = "gated"
    shared: Literal["", "add", "gated", "before"] = ""
    shared_form: str = ""
    shared_by: Literal["key", "count", "both", "dense", "expert"] = "key"
    leading: bool = False
    interleaved: bool = False
    gating_key: bool = False
    scales: bool = False
    merges: bool = False
    early: bool = False
    narrows: Literal["", "plain", "normed"] = ""
    as_wide_as_dense: bool = False
    beside: Literal["", "arctic", "grove", "gemma"] = ""


Rope = Literal[
    "all", "none", "sliding", "sliding or alone", "sliding or leading", "three of four",
    "last three of four",
]  # fmt: skip


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an architecture's layers are put together; what is not said is as in Llama.

    `norm` "eps": by which epsilon the metadata has. `residual` "own": attention and feed-forward
    beside each other with a norm each; letters: with one norm, and the order of the sums. `single`:
    a layer is a mixer, attention or a feed-forward; `partial`: layers may lack attention, or a
    feed-forward. `both`: mixer and attention beside each other. `stream_first`: which sums name the
    stream first. `values_norm`: values are normed too. `layer_inputs`: every layer has a token
    table of its own. `joined_gates`: one weight makes both gates of a delta rule. `low_gates`:
    which of its gates have a low rank. `direct_queries`: latent attention without a rank of
    queries. `rows`: where the rows of tokens without outputs are dropped. `gate`: the attention's
    output times a gate for every number or head. `second_norm`: attention has a norm of its own.
    `inner_norms`: norms stand before the last weights of attention and feed-forward. `stacks`: its
    first layers add vectors of a picture. `swaps_norms`: its metadata can move norms behind.
    `streams`: residual streams beside each other. `index_rotates`: an indexer's keys are turned by
    a matrix. `checkpoints`: layers read a mix of earlier streams. `closed_logits`: so many logits
    are closed in a copy. `wkv`: which RWKV it is. `scans_heads`: a scan has one step for every
    head. `adds_normed`: sums take the normed stream.
    """

    norm: Literal["rms", "mean", "eps"] = "rms"
    queries_norm: Literal["none", "head", "row", "head if any", "row if said"] = "none"
    fused: Literal["no", "yes", "in files"] = "no"
    fused_hidden: int = 0
    second_norm: bool = False
    gate: Literal["", "all", "heads", "queries"] = ""
    rope: Rope = "all"
    rope_when_layers: int = 0
    temperature: bool = False
    residual: Literal["serial", "own", "fas", "afs", "fsa"] = "serial"
    norms_before: bool = True
    norms_after: bool = False
    rows: Literal["last layer", "before norm", "after norm"] = "last layer"
    rows_after_norm: bool = False
    feed_forward: Literal["gated", "plain", "fused", "product", "closed"] = "gated"
    half_wide: bool = False
    clamps: bool = False
    position_parts: int = 1
    sectioned: bool = False
    learned_positions: bool = False
    embedding_norm: bool = False
    scaled_rows: bool = False
    skips: bool = False
    stacks: bool = False
    inner_norms: bool = False
    values_norm: bool = False
    single: bool = False
    partial: bool = False
    both: bool = False
    stream_first: Literal["", "both", "attention", "feed-forward"] = ""
    joined_gates: bool = False
    low_gates: Literal["no", "decay", "both"] = "no"
    direct_queries: bool = False
    mixer_norms: Literal["no", "yes", "in files"] = "yes"
    layer_inputs: bool = False
    altup: bool = False
    compressed: bool = False
    blockwise: bool = False
    checkpoints: bool = False
    streams: Literal["", "mixed", "independent", "gated"] = ""
    index_rotates: bool = True
    wkv: int = 0
    adds_normed: bool = False
    scans_heads: bool = False
    swaps_norms: bool = False
    closed_logits: int = 0
    routing: Routing | None = None


@functools.cache
def _recipes() -> dict[str, Recipe]:
    file = resources.files("kvproof.engine.llamacpp").joinpath("data/graphs.json")
    table = msgspec.json.decode(file.read_bytes())
    return msgspec.convert(table["architectures"], type=dict[str, Recipe])


def recipe_of(arch: str | None) -> Recipe | None:
    """The recipe of an architecture, None where its graph is not known."""
    return _recipes().get(arch or "")
