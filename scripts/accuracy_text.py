"""Pieces of Markdown that the sections of docs/accuracy.md share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def table(head: list[str], body: Iterable[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in body]
    return "\n".join(lines)


def gpu_of(row: Any) -> str:
    accelerator = row.point.deployment().accelerator
    return accelerator.name if accelerator is not None else "-"
