"""Options that came with a later release of vLLM than the one a command names."""

from __future__ import annotations

from pathlib import Path

from kvproof.engine.came import Dates

# `-O3` is read as this option; until 0.11 it set the level of --compilation-config.
_OTHERWISE = ("optimization_level",)
DATES = Dates("vLLM", Path(__file__).with_name("data") / "came.json", _OTHERWISE)
