"""Experiments: what was predicted is what was measured; the command shows it."""

import json
import math

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402
from tests.lab.small import SMALL  # noqa: E402

from kvproof.lab import experiments  # noqa: E402
from kvproof.lab.experiments.result import Check, Experiment  # noqa: E402
from kvproof.surfaces.cli.lab import _NAMES, lab  # noqa: E402
from kvproof.surfaces.lab import experiment_chart, experiment_text  # noqa: E402

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module", params=list(experiments.EXPERIMENTS))
def result(request, smollm):
    """Every experiment, made small and run once."""
    return getattr(experiments, request.param)(**SMALL[request.param])


def test_predictions_hold(result):
    assert result.rows
    assert [c for c in result.checks if not c.holds] == []
    assert {len(row) for row in result.rows} == {len(result.columns)}
    cells = [v for row in result.rows for v in row if isinstance(v, float)]
    assert all(math.isfinite(v) for v in cells)
    json.dumps(result.chart)


def test_both_figures_are_shown(result):
    """A table or a check has a planned or predicted figure, and the chart can be drawn."""
    assert [c for c in result.checks if c.tolerance is not None], "nothing is judged"
    assert all(c.because for c in result.checks if c.tolerance is None and c.ratio != 1)
    vl_convert = pytest.importorskip("vl_convert")
    assert vl_convert.vegalite_to_svg(experiment_chart(result)).startswith("<svg")


def test_a_wrong_prediction_differs_and_an_estimate_does_not():
    right = Check(name="a", predicted=2, measured=2)
    near = Check(name="b", predicted=100, measured=101, tolerance=0.01)
    wrong = Check(name="c", predicted=2, measured=3, listed=False)
    guess = Check(name="d", predicted=2, measured=9, tolerance=None, because="a bound")
    assert [c.verdict for c in (right, near, wrong, guess)] == [
        "equal", "within 1 %", "DIFFERS", "estimate",
    ]  # fmt: skip
    made = Experiment(name="x", title="X", question="Q?", columns=("n",), rows=((1,),),
                      checks=(right, near, wrong, guess))  # fmt: skip
    assert not made.holds
    fast = Check(name="e", predicted=9, measured=2, unit="ms", tolerance=None, because="a bound")
    assert fast.reason.startswith("below the bound")
    assert guess.reason == "a bound"
    assert made.verdict == "1 of 3 predictions DIFFER: c; 1 estimate beside them"
    text = experiment_text(made)
    assert "4.500" in text
    assert "a bound" in text
    assert text.count("DIFFERS") == 1


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
