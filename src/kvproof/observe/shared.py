"""What starts of one engine and GPU share, term by term, and what stays with a deployment.

Each estimated term is in doubt by what its interval says. Part of that doubt belongs to GPU, host
and driver and is the same for every model there: a `share` of it, by the term's mechanism, measured
on published logs (scripts/fit_learned_shares.py). The rest is the model's under its release, ranks
and batch, and moves only starts of the same deployment. What is small beside the doubt that another
deployment is left in does not move it (`TELLING` of kvproof.engine.overheads). A start prints the
sum of its terms, and some of them alone; what each term is then expected to be off by is the
conditional mean of that Gaussian model (its variances are those of the doubts, so a start shrinks
by its own uncertainty).

A start far from its estimate has a cause that it does not name. Beyond its doubt it moves others
the less the further out it lies, beyond its interval not at all; its own deployment it moves.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kvproof.engine.overheads import DEVIATION, Own, alike
from kvproof.engine.release import padded, release_number
from kvproof.engine.vllm.versions import era_at, parse_version

HOST = "host"
"""The doubt that no term names: `FLOOR` bytes."""
FLOOR = 250_000_000
WEIGHTS_DOUBT = 0.006
"""Share of the weights that is in doubt where they are not printed, as the engine's interval."""
_MECHANISM = {HOST: "host", "framework": "host", "context": "host",
              "context and other processes": "host", "pages of the host": "host",
              "communication": "communication",
              "activations": "activations"}  # fmt: skip
"""Terms that GPU, host or driver have a part in, and the share that says which."""
_BY_ERA = ("activations", "communication")
"""Terms whose mechanism changed between eras of releases."""
_AGREED, _AGREED_MODELS, _AGREED_SCATTER = 1.0, 3, 0.25
"""GiB beyond the doubt that models have to agree on, how many, and how closely."""
_MOST = 60
"""Starts that are weighed at once: those of the model, and the newest of others."""
_VARIANCE = DEVIATION**2
"""Variance of what is in doubt, for each unit of the doubt squared."""
MECHANISMS = ("host", "communication", "activations")
_JITTER = 0.01
"""GiB that printed figures are rounded to."""
_FAR = 1e6
"""How much wider a start beyond its interval is taken to be than its doubt."""
_WEIGHTS = 0.017
"""How far printed weights lie from their estimate on the logs: root of the mean square."""


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a term's squared doubt GPU, host and driver have in it, by mechanism."""

    host: float
    communication: float
    activations: float
    provenance: str = ""

    def of(self, term: str) -> float:
        """The share of a term; 0 for those that are the model's own."""
        mechanism = _MECHANISM.get(term)
        return float(getattr(self, mechanism)) if mechanism else 0.0


@functools.cache
def measured() -> Shares:
    """The shares as measured on the published logs."""
    place = importlib.resources.files("kvproof.observe") / "data" / "shares.json"
    return msgspec.json.decode(place.read_bytes(), type=Shares)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one printed figure says of terms: GiB that they take together beyond the estimate."""

    terms: tuple[str, ...]
    more: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One start: its estimated terms and their doubts in GiB, and what was printed of them.

    `total` is what the terms take that no other part names; `half` is half the width of the
    start's interval.
    """

    model: str
    release: str
    era: str | None
    """Which era the release belongs to (`era_of`); None where it is not known."""
    total: Part
    half: float
    weights_ratio: float | None
    """Printed over estimated weights less one, where they are printed."""
    terms: Mapping[str, float]
    doubts: Mapping[str, float]
    parts: tuple[Part, ...] = ()

    @property
    def known(self) -> tuple[Part, ...]:
        """Everything printed."""
        return (self.total, *self.parts)


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What a start is expected to take: GiB more, and of its terms' doubts, and of its weights."""

    constant: float
    weights_ratio: float
    shifts: Mapping[str, float]
    own: tuple[Own, ...] = ()


def era_of(release: str | None) -> str:
    """Which of vLLM's eras a release belongs to; None and names are the newest."""
    return era_at(parse_version(release))


def base_of(release: str | None) -> tuple[int, ...] | str | None:
    """The numbers of a release, without a vendor's or a build's suffix; the name if it has none."""
    number = release_number(release)
    return release if number is None else padded(number)


def shared(
    starts: Sequence[Seen], model: str | None, release: str | None, shares: Shares
) -> Shared:
    """What a start of `model` on `release` is expected to share with `starts`."""
    kept = sorted(starts, key=lambda start: start.model == model)[-_MOST:]
    if not kept:
        return Shared(constant=0.0, weights_ratio=0.0, shifts={})
    base = _agreed(kept)
    kept = [_less(start, base) for start in kept]
    seen = [(start, part) for start in kept for part in start.known]
    strange = _together(seen, [_strange(start, part, shares) for start, part in seen])
    pull = _solved(seen, strange, shares)
    era = era_of(release)
    shifts: dict[str, float] = {}
    own: dict[int, Own] = {}
    for (start, part), weight, odd in zip(seen, pull, strange, strict=True):
        for name in part.terms:
            if name not in _BY_ERA or start.era == era:
                moved = weight * shares.of(name) * start.doubts.get(name, 0.0)
                shifts[name] = shifts.get(name, 0.0) + moved
        if start.model == model and _same_base(start, release, era):
            exact = start.release == (release or start.release)
            more = weight * odd if exact else 0.0
            rest = {
                n: weight * (_variance(n, shares) - shares.of(n)) * start.doubts.get(n, 0.0)
                for n in part.terms
            }
            own[id(start)] = _joined(own.get(id(start)), start, more, rest)
    host = shifts.pop(HOST, 0.0) * FLOOR / 2**30
    return Shared(
        constant=base + host,
        weights_ratio=_weights_ratio(kept, model, release),
        shifts={name: value for name, value in shifts.items() if value},
        own=tuple(own.values()),
    )


def _less(start: Seen, base: float) -> Seen:
    total = msgspec.structs.replace(start.total, more=start.total.more - base)
    return msgspec.structs.replace(start, total=total)


def _joined(found: Own | None, start: Seen, more: float, shifts: Mapping[str, float]) -> Own:
    """One more printed part of a start of the deployment that is asked for."""
    gib = more + shifts.get(HOST, 0.0) * FLOOR / 2**30
    named = {name: value for name, value in shifts.items() if name != HOST}
    if found is None:
        terms = {name: value * 2**30 for name, value in start.terms.items()}
        return Own(terms=terms, more=gib * 2**30, shifts=named)
    both = {name: found.shifts.get(name, 0.0) + named.get(name, 0.0)
            for name in (*found.shifts, *named)}  # fmt: skip
    return msgspec.structs.replace(found, more=found.more + gib * 2**30, shifts=both)


def _same_base(start: Seen, release: str | None, era: str) -> bool:
    """Whether a start ran the release that is asked for; by era where one of them names none."""
    if not start.release or not release:
        return start.era == era
    return base_of(start.release) == base_of(release)


def covariance(a: Seen, one: Part, b: Seen, other: Part, shares: Shares) -> float:
    """Covariance of what two parts of starts take beyond their estimates, in GiB squared."""
    both = [name for name in one.terms if name in other.terms]
    if same_deployment(a, b):
        return sum(
            _variance(name, shares) * a.doubts.get(name, 0.0) * b.doubts.get(name, 0.0)
            for name in both
        )
    return sum(
        shares.of(name) * a.doubts.get(name, 0.0) * b.doubts.get(name, 0.0)
        for name in both
        if common(a, b, name)
    )


def _variance(term: str, shares: Shares) -> float:
    """Variance of a term in units of its doubt squared: never less than what is shared of it."""
    return max(_VARIANCE, shares.of(term))


def same_deployment(a: Seen, b: Seen) -> bool:
    """Whether two starts are of one model under one release, with the same estimated terms."""
    if a is b:
        return True
    same = a.model == b.model and base_of(a.release) == base_of(b.release)
    return same and alike(a.terms, b.terms, gib=1.0)


def common(a: Seen, b: Seen, term: str) -> bool:
    """Whether GPU and host have the same part in a term of two starts of different deployments."""
    if term in _BY_ERA:
        return a.era is not None and a.era == b.era
    return term in _MECHANISM


def mechanism(term: str) -> str | None:
    """Which share a term goes by; None where it is the model's own."""
    return _MECHANISM.get(term)


def _strange(start: Seen, part: Part, shares: Shares) -> float:
    """Variance of what a start does not name: none within its doubt, all beyond its interval."""
    usual = covariance(start, part, start, part, shares) + _JITTER**2
    if part is start.total and abs(part.more) > start.half > 0:
        return _FAR * usual
    surprise = max(1.0, part.more**2 / usual)
    return usual * (surprise**2 - 1)


def _same_build(a: tuple[Seen, Part], b: tuple[Seen, Part]) -> bool:
    """Whether two starts have in common what they do not name: one deployment of one build."""
    totals = a[1] is a[0].total and b[1] is b[0].total
    return totals and a[0].release == b[0].release and same_deployment(a[0], b[0])


def _together(seen: Sequence[tuple[Seen, Part]], strange: Sequence[float]) -> list[float]:
    """What is not named, the same for all starts of a build."""
    return [
        max(other for b, other in zip(seen, strange, strict=True) if a is b or _same_build(a, b))
        for a in seen
    ]


def _solved(
    seen: Sequence[tuple[Seen, Part]], strange: Sequence[float], shares: Shares
) -> list[float]:
    """(covariance + noise)^-1 times what was seen, by Cholesky's way."""
    n = len(seen)
    rows: list[list[float]] = []
    for i, (a, one) in enumerate(seen):
        row: list[float] = []
        for j in range(i + 1):
            b, other = seen[j]
            value = covariance(a, one, b, other, shares)
            if i == j or _same_build((a, one), (b, other)):
                value += strange[i]
            if i == j:
                value += _JITTER**2
            done = row if i == j else rows[j]
            value -= sum(row[k] * done[k] for k in range(j))
            row.append(math.sqrt(max(value, 1e-12)) if i == j else value / done[j])
        rows.append(row)
    half: list[float] = []
    for i in range(n):
        done_by = sum(rows[i][k] * half[k] for k in range(i))
        half.append((seen[i][1].more - done_by) / rows[i][i])
    out = [0.0] * n
    for i in reversed(range(n)):
        done_by = sum(rows[k][i] * out[k] for k in range(i + 1, n))
        out[i] = (half[i] - done_by) / rows[i][i]
    return out


def _agreed(starts: list[Seen]) -> float:
    """What several models take alike although it is more than their doubts: another process."""
    by_model: dict[str, list[float]] = {}
    for start in starts:
        by_model.setdefault(start.model, []).append(start.total.more)
    found = [statistics.median(own) for own in by_model.values()]
    middle = statistics.median(found)
    scatter = statistics.median(abs(value - middle) for value in found)
    enough = len(found) >= _AGREED_MODELS and abs(middle) > _AGREED
    return middle if enough and scatter < _AGREED_SCATTER * abs(middle) else 0.0


def _weights_ratio(starts: Iterable[Seen], model: str | None, release: str | None) -> float:
    """The weights' excess where the model's own were printed, under the release if there.

    One far from what weights are off by is its release's own and hardly moves another.
    """
    own = [s for s in starts if s.model == model and s.weights_ratio is not None]
    here = [s for s in own if base_of(s.release) == base_of(release)]
    if not own:
        return 0.0
    middle = statistics.median(s.weights_ratio or 0.0 for s in here or own)
    surprise = 1.0 if here else max(1.0, (middle / _WEIGHTS) ** 2)
    return middle / surprise**2
