"""Shared fixtures of the lab's tests: small bodies, and the real weights where they are."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from kvproof.errors import UsageError  # noqa: E402
from kvproof.lab.experiments import material  # noqa: E402
from kvproof.lab.models.sources import default_weights, random_body  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    """Tests share the machine: one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small():
    """A random GQA body whose greedy tokens do not collapse at once."""
    return random_body("gqa", layers=2, heads=4, kv_heads=2, head_dim=32, hidden=64, ffn=128,
                       vocab=211)  # fmt: skip


@pytest.fixture(scope="session")
def smollm():
    """SmolLM2-135M-Instruct in f32, the experiments' own, so that it is read once.

    Skipped where its package is missing, unless CI says no.
    """
    try:
        default_weights()
    except UsageError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    return material.smollm()
