"""Prometheus' text form, as far as servers use it: names, labels, values, histograms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

_MOST = 50_000
_LINE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]{0,199})(?:\{(.*)\})? +([^ ]{1,40})")
_LABEL = re.compile(r'([A-Za-z_]\w{0,199})="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


class Sample(msgspec.Struct, frozen=True):
    """One value with its labels."""

    name: str
    labels: Mapping[str, str]
    value: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram of seconds: how many, their mean, and quantiles inside their buckets."""

    name: str
    count: int
    mean: float
    p50: float | None
    p99: float | None


class Metrics:
    """The samples of a page, by name."""

    def __init__(self, samples: list[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            self._by_name.setdefault(sample.name, []).append(sample)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def all(self, *names: str) -> list[Sample]:
        """The samples of the first of these names that has any."""
        return next((self._by_name[n] for n in names if n in self._by_name), [])

    def total(self, *names: str) -> float | None:
        """Their sum: counts of several engines or ranks added up."""
        found = self.all(*names)
        return sum(s.value for s in found) if found else None

    def most(self, *names: str) -> float | None:
        """The largest: the fullest of several engines."""
        return max((s.value for s in self.all(*names)), default=None)

    def latency(self, shown: str, *names: str) -> Latency | None:
        """The histogram of the first of these names that counted anything."""
        for name in names:
            count, total = self.total(f"{name}_count"), self.total(f"{name}_sum")
            if count and total is not None:
                buckets = _buckets(self.all(f"{name}_bucket"))
                half, last = _quantile(buckets, 0.5), _quantile(buckets, 0.99)
                return Latency(name=shown, count=int(count), mean=total / count, p50=half, p99=last)
        return None


def _buckets(samples: list[Sample]) -> list[tuple[float, float]]:
    """(upper bound, cumulative count), those of several engines added up."""
    sums: dict[float, float] = {}
    for sample in samples:
        try:
            bound = float(sample.labels.get("le", "nan"))
        except ValueError:
            continue
        if not math.isnan(bound):
            sums[bound] = sums.get(bound, 0.0) + sample.value
    return sorted(sums.items())


def _quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """The value below which `share` of the counts lie, straight inside its bucket.

    None where it lies beyond the last finite bound: the histogram does not tell.
    """
    if not buckets or buckets[-1][1] <= 0:
        return None
    wanted, low, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            if math.isinf(bound):
                return None
            inside = (wanted - below) / (count - below) if count > below else 1.0
            return low + (bound - low) * inside
        low, below = bound, count
    return None


def parse(text: str, prefixes: tuple[str, ...]) -> Metrics:
    """The samples whose names begin with one of `prefixes`; lines that are none are left out."""
    samples: list[Sample] = []
    for line in text.split("\n"):
        if len(samples) >= _MOST:
            break
        if not line.startswith(prefixes):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            labels = {k: _ESCAPE.sub(r"\1", v) for k, v in _LABEL.findall(match[2] or "")}
            samples.append(Sample(match[1], labels, value))
    return Metrics(samples)
