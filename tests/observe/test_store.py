"""The store of observed starts: what others teach, what goes in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_logs import vllm_log

import kvproof
from kvproof.engine.overheads import Overheads
from kvproof.errors import InputError
from kvproof.observe import store
from kvproof.observe.shared import Shares
from kvproof.observe.store import Start

SHARES = Shares(host=0.1, communication=0.58, activations=0.1)
"""Shares for the rule's own sake; those measured are data."""


def start(model: str, gap: float, **changes: Any) -> Start:
    gib = 2**30
    fields: dict[str, Any] = {
        "engine": "vllm", "version": "0.30", "gpu": "H100-80GB", "ranks": 1, "model": model,
        "flags": {"max_model_len": 4096}, "predicted": 40 * gib,
        "printed": int((40 + gap) * gib), **changes,
    }  # fmt: skip
    return Start(**fields)


def test_what_is_learned_moves_a_budget(tmp_path: Path) -> None:
    place = tmp_path / "observed.sqlite"
    assert store.overheads("vllm", "H100-80GB", path=place) is None
    starts = [start("a", -3.0), start("b", -3.2), start("c", -2.8)]
    assert store.remember(starts, place) == 3
    assert store.remember(starts, place) == 0
    learned = store.overheads("vllm", "H100-80GB", path=place)
    assert learned is not None
    assert (learned.starts, learned.models) == (3, 3)
    assert -3.2 < learned.kv_bytes / 2**30 < -2.5
    report = kvproof.check(vllm_log(), gpu="H100-80GB", overheads=learned)
    assert any("learned" in line for line in report.assumptions)
    assert any(term.name == "learned overhead" for term in report.terms)
    from kvproof.hardware import accelerator

    assert sum(t.value for t in report.terms) == accelerator("H100-80GB").memory_bytes


def fit(starts: list[Start], model: str | None = None, release: str | None = None) -> Overheads:
    found = store.fit(starts, model, release, SHARES)
    assert found is not None
    return found


def learned_kv(starts: list[Start], target: Start) -> float:
    """GiB that `target` is moved by what `starts` taught."""
    learned = fit(starts, target.model, target.version)
    return (store.adjusted_kv(target, learned) - target.predicted) / 2**30


def gib(**terms: float) -> dict[str, float]:
    """Estimated terms with a quarter of each in doubt."""
    named = {name.replace("_", " "): value * 2**30 for name, value in terms.items()}
    return {store.ESTIMATED + n: v for n, v in named.items()} | {
        store.DOUBT + n: v / 4 for n, v in named.items()
    }


def test_a_start_settles_its_own_deployment() -> None:
    """Other lengths and builds of one release are the same deployment: the gap is theirs."""
    terms = gib(activations=4.0, communication=2.0)
    seen = start("a", -0.4, terms=terms)
    other = start("a", 0.0, terms=terms, version="0.30+build2", flags={"max_model_len": 8192})
    assert -0.4 < learned_kv([seen], other) < -0.35
    builds = [seen, start("a", -0.4, terms=terms, version="0.30+build2")]
    assert learned_kv(builds, other) == pytest.approx(-0.4, abs=0.01)
    assert -0.4 < learned_kv([seen, start("b", 0.3, terms=terms)], other) < -0.3


def test_other_ranks_or_batches_are_another_deployment() -> None:
    seen = start("a", -0.4, terms=gib(activations=4.0))
    larger = start("a", 0.0, terms=gib(activations=8.0))
    assert abs(learned_kv([seen], larger)) < 0.1


def test_another_release_of_the_model_is_another_deployment() -> None:
    terms = gib(activations=4.0)
    seen = start("a", -0.4, terms=terms, version="0.28")
    assert abs(learned_kv([seen], start("a", 0.0, terms=terms, version="0.30"))) < 0.1


def test_one_other_model_moves_little_and_an_odd_one_less() -> None:
    def moved(gap: float) -> float:
        return fit([start("a", gap, half=2 * 2**30)], "b", "0.30").kv_bytes / 2**30

    assert -0.1 < moved(-0.2) < 0
    assert moved(-0.2) < moved(-1.5) < 0
    assert abs(moved(-6.0)) < 1e-5


def test_a_start_beyond_its_interval_moves_its_own_build_alone() -> None:
    terms = gib(activations=4.0, communication=2.0)
    odd = start("a", 5.0, terms=terms, half=2**30)
    assert odd.outside
    assert "less than the terms" in odd.strangeness
    assert not start("a", 0.5, terms=terms, half=2**30).outside
    assert learned_kv([odd], start("a", 0.0, terms=terms)) == pytest.approx(5.0, abs=0.01)
    assert abs(learned_kv([odd], start("a", 0.0, terms=terms, version="0.30+b"))) < 0.01
    assert abs(learned_kv([odd], start("b", 0.0, terms=terms))) < 0.01


def test_what_two_starts_of_a_build_take_counts_once() -> None:
    terms = gib(activations=4.0, communication=2.0)
    odd = [start("a", 5.0, terms=terms, half=2**30, flags={"max_model_len": n}) for n in (1, 2)]
    assert learned_kv(odd, start("a", 0.0, terms=terms)) == pytest.approx(5.0, abs=0.05)
    plain = [start("a", -0.4, terms=terms, flags={"max_model_len": n}) for n in (1, 2, 3)]
    assert learned_kv(plain, start("a", 0.0, terms=terms)) == pytest.approx(-0.4, abs=0.01)
    differing = [odd[0], start("a", 4.0, terms=terms, half=2**30)]
    assert 4 < learned_kv(differing, start("a", 0.0, terms=terms)) < 5


def test_terms_are_learned_by_their_doubts() -> None:
    terms = gib(communication=2.0)
    learned = fit([start("a", -0.4, terms=terms)], "b", "0.30")
    assert learned.shifts["communication"] > 0
    assert learned.kv_bytes < 0
    spread = start("b", 0.0, terms=terms)
    assert store.adjusted_kv(spread, learned) < spread.predicted + learned.kv_bytes


def test_what_is_small_beside_its_doubt_moves_no_other_deployment() -> None:
    """It would lead away about as often as nearer; a start of the deployment moves it still."""
    seen = [start("a", -0.2)]
    assert fit(seen, "b", "0.30").kv_bytes < 0
    assert learned_kv(seen, start("b", 0.0)) == 0
    assert learned_kv(seen, start("a", 0.0)) == pytest.approx(-0.2, abs=0.01)
    agreeing = [start(name, -0.2) for name in "cdefgh"]
    assert -0.2 < learned_kv(agreeing, start("b", 0.0)) < -0.03
    assert learned_kv(agreeing, start("b", 0.0, terms=gib(experts=8.0))) == 0


def test_what_a_model_alone_has_moves_no_other() -> None:
    """Experts, graphs and weights are the model's own: a start in doubt for them says little."""
    doubtful = start("a", -0.4, terms=gib(experts=8.0))
    sure = start("a", -0.4)
    sure_of, doubtful_of = (fit([one], "b", "0.30").kv_bytes for one in (sure, doubtful))
    assert sure_of < doubtful_of < 0


def test_a_printed_peak_is_the_models_own() -> None:
    estimated = gib(activations=2.0)
    printed = {**estimated, "peak_activation": 2.5 * 2**30}
    unknown = fit([start("a", -0.5, terms=estimated)], "b", "0.30")
    settled = fit([start("a", -0.5, terms=printed)], "b", "0.30")
    assert unknown.kv_bytes < settled.kv_bytes == 0


def test_weights_are_a_models_own_matter() -> None:
    terms = {"weights": 12.0 * 2**30}
    heavy = start("a", -2.0, weights=10 * 2**30, terms=terms)
    assert heavy.gap == -2 * 2**30
    assert heavy.unnamed == 0
    assert learned_kv([heavy], start("b", 0.0, weights=10 * 2**30)) == 0
    own = learned_kv([heavy], start("a", 0.0, weights=10 * 2**30))
    assert own == pytest.approx(-2, abs=0.01)
    later = learned_kv([heavy], start("a", 0.0, weights=10 * 2**30, version="0.31"))
    assert later == pytest.approx(0, abs=0.01)


def test_printed_weights_hold_the_draft() -> None:
    terms = {**gib(draft_model=3.0), "weights": 13.0 * 2**30}
    assert start("a", 0.0, weights=13 * 2**30, terms=terms).unnamed == 0


def test_models_that_disagree_teach_nothing() -> None:
    learned = fit([start("a", -3.0), start("b", 3.0), start("c", 0.1)])
    assert abs(learned.kv_bytes) < 2**28


def test_export_and_import(tmp_path: Path) -> None:
    here, there = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    secret = {"api_key": "s3cret", "host": "10.0.0.1", "max_model_len": 1}
    store.remember([start("a", -1.0, flags=secret)], here)
    lines = list(store.export_lines(here))
    assert "s3cret" not in lines[0]
    assert json.loads(lines[0])["flags"] == {"max_model_len": 1}
    assert store.import_lines(lines, there) == 1
    assert store.recall(path=there)[0].gap == store.recall(path=here)[0].gap


@pytest.mark.parametrize("field", ["printed", "weights"])
def test_a_line_of_more_than_the_gpu_holds_is_refused(field: str, tmp_path: Path) -> None:
    """Each kept start moves later plans by its gap."""
    (exported,) = store.export_lines(_with(tmp_path, start("a", -1.0)))
    kept = json.loads(exported)
    line = json.dumps({**kept, "gpu": "H100-80GB", field: 10**17})
    with pytest.raises(InputError, match="not on one H100-80GB"):
        store.import_lines([line], tmp_path / "b.sqlite")


def _with(folder: Path, one: Start) -> Path:
    place = folder / "a.sqlite"
    store.remember([one], place)
    return place


@pytest.mark.parametrize("line", ["{", "[]", '{"engine": 1}', '{"a": "b"}', "nonsense"])
def test_a_bad_line_is_named(line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1"):
        store.import_lines([line], tmp_path / "x.sqlite")


def test_a_store_that_is_no_database(tmp_path: Path) -> None:
    place = tmp_path / "broken.sqlite"
    place.write_text("this is no database, it only lies where one should be")
    with pytest.raises(InputError, match="store"):
        store.recall(path=place)


def test_a_store_of_an_earlier_release_is_extended(tmp_path: Path) -> None:
    import sqlite3

    place = tmp_path / "old.sqlite"
    with sqlite3.connect(place) as base:
        base.execute(
            "create table starts (id integer primary key, engine text not null, version text not "
            "null, gpu text not null, ranks integer not null, model text not null, flags text not "
            "null, predicted integer not null, printed integer not null, half integer not null, "
            "weights integer not null, terms text not null)"
        )
        base.execute(
            "insert into starts values (1, 'vllm', '0.30', 'H100-80GB', 1, 'a', '{}', 5, 4, 0, 0, "
            "'{}')"
        )
    base.close()
    assert store.recall(path=place)[0].since == ""


def test_a_range_over_eras_teaches_no_term_of_one_era() -> None:
    terms = gib(communication=2.0)
    vague = start("a", -0.4, version="", since="0.9.1", terms=terms)
    within = start("a", -0.4, version="", since="0.26", terms=terms)
    assert "communication" not in fit([vague], "b", "0.30").shifts
    assert "communication" in fit([within], "b", "0.30").shifts


def test_starts_of_the_same_release_count_before_others() -> None:
    starts = [start("a", -0.3, version="0.11.0"), start("a", 0.3, version="0.30")]
    assert learned_kv(starts, start("a", 0.0, version="0.30")) > 0.25
    assert learned_kv(starts, start("a", 0.0, version="0.11.0")) < -0.25


def test_a_start_of_an_earlier_store_has_usual_doubts() -> None:
    old = start("a", -0.4, terms={store.ESTIMATED + "communication": 2.0 * 2**30})
    assert old.doubt("communication") == 2**29
    assert old.doubt("activations") == 0
