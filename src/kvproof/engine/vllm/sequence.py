"""Bytes of sequences under vLLM without a deployment: one rank, the default block size."""

from __future__ import annotations

from kvproof.engine.base import Cache, CacheRequest, Deployment
from kvproof.engine.vllm.flags import takes_kv_dtype
from kvproof.engine.vllm.planner import make_plan
from kvproof.engine.vllm.plans import Plan
from kvproof.engine.vllm.specs import Spec, blocks_held
from kvproof.model.types import Model

_TORCH = {
    "bf16": "bfloat16", "f16": "float16", "fp8_e4m3": "fp8", "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8_e5m2",
}  # fmt: skip


def sequence_cache(model: Model, request: CacheRequest, version: str | None) -> Cache:
    """Bytes of the tokens held, by slot and layer, and of the whole blocks they take."""
    name = f"vllm@{version}" if version else "vllm"
    asked = request.dtype or "auto"
    deployment = Deployment(name, **_typed(_TORCH.get(asked, asked), version))
    plan = make_plan(model, deployment)
    lengths = [length + request.decode_steps for length in request.lengths]
    by_layer = [0] * model.layers
    for group in plan.groups:
        for layer in group.layers:
            if layer.index < model.layers:
                by_layer[layer.index] += sum(_logical(layer.spec, n) for n in lengths)
    return Cache(
        bytes=sum(by_layer),
        allocated_bytes=sum(_allocated(plan, n) for n in lengths),
        slots=_by_slot(model, by_layer),
        layers=tuple(by_layer),
    )


def _typed(dtype: str, version: str | None) -> dict[str, str]:
    """The flag for the cache's type; a release without one for 16 bits follows the model's."""
    plain = dtype in ("bfloat16", "float16") and not takes_kv_dtype(dtype, version)
    return {"dtype" if plain else "kv_cache_dtype": dtype}


def _logical(spec: Spec, tokens: int) -> int:
    """Bytes of the positions kept, without the rest of their last block."""
    if tokens <= 0:
        return 0
    if spec.kind == "state":
        return spec.state_bytes
    kept = tokens
    if spec.window and spec.kind in ("sliding", "sliding_latent"):
        kept = min(tokens, spec.window)
    elif spec.kind == "chunked":
        kept = (tokens - 1) % spec.chunk + 1
    elif spec.kind == "ring":
        kept = min(tokens, spec.block_size)
    return kept // spec.tokens_per_row * spec.row_bytes


def _allocated(plan: Plan, tokens: int) -> int:
    blocks = sum(
        max(blocks_held(spec, tokens, plan.reserve) for spec in {x.spec for x in group.layers})
        for group in plan.groups
    )
    return blocks * max(plan.wide)


def _by_slot(model: Model, by_layer: list[int]) -> tuple[int, ...]:
    """A layer's bytes on its first slot that keeps anything; the layer is vLLM's own unit."""
    out, seen = [], set()
    for slot in model.slots:
        first = slot.layer not in seen and slot.kind != "shared"
        seen.add(slot.layer) if slot.kind != "shared" else None
        out.append(by_layer[slot.layer] if first else 0)
    return tuple(out)
