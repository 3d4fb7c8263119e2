"""Comparison: one printed figure beside what is predicted for it, and what explains the rest."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvproof.observe.figures import Figure, Unit

WIDE = 0.05
"""A difference larger than this share is no confirmation, however wide the interval."""
_SMALL = 0.1 * 2**30
Verdict = Literal["ok", "wide", "off"]


class Share(msgspec.Struct, frozen=True):
    """A part of a difference: the term it lies in, and its bytes (printed less predicted)."""

    term: str
    size: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A printed figure and its prediction.

    `low` and `high` bound the prediction: the rounding of what it was computed from, or the
    interval of an estimate. `exact`: the figure follows from others printed; else estimated.
    `cause` names the term or rule that the difference lies in, `shares` the bytes of each term.
    """

    name: str
    printed: float
    predicted: float
    low: float
    high: float
    unit: Unit
    step: float
    exact: bool
    line: int
    worker: str | None = None
    cause: str = ""
    tolerance: float | None = None
    shares: tuple[Share, ...] = ()

    @property
    def difference(self) -> float:
        """Printed less predicted."""
        return self.printed - self.predicted

    @property
    def relative(self) -> float | None:
        """The difference as a share of what is printed."""
        return self.difference / self.printed if self.printed else None

    @property
    def ok(self) -> bool:
        """Whether the printed figure lies within the prediction's bounds or the tolerance."""
        slack = self.step * 0.5001 + 1e-9
        if self.low - slack <= self.printed <= self.high + slack:
            return True
        if self.tolerance is None:
            return False
        return abs(self.difference) <= self.tolerance * abs(self.printed)

    @property
    def verdict(self) -> Verdict:
        """`off` outside the bounds; `wide` inside, but so far away that it confirms nothing."""
        if not self.ok:
            return "off"
        far = abs(self.relative or 0.0) > max(WIDE, self.tolerance or 0.0)
        far = far and (self.unit != "B" or abs(self.difference) > _SMALL)
        return "wide" if far and not self.exact else "ok"

    @property
    def half_width(self) -> float | None:
        """Half the width of the bounds as a share of the prediction."""
        return (self.high - self.low) / 2 / abs(self.predicted) if self.predicted else None


def compared(
    figure: Figure,
    predicted: float,
    *,
    low: float | None = None,
    high: float | None = None,
    exact: bool,
    cause: str = "",
    name: str | None = None,
    shares: tuple[Share, ...] = (),
) -> Comparison:
    """`figure` beside `predicted`, bounded by `low` and `high` (each the prediction if None)."""
    ends = sorted((predicted if low is None else low, predicted if high is None else high))
    return Comparison(
        name=name or figure.name,
        printed=figure.value,
        predicted=predicted,
        low=ends[0],
        high=ends[1],
        unit=figure.unit,
        step=figure.step,
        exact=exact,
        line=figure.line,
        worker=figure.worker,
        cause=cause,
        shares=shares,
    )
