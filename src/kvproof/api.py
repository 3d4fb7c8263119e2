"""The public verbs: each is one call into the room that knows the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
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
    _check_model(model)
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
    if static_length is not None:
        _check_static(ref.name)
    answer: Cache = engine_module(ref.name).cache(model, request, ref.version)
    return answer


def _check_static(engine: str) -> None:
    from kvproof.engine.hooks import traits

    if not traits(engine).static_caches:
        raise UsageError(
            f"{engine} hands blocks out as tokens come: it reserves no static length",
            hint="leave static_length out, or ask engine transformers",
        )


def budget(model: Model, deployment: Deployment) -> Budget:
    """Memory of one GPU of the deployment, term by term, down to what is left for the cache."""
    from kvproof.engine.base import engine_module, served_model
    from kvproof.engine.mixed import smallest_budget

    _check_model(model)
    _check_deployment(deployment)
    model = served_model(model, deployment)
    answer: Budget = engine_module(deployment.engine.name).budget(model, deployment)
    return smallest_budget(model, deployment) if deployment.mixed else answer


def capacity(model: Model, deployment: Deployment, kv_bytes: int) -> Capacity:
    """What `kv_bytes` of cache memory per GPU hold under the engine's allocator."""
    from kvproof.engine.base import engine_module, served_model

    _check_model(model)
    _check_deployment(deployment)
    model = served_model(model, deployment)
    kv_bytes = _bytes(kv_bytes)
    answer: Capacity = engine_module(deployment.engine.name).capacity(model, deployment, kv_bytes)
    return answer


def plan(
    model: Model,
    deployment: Deployment,
    contexts: Sequence[int] = (),
    *,
    overheads: Overheads | None = None,
    media_tokens: int = 0,
) -> Plan:
    """Budget, capacity, sequences, step time and what limits, at each context length.

    `overheads` are what `kvproof check --learn` kept of this engine on this GPU; `media_tokens`
    what images, audio and video of each request take of its context.
    """
    from kvproof.planning import make_plan

    _check_model(model)
    _check_deployment(deployment)
    return make_plan(model, deployment, _contexts(contexts), overheads, media_tokens)


def _bytes(value: Any) -> int:
    """Whole bytes: an int, or a float that is one (4e10)."""
    whole = _whole(value)
    if isinstance(whole, float) and whole.is_integer():
        whole = int(whole)
    if not _is_count(whole):
        raise UsageError(f"kv_bytes is {str(value)[:40]!r}", hint="give whole bytes, e.g. 2**35")
    return int(whole)


def _contexts(values: Any) -> tuple[int, ...]:
    if not hasattr(values, "__iter__") or isinstance(values, str):
        raise UsageError(f"contexts is {str(values)[:40]!r}", hint="contexts=[4096, 32768]")
    chosen = tuple(_whole(value) for value in values)
    for value in chosen:
        if not _is_count(value) or not value:
            raise UsageError(f"a context is {str(value)[:40]!r}", hint="give whole tokens above 0")
    return chosen


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
    if lengths is not None and hasattr(lengths, "__len__") and len(lengths) > _MOST_SEQUENCES:
        raise UsageError(f"{len(lengths):,} lengths", hint=f"give at most {_MOST_SEQUENCES:,}")
    if lengths is not None and not hasattr(lengths, "__len__"):
        raise UsageError("lengths is no list", hint="lengths=[4096, 1024]")
    given = list(lengths) if lengths is not None else [tokens] * batch
    chosen = tuple(_whole(length) for length in given)
    for length in chosen:
        if not _is_count(length):
            raise UsageError(
                f"a length is {str(length)[:40]!r}", hint="give whole tokens, 0 or more"
            )
    return chosen


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _whole(value: Any) -> Any:
    """An int for numpy's integers and other whole numbers; anything else as it is."""
    try:
        return value if isinstance(value, bool | int) else index(value)
    except TypeError:
        return value


def _check_model(model: object) -> None:
    from kvproof.model.types import Model

    if not isinstance(model, Model):
        kind = type(model).__name__
        raise UsageError(f"a {kind} is no model", hint="kvproof.load_model(name_or_path) gives one")


def _check_deployment(deployment: object) -> None:
    from kvproof.engine.base import Deployment

    if not isinstance(deployment, Deployment):
        kind = type(deployment).__name__
        raise UsageError(f"a {kind} is no deployment", hint="kvproof.Deployment(engine=...)")
