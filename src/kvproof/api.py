"""The public verbs: each is one call into the room that knows the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from kvproof.errors import UsageError

_MOST_SEQUENCES = 1_000_000

if TYPE_CHECKING:
    from kvproof.engine.base import Budget, Cache, Capacity, Deployment
    from kvproof.engine.overheads import Overheads
    from kvproof.model.types import Model
    from kvproof.planning import Plan


def load_model(source: str | PathLike[str] | Mapping[str, Any], *, offline: bool = False) -> Model:
    """The model that `source` describes.

    `source`: a catalogue name, a path (folder, config.json, .gguf), a hub id, or a parsed
    config.json (GGUF metadata when it has "general.architecture"). Raises ModelError for a
    config that can't be read or lacks a needed fact, HubError when the hub gives none.
    """
    from kvproof.model.load import load

    if not isinstance(source, str | PathLike | Mapping):
        kind = type(source).__name__
        raise UsageError(
            f"a model can't be a {kind}", hint="give a name, a path or a parsed config"
        )
    return load(source, offline=offline)


def cache(  # noqa: PLR0913 - the contract's own signature
    model: Model,
    tokens: int | None = None,
    *,
    engine: str = "transformers",
    dtype: str | None = None,
    k_dtype: str | None = None,
    v_dtype: str | None = None,
    batch: int = 1,
    lengths: Sequence[int] | None = None,
    static_length: int | None = None,
    encoder_tokens: int | None = None,
    decode_steps: int = 0,
) -> Cache:
    """Bytes that sequences hold in `engine`'s cache, in all, per slot and per layer.

    `batch` sequences of `tokens`, or one for each of `lengths`. `dtype` None is the config's
    own type, else bf16; `k_dtype` and `v_dtype` override it apart. `decode_steps` of the tokens'
    successors have been decoded one by one after the prefill of `tokens`.
    """
    from kvproof.engine.base import CacheRequest, engine_module, parse_engine

    ref = parse_engine(engine)
    _check_variant(static_length, encoder_tokens, decode_steps)
    request = CacheRequest(
        lengths=_lengths(tokens, batch, lengths),
        dtype=dtype,
        k_dtype=k_dtype,
        v_dtype=v_dtype,
        static_length=static_length,
        encoder_tokens=encoder_tokens,
        decode_steps=decode_steps,
    )
    answer: Cache = engine_module(ref.name).cache(model, request, ref.version)
    return answer


def budget(model: Model, deployment: Deployment) -> Budget:
    """Memory of one GPU of the deployment, term by term, down to what is left for the cache."""
    from kvproof.engine.base import engine_module
    from kvproof.engine.mixed import smallest_budget

    answer: Budget = engine_module(deployment.engine.name).budget(model, deployment)
    return smallest_budget(model, deployment) if deployment.mixed else answer


def capacity(model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
    """What `kv_bytes` of cache memory per GPU hold under the engine's allocator."""
    from kvproof.engine.base import engine_module

    answer: Capacity = engine_module(deployment.engine.name).capacity(model, deployment, kv_bytes)
    return answer


def plan(
    model: Model,
    deployment: Deployment,
    contexts: Sequence[int] = (),
    *,
    overheads: Overheads | None = None,
) -> Plan:
    """Budget, capacity, sequences, step time and what limits, at each context length.

    `overheads` are what `kvproof check --learn` kept of this engine on this GPU.
    """
    from kvproof.planning import make_plan

    return make_plan(model, deployment, tuple(contexts), overheads)


def _check_variant(static: int | None, encoder: int | None, steps: int) -> None:
    given = {"static_length": static, "encoder_tokens": encoder, "decode_steps": steps}
    for name, value in given.items():
        if value is not None and not _is_count(value):
            raise UsageError(f"{name} is {str(value)[:40]!r}", hint="give whole tokens, 0 or more")


def _lengths(tokens: int | None, batch: int, lengths: Sequence[int] | None) -> tuple[int, ...]:
    if (tokens is None) == (lengths is None):
        raise UsageError("give either tokens or lengths", hint="cache(model, tokens=4096)")
    if not _is_count(batch) or not 1 <= batch <= _MOST_SEQUENCES:
        raise UsageError(f"batch is {str(batch)[:40]}", hint=f"1 to {_MOST_SEQUENCES:,} sequences")
    if lengths is not None and len(lengths) > _MOST_SEQUENCES:
        raise UsageError(f"{len(lengths):,} lengths", hint=f"give at most {_MOST_SEQUENCES:,}")
    chosen = tuple(lengths) if lengths is not None else (tokens,) * batch
    for length in chosen:
        if not _is_count(length):
            raise UsageError(
                f"a length is {str(length)[:40]!r}", hint="give whole tokens, 0 or more"
            )
    return chosen  # type: ignore[return-value]  # every one is an int now


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
