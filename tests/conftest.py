"""Fixtures shared by all tests: where the ground truth lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every CI run; new ones on every run at a desk. Machines vary too much for
# deadlines on single examples.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "desk")

ROOT = Path(__file__).resolve().parent.parent
GROUND_TRUTH = Path(__file__).resolve().parent / "ground_truth"


def find_data() -> Path | None:
    """The folder of traces, logs, configs and serving points: $KVPROOF_DATA or ../shared/data."""
    path = Path(os.environ.get("KVPROOF_DATA", ROOT.parent / "shared" / "data"))
    return path if path.is_dir() else None


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The data folder; its absence skips, but fails the run when CI=true."""
    path = find_data()
    if path is None:
        message = "no data folder: set KVPROOF_DATA or put it at ../shared/data"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path
