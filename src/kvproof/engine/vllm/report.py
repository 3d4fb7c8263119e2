"""What vLLM says: its error sentences, and the derivation of a plan as terms."""

from __future__ import annotations

from kvproof.engine.vllm.groups import group_blocks, request_blocks
from kvproof.engine.vllm.plans import Plan
from kvproof.engine.vllm.specs import Reserve
from kvproof.engine.vllm.versions import Rules
from kvproof.terms import Term, Unit
from kvproof.units import GIB

_SEE = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
NOT_ONE_TYPE = "Failed to promote local KV cache specs to one unified type."
"""The error of a hybrid model with the hybrid manager switched off."""
_SOURCE = "vLLM {}, v1/core/kv_cache_utils.py"


def gib(size: int) -> str:
    """Bytes as vLLM prints them in GiB: two digits, trailing zeros dropped."""
    return str(round(size / GIB, 2))


def misfit(rules: Rules, length: int, needed: int, budget: int, estimate: int) -> str:
    """The error of a start whose longest request does not fit, with the engine's figures."""
    if not rules.v1:  # worker/worker.py, raise_if_cache_size_invalid
        return (
            f"The model's max seq len ({length}) is larger than the maximum number of tokens that "
            f"can be stored in KV cache ({estimate}). Try increasing `gpu_memory_utilization` or "
            "decreasing `max_model_len` when initializing the engine."
        )
    hint = (
        f"Based on the available memory, the estimated maximum model length is {estimate}. "
        if estimate > 0
        else ""
    )
    model = "model's" if rules.null_reserved else "models's"
    also = " (which also controls CPU memory on the CPU backend)" if rules.null_reserved else ""
    more = f" {_SEE}" if rules.null_reserved else ""
    return (
        f"To serve at least one request with the {model} max seq len ({length}), "
        f"({gib(needed)} GiB KV cache is needed, which is larger than the available KV cache "
        f"memory ({gib(budget)} GiB). {hint}Try increasing `gpu_memory_utilization`{also} or "
        f"decreasing `max_model_len` when initializing the engine.{more}"
    )


def no_memory(rules: Rules) -> str:
    """The error of a start that leaves nothing for the cache."""
    tail = (
        " (this flag also controls CPU memory reservation on the CPU backend, despite its name). "
        f"{_SEE}"
        if rules.null_reserved
        else "."
    )
    return (
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        f"initializing the engine{tail}"
    )


def plan_terms(
    plan: Plan, reserve: Reserve, available: int, blocks: int, concurrency: float, tokens: int
) -> tuple[Term, ...]:
    """How blocks, concurrency and tokens come about, each with its numbers put in."""
    source = _SOURCE.format(".".join(str(part) for part in plan.settings.rules.version))
    wide, per_request = plan.wide[0], request_blocks(plan.own, reserve)
    widest = max(plan.own, key=lambda group: group.page_bytes)
    length = reserve.max_model_len
    page = f"{widest.spec.page_bytes:,} B a page of {widest.spec.block_size} tokens"
    counts = " + ".join(_counts(plan, reserve))
    rows: tuple[tuple[str, float, Unit, str], ...] = (
        ("bytes per block", wide, "B",
         f"{len(widest.layers)} layers of the widest group x {page} = {wide:,} B"),
        ("blocks", blocks, "1", f"{available:,} B // {wide:,} B = {blocks:,}"),
        ("blocks of a request", per_request, "1",
         f"{counts} = {per_request:,} for {length:,} tokens"),
        ("concurrency", concurrency, "sequence",
         f"{blocks:,} / {per_request:,} = {concurrency:.2f}"),
        ("tokens", tokens, "token", _tokens(plan, tokens, concurrency, length)),
    )  # fmt: skip
    return tuple(
        Term(name=name, value=value, unit=unit, formula=formula, source=source)
        for name, value, unit, formula in rows
    )


def _counts(plan: Plan, reserve: Reserve) -> list[str]:
    counts: dict[tuple[str, int], int] = {}
    for group in plan.own:
        key = (group.spec.kind, group_blocks(group, reserve))
        counts[key] = counts.get(key, 0) + 1
    return [f"{n} {kind} x {each:,}" for (kind, each), n in counts.items()]


def _tokens(plan: Plan, tokens: int, concurrency: float, length: int) -> str:
    if plan.settings.rules.token_line == "blocks":
        return f"blocks // {len(plan.own)} groups x block size = {tokens:,}"
    return f"int({concurrency:.4f} x {length:,}) = {tokens:,}"
