"""What starts of one engine and GPU share across models, term by term.

Each start says how much more its terms took than estimated. Part of that belongs to engine, GPU
and host: a constant, a constant of the release, and a factor on each estimated term. The rest is
the model's own and stays with it. Both are given prior widths, and the shared part is what is
expected of it given the starts (a Gaussian process over starts). A start beyond the priors' width
has a cause of its own, a heavy-tailed one: the further out it lies, the less it moves.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kvproof.engine.vllm.versions import era_at, parse_version

_SCALED = ("communication", "CUDA graphs", "experts' workspace")
_BY_ERA = ("activations", "communication")
_AGREED, _AGREED_MODELS, _AGREED_SCATTER = 1.0, 3, 0.25
"""GiB beyond the priors' width that models have to agree on, how many, and how closely."""
_MOST = 60
"""Starts that are weighed at once, the newest."""


class Widths(msgspec.Struct, frozen=True, kw_only=True):
    """Prior widths: GiB for constants, shares for factors.

    Half of what was guessed at first; what others would give is in docs/accuracy.md. The weights'
    are second moments of printed over estimated weights on the logs.
    """

    constant: float = 0.1
    release: float = 0.1
    own: float = 0.4
    noise: float = 0.1
    factor: float = 0.15
    activation_factor: float = 0.04
    own_activation: float = 0.05
    weights: float = 0.003
    own_weights: float = 0.017

    @property
    def weights_moment(self) -> float:
        """Variance of printed over estimated weights."""
        return self.weights**2 + self.own_weights**2


USED = Widths()


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One start: GiB taken beyond the estimate apart from the weights, and its estimated terms."""

    model: str
    release: str
    era: str | None
    """Which era the release belongs to (`era_of`); None where it is not known."""
    more: float
    weights: float
    """GiB estimated for the weights."""
    weights_ratio: float | None
    """Printed over estimated weights less one, where they are printed."""
    terms: Mapping[str, float]


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """The shared part: GiB more that any start takes, and shares more that its terms take."""

    constant: float
    ratios: Mapping[str, float]


def era_of(release: str | None) -> str:
    """Which of vLLM's eras a release belongs to; None and names are the newest."""
    return era_at(parse_version(release))


def shared(starts: Sequence[Seen], release: str | None = None, widths: Widths = USED) -> Shared:
    """What a start of another model on `release` is expected to share with `starts`."""
    kept = list(starts)[-_MOST:]
    if not kept:
        return Shared(constant=0.0, ratios={})
    base = _agreed(kept)
    kept = [msgspec.structs.replace(start, more=start.more - base) for start in kept]
    pull = _solved(kept, widths)
    era = era_of(release)
    constant = base + widths.constant**2 * sum(pull)
    if release:
        own = (p for p, s in zip(pull, kept, strict=True) if s.release == release)
        constant += widths.release**2 * sum(own)
    ratios = {}
    for name in ("activations", *_SCALED):
        width = widths.activation_factor if name == "activations" else widths.factor
        ratios[name] = width**2 * sum(
            p * s.terms.get(name, 0.0)
            for p, s in zip(pull, kept, strict=True)
            if name not in _BY_ERA or s.era == era
        )
    ratios["weights"] = _weights_ratio(kept, widths)
    return Shared(constant=constant, ratios={name: r for name, r in ratios.items() if r})


def _agreed(starts: list[Seen]) -> float:
    """What several models take alike although it is more than priors allow: another process."""
    by_model: dict[str, list[float]] = {}
    for start in starts:
        by_model.setdefault(start.model, []).append(start.more)
    found = [statistics.median(own) for own in by_model.values()]
    middle = statistics.median(found)
    scatter = statistics.median(abs(value - middle) for value in found)
    enough = len(found) >= _AGREED_MODELS and abs(middle) > _AGREED
    return middle if enough and scatter < _AGREED_SCATTER * abs(middle) else 0.0


def _kernel(a: Seen, b: Seen, widths: Widths) -> float:
    """Covariance of what two starts take beyond their estimates."""
    same_era = a.era is not None and a.era == b.era
    same_release = a.release and a.release == b.release
    out = widths.constant**2 + (widths.release**2 if same_release else 0.0)
    activations = a.terms.get("activations", 0.0) * b.terms.get("activations", 0.0)
    if same_era:
        out += widths.activation_factor**2 * activations
    for name in _SCALED:
        if same_era or name not in _BY_ERA:
            out += widths.factor**2 * a.terms.get(name, 0.0) * b.terms.get(name, 0.0)
    if a.model == b.model:
        out += widths.own**2 + widths.own_activation**2 * activations
    return out


def _noise(start: Seen, widths: Widths) -> float:
    """Variance that no other start shares; weights that were not printed are in it."""
    unseen = widths.weights_moment * start.weights**2
    own = widths.noise**2 + (unseen if start.weights_ratio is None else 0.0)
    marginal = _kernel(start, start, widths) + own
    surprise = max(1.0, start.more**2 / marginal)
    return own + marginal * (surprise**2 - 1)


def _solved(starts: list[Seen], widths: Widths) -> list[float]:
    """(covariance + noise)^-1 times what was seen, by Cholesky's way."""
    n = len(starts)
    rows: list[list[float]] = []
    for i, a in enumerate(starts):
        row: list[float] = []
        for j in range(i + 1):
            value = _kernel(a, starts[j], widths) + (_noise(a, widths) if i == j else 0.0)
            other = row if i == j else rows[j]
            value -= sum(row[k] * other[k] for k in range(j))
            row.append(math.sqrt(max(value, 1e-12)) if i == j else value / other[j])
        rows.append(row)
    half: list[float] = []
    for i in range(n):
        done = sum(rows[i][k] * half[k] for k in range(i))
        half.append((starts[i].more - done) / rows[i][i])
    out = [0.0] * n
    for i in reversed(range(n)):
        done = sum(rows[k][i] * out[k] for k in range(i + 1, n))
        out[i] = (half[i] - done) / rows[i][i]
    return out


def _weights_ratio(starts: Iterable[Seen], widths: Widths) -> float:
    """The shared excess of the weights: each model's median, drawn to none by the prior."""
    by_model: dict[str, list[float]] = {}
    for start in starts:
        if start.weights_ratio is not None:
            by_model.setdefault(start.model, []).append(start.weights_ratio)
    usual = widths.weights_moment
    total, weight = 0.0, 1 / widths.weights**2
    for ratios in by_model.values():
        middle = statistics.median(ratios)
        surprise = max(1.0, middle**2 / usual)
        trust = 1 / (widths.own_weights**2 + usual * (surprise**2 - 1))
        total += trust * middle
        weight += trust
    return total / weight
