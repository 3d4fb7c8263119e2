"""Options of the lab's commands that belong to one experiment."""

import json

import pytest

pytest.importorskip("torch")

from click.testing import CliRunner

from kvproof.errors import UsageError
from kvproof.lab import experiments
from kvproof.lab.experiments.evicting import evict
from kvproof.lab.experiments.result import Experiment
from kvproof.surfaces.cli.lab import lab

pytestmark = pytest.mark.lab


@pytest.fixture
def asked(monkeypatch):
    """What the evict experiment is called with, in place of running it."""
    calls = []

    def evict(**settings):
        calls.append(settings)
        return Experiment(name="evict", title="t", question="q", columns=("a",), rows=((1,),))

    monkeypatch.setattr(experiments, "evict", evict, raising=False)
    return calls


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ([], {}),
        (["--per", "layer"], {"by_head": False}),
        (["--per", "head", "--budgets", "32,64", "--tokens", "96"],
         {"by_head": True, "budgets": (32, 64), "tokens": 96}),
    ],
)  # fmt: skip
def test_evict_takes_its_granularity_and_budgets(asked, given, want):
    answer = CliRunner().invoke(lab, ["evict", "--json", *given], standalone_mode=False)
    assert answer.exception is None
    assert asked == [want]
    inputs = json.loads(answer.output)["inputs"]
    assert inputs["budgets"]["origin"] == ("flag" if "budgets" in want else "default")


@pytest.mark.parametrize("wrong", ["x", "3,", "0", "-3"])
def test_wrong_budgets_are_told_so(asked, wrong):
    answer = CliRunner().invoke(lab, ["evict", "--budgets", wrong])
    assert answer.exit_code == 2
    assert "no list of whole numbers" in answer.output
    assert not asked


@pytest.mark.parametrize("chart", ["x.xyz", "no/such/folder/x.svg", "."])
def test_a_chart_that_can_not_be_written_is_told_before_it_runs(asked, chart, tmp_path):
    answer = CliRunner().invoke(lab, ["evict", "-o", str(tmp_path / chart)])
    assert isinstance(answer.exception, UsageError)
    assert not asked


def test_budgets_that_keep_all_are_told_so():
    with pytest.raises(UsageError, match="a budget of 640 entries keeps all of 640 tokens"):
        evict(budgets=(80, 640))
