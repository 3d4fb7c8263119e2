"""The experts of a model's graph: how many, how wide, and how a token chooses among them."""

from __future__ import annotations

from kvproof.engine.llamacpp.facts import fact
from kvproof.engine.llamacpp.graph.recipes import Routing
from kvproof.engine.llamacpp.graph.settings import described_only, flag, number
from kvproof.engine.llamacpp.graph.shape import Experts
from kvproof.model.types import Model

_GATING = {1: "softmax", 2: "sigmoid", 3: "late"}


def experts_of(model: Model, routing: Routing | None) -> Experts:
    """The experts of a model whose architecture routes so; none where it has none."""
    if routing is None or not model.experts:
        return Experts()
    width = 0
    if not routing.as_wide_as_dense:
        width = fact(model, "expert_feed_forward_length", "moe_intermediate_size")
    width = width or fact(model, "feed_forward_length", "intermediate_size")
    asked = fact(model, "expert_gating_func") if routing.gating_key else 0
    gating = _GATING.get(asked, routing.gating)
    normed = routing.normed
    if normed is None:
        normed = flag(model, "expert_weights_norm", "norm_topk_prob")
    scale = number(model, "expert_weights_scale", "routed_scaling_factor")
    return Experts(
        count=model.experts, used=model.experts_per_token, width=width,
        shared_width=_shared_width(model, routing, width), gating=gating, normed=bool(normed),
        scaled=routing.scale and scale not in (0.0, 1.0), biased=routing.biased,
        groups=fact(model, "expert_group_count", "n_group"),
        groups_used=fact(model, "expert_group_used_count", "topk_group"),
        weighs_first=routing.weighs_first, form=routing.form,
        merged=routing.merges and described_only(model),
        latent=_latent_width(model, routing),
        grouped_count=model.experts // max(fact(model, "experts_per_group"), 1),
        grouped_width=fact(model, "expert_chunk_feed_forward_length")
        or fact(model, "attention.key_length", "head_dim"),
    )  # fmt: skip


def _latent_width(model: Model, routing: Routing) -> int:
    """Width of the narrower space that experts work in, 0 for the stream's own."""
    if routing.narrows == "normed":
        return fact(model, "expert_latent_length", "routed_expert_hidden_size")
    if routing.narrows == "plain":
        width = fact(model, "moe_latent_size", "moe_latent_size")
        return width or (model.hidden_size if described_only(model) else 0)
    return 0


def _shared_width(model: Model, routing: Routing, width: int) -> int:
    """Width of the experts that every token passes through, as one feed-forward."""
    if not routing.shared:
        return 0
    own = fact(model, "expert_shared_feed_forward_length", "shared_expert_intermediate_size",
               "moe_shared_expert_intermediate_size", "shared_intermediate_size")  # fmt: skip
    count = fact(model, "expert_shared_count", "n_shared_experts", "num_shared_experts",
                 "moe_num_shared_experts", "num_shared_expert")  # fmt: skip
    if routing.shared_by == "dense":
        return fact(model, "feed_forward_length", "intermediate_size")
    if routing.shared_by == "expert":
        return width
    if routing.shared_by == "count":
        return width * count
    if routing.shared_by == "both":
        return (own or width) * count
    return own or width * count
