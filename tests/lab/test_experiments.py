"""Experiments: what was predicted is what was measured; the command shows it."""

import json
import math

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from kvproof.lab import experiments  # noqa: E402
from kvproof.surfaces.cli.lab import _NAMES, lab  # noqa: E402

pytestmark = pytest.mark.lab

SMALL = {
    "bytes": {"blocks": 8},
    "cache_or_not": {"prompt": 20, "output": 5},
    "attention": {"context": 256},
    "quantize": {"tokens": 48, "pairs": (("bf16", "bf16"), ("int8", "int4"))},
    "blocks": {"context": 256, "sizes": (1, 16, 64)},
    "prefix": {"length": 48, "shared": (0, 33, 47)},
    "preempt": {"lengths": (20, 40)},
    "batch": {"prompt": 10, "output": 7, "fits": 2, "offered": (1, 3)},
    "bandwidth": {"contexts": (256, 512), "dtypes": ("f32", "int8:128")},
    "evict": {"tokens": 64, "budgets": (32,)},
}


@pytest.mark.parametrize("name", list(experiments.EXPERIMENTS))
def test_predictions_hold(name, smollm):
    result = getattr(experiments, name)(**SMALL[name])
    assert result.rows
    assert [c for c in result.checks if not c.holds] == []
    assert {len(row) for row in result.rows} == {len(result.columns)}
    cells = [v for row in result.rows for v in row if isinstance(v, float)]
    assert all(math.isfinite(v) for v in cells)
    json.dumps(result.chart)


def test_each_experiment_has_a_command():
    assert {n.replace("-", "_") for n in _NAMES} == set(experiments.EXPERIMENTS)
    assert set(_NAMES) <= set(lab.commands)


def test_the_command_prints_both(monkeypatch, smollm):
    small = experiments.preempt(lengths=(20,))
    monkeypatch.setattr(experiments, "preempt", lambda: small)
    shown = CliRunner().invoke(lab, ["preempt", "--threads", "1"], standalone_mode=False)
    assert shown.exception is None
    assert shown.return_value == 0
    assert "predicted against measured" in shown.output
    assert "equal" in shown.output
    told = CliRunner().invoke(lab, ["preempt", "--json"], standalone_mode=False)
    assert json.loads(told.stdout)["result"]["name"] == "preempt"
