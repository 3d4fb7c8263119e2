"""The context lengths that are answered for where nobody asks for some."""

from __future__ import annotations

from kvproof.engine import hooks
from kvproof.engine.base import Capacity, Deployment
from kvproof.engine.common_flags import limit_name
from kvproof.errors import UsageError
from kvproof.model.types import Model

DEFAULT_CONTEXTS: tuple[int, ...] = (4096, 8192, 32768, 131072)


def contexts_up_to(limit: int | None, media: int = 0) -> tuple[int, ...]:
    """The default contexts that a limit allows; the limit itself where it allows none.

    Those that `media` tokens of each request would fill are left out; UsageError where they fill
    the longest.
    """
    allowed = DEFAULT_CONTEXTS
    if limit is not None:
        allowed = tuple(n for n in DEFAULT_CONTEXTS if n <= limit) or (limit,)
    check_room(allowed[-1:], media)
    return tuple(n for n in allowed if n > media)


def check_room(contexts: tuple[int, ...], media: int) -> None:
    """Raise UsageError for contexts that the media of one request fill."""
    short = ", ".join(f"{n:,}" for n in contexts if n <= media)
    if media and short:
        raise UsageError(
            f"the media of one request take {media:,} tokens, which leaves no room for text in a "
            f"context of {short}",
            hint="raise the context, or send fewer or smaller media",
        )


def left_out(model: Model, deployment: Deployment, limit: int | None) -> str | None:
    """That default contexts are left out which the model, but not the engine, would take."""
    trained = hooks.reach(model, deployment)
    left = [n for n in DEFAULT_CONTEXTS if limit is not None and limit < n <= (trained or 0)]
    if not left or limit is None:
        return None
    name = limit_name(deployment.engine.name, "max_model_len")
    return f"longer contexts are left out: {name} is {limit:,}, the model reaches {trained:,}"


def startable_length(capacity: Capacity) -> int | None:
    """The max_model_len at which an engine starts that checks a request of it; None: as it is."""
    return None if capacity.error is None else capacity.estimated_max_model_len


def past(contexts: tuple[int, ...], limit: int | None) -> str:
    """The context lengths beyond `limit`, as people read them."""
    return ", ".join(f"{n:,}" for n in contexts if limit is not None and n > limit)
