"""Rules that only some engines have, asked without naming an engine.

An engine answers one with a function of that name in its module (`own_rule`), and says what sets it
apart as `TRAITS`. What holds for the others stands here.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvproof.engine.base import Budget, Capacity, Deployment, Offload, engine_module, own_rule
from kvproof.engine.release import release_number
from kvproof.kinds import element_type
from kvproof.model.overrides import trained_length
from kvproof.model.types import Model


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What sets an engine apart from the others where no rule is asked for."""

    refuses_lengths: bool = True
    """A request longer than max_model_len is refused."""
    ideal: bool = False
    """Steps go by the plain roofline, not by what kernels were measured to reach."""
    static_caches: bool = False
    """A cache can be reserved at a length that is given, whatever is in it."""
    says_types: bool = False
    """Its notes say in which type a checkpoint of 32 bits runs."""
    unlike_ranks: Literal["memory", "tokens", "devices"] = "memory"
    """Ranks on different GPUs: the one that leaves the least memory decides; the one that holds the
    fewest tokens, where each counts its own stage's layers; or layers are placed on each device by
    its memory, and budgets name every device."""
    reliefs: tuple[tuple[str, str], ...] = ()
    """Terms of the budget that flags make smaller, each with the words that name the flag."""
    newest: str | None = None
    """The newest release whose rules were read, as far as it is written (1.3: all of 1.3); later
    ones are planned by it. None where the engine says so by itself, or has no releases."""


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """Sets of ranks that each hold the whole attention, and deal the routed experts out among them.

    Of one replica's ranks: `attention` sets with a cache and requests of their own, times `dealing`
    sets that hold the same cache and deal a step's sequences out, times `repeating` sets that hold
    the same cache and run every sequence alike. `outside`: replicas, this one among them, whose
    ranks share the same experts. `started`: replicas that one command starts.
    """

    attention: int = 1
    dealing: int = 1
    repeating: int = 1
    outside: int = 1
    started: int = 1

    @property
    def sets(self) -> int:
        """Sets among the ranks of one replica."""
        return self.attention * self.dealing * self.repeating


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes and operations a second that flags give in place of the GPU's."""

    bandwidth: float | None = None
    flops: float | None = None


def traits(engine: str) -> Traits:
    """What sets `engine` apart."""
    found: Traits = getattr(engine_module(engine), "TRAITS", Traits())
    return found


def length_limit(deployment: Deployment, capacity: Capacity) -> int | None:
    """The length beyond which requests are refused; None where none is."""
    bounded = traits(deployment.engine.name).refuses_lengths
    return capacity.max_model_len if bounded else None


def copies(deployment: Deployment) -> Copies:
    """The sets of ranks that each hold the whole attention."""
    own = own_rule(deployment, "copies_for")
    found: Copies = Copies() if own is None else own(deployment)
    return found


def speed(deployment: Deployment) -> Speed:
    """The speed that flags give."""
    own = own_rule(deployment, "speed_for")
    found: Speed = Speed() if own is None else own(deployment)
    return found


def offload(model: Model, deployment: Deployment) -> Offload | None:
    """What a decode step reads from host memory; None where it reads nothing there."""
    own = own_rule(deployment, "offload_for")
    found: Offload | None = None if own is None else own(model, deployment)
    return found


def warnings_of(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """What the engine does to the model that a reader should know."""
    own = own_rule(deployment, "warnings_for")
    said = (*_beyond_known(deployment), *(() if own is None else own(model, deployment)))
    if element_type(model.dtype).name != "f32" or traits(deployment.engine.name).says_types:
        return said
    return (*said, "the config asks for 32-bit weights; engines usually cast them to 16 bits")


def _beyond_known(deployment: Deployment) -> tuple[str, ...]:
    """A word on a release later than those whose rules were read."""
    named = traits(deployment.engine.name).newest
    known, asked = release_number(named), release_number(deployment.engine.version)
    if known is None or asked is None or asked[: len(known)] <= known:
        return ()
    return (f"{deployment.engine} is newer than the newest rules known ({named}); using those",)


def refusals(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """Why the engine would not start, by its own check or for want of memory."""
    own = own_rule(deployment, "refusals_for")
    return () if own is None else tuple(own(model, deployment))


def allocated(
    model: Model, deployment: Deployment, budget: Budget
) -> tuple[Budget, tuple[str, ...]]:
    """The budget with the cache that flags set the size of, and why that can't be."""
    own = own_rule(deployment, "allocated_for")
    found: tuple[Budget, tuple[str, ...]] = (
        (budget, ()) if own is None else own(model, deployment, budget)
    )
    return found


def reach(model: Model, deployment: Deployment) -> int | None:
    """The length up to which the model is good, by the engine's own rule where it has one."""
    own: Any = own_rule(deployment, "trained_for")
    found: int | None = trained_length(model) if own is None else own(model, deployment)
    return found
