"""Releases: the rule sets of an engine that can have printed a log which names no version.

An engine's releases fall into sets with the same rules. Of the sets that the log's wording leaves
(`Log.wording`), those that give the printed figures count; of these the newest is used, and of a
log that is dated the newest that was published by then (decision 0044).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Any

import msgspec

from kvproof.engine.base import Deployment
from kvproof.engine.common_flags import OPTIONS, flag_of
from kvproof.errors import KvproofError
from kvproof.observe.compare import Comparison
from kvproof.observe.figures import Log
from kvproof.observe.ledger import TOKENS, graphs_charged, ledger_rows
from kvproof.terms import Term

_DATED = {
    "vllm": "vllm.versions", "sglang": "sglang.versions", "llamacpp": "llamacpp.builds",
    "tensorrt_llm": "tensorrt_llm.flags",
}  # fmt: skip
_CONFIGURED = "free_gpu_memory_fraction"
"""The share under the name that TensorRT-LLM's configuration has."""
USUAL_SHARE = 0.9
"""Stands for a share that no line, flag or rule tells."""
_COMPUTE, _MISSED = "compute", 0.05
"""How llama.cpp's compute buffers are named, and what one that is not met to the digit counts."""
_PLAIN = 0.03
"""A larger difference is none of rounding, nor of a last block that is not full."""


class RuleSet(msgspec.Struct, frozen=True, kw_only=True):
    """Releases that plan alike, oldest first."""

    releases: tuple[str, ...]

    @property
    def newest(self) -> str:
        """The release whose name stands for the set."""
        return self.releases[-1]

    def __str__(self) -> str:
        first, last = self.releases[0], self.releases[-1]
        return first if first == last else f"{first} to {last}"


@cache
def rule_sets(engine: str) -> tuple[RuleSet, ...]:
    """Every set of `engine`, oldest first; none where its rules do not depend on the release."""
    groups: list[tuple[Any, list[str]]] = []
    dated = _dated(engine)
    for release in dated.releases() if dated is not None else ():
        rules = _rules(engine, release)
        if groups and groups[-1][0] == rules:
            groups[-1][1].append(release)
        else:
            groups.append((rules, [release]))
    return tuple(RuleSet(releases=tuple(names)) for _, names in groups)


def _dated(engine: str) -> Any:
    """The module that knows the engine's releases; None where its rules do not depend on them."""
    return import_module(f"kvproof.engine.{_DATED[engine]}") if engine in _DATED else None


def _rules(engine: str, release: str) -> Any:
    find = getattr(_dated(engine), "rules_for", None)
    return release if find is None else msgspec.structs.replace(find(release), version=())


def planned_by(log: Log, release: str) -> str:
    """The release whose rules `release` followed when it printed the log."""
    if log.engine != "vllm":
        return release
    return str(_dated("vllm").planned_by(release, log.modules))


def engine_flags(log: Log, release: str) -> dict[str, bool]:
    """Which engine of a release with two printed the log, as the flag that asks for it."""
    if log.engine != "vllm" or not _dated("vllm").printed_by_v1(release, log.modules):
        return {}
    return {"use_v1": True}


def asked_share(log: Log) -> float:
    """The share of the GPU that the engine was given: by its flag, as printed, or its default.

    SGLang's default depends on card and flags; 0.9 stands for it here.
    """
    options = OPTIONS.get(log.engine)
    flag = _CONFIGURED if options is None else flag_of(options.share)
    given = log.flags.get(flag, log.flags.get(_CONFIGURED))
    if isinstance(given, int | float):
        return float(given)
    asked, total = log.value("requested_memory"), log.value("total_gpu_memory")
    if asked and total:
        return round(asked / total, 3)
    if log.engine != "vllm":
        return USUAL_SHARE
    dated = _dated("vllm")
    return float(dated.rules_at(dated.parse_version(log.version or log.wording.until)).utilization)


def candidates(log: Log) -> tuple[RuleSet, ...]:
    """The sets that the wording leaves, newest first, cut to the releases within it.

    All of them where it leaves none. Releases of after the log's day come last, the next one first:
    a build of the sources has their rules before they are published.
    """
    sets = tuple(reversed(rule_sets(log.engine)))
    allowed = _within(sets, lambda name: _allowed(log, name)) or sets
    out = _within(allowed, lambda name: not _later(log, name))
    return (*out, *reversed(_within(allowed, lambda name: _later(log, name))))


def _within(sets: Iterable[RuleSet], holds: Callable[[str], bool]) -> tuple[RuleSet, ...]:
    """The sets cut to the releases that `holds` is true of."""
    cut = (tuple(name for name in rules.releases if holds(name)) for rules in sets)
    return tuple(RuleSet(releases=names) for names in cut if names)


def _later(log: Log, release: str) -> bool:
    """Whether a release was published after the log was printed."""
    find = getattr(_dated(log.engine), "published", None)
    day = find(release) if find is not None and log.day else None
    return day is not None and log.day is not None and day > log.day


def _allowed(log: Log, release: str) -> bool:
    if planned_by(log, release) != release:
        return False
    if _blocks_counted(log) and _dated("vllm").rules_for(release).token_line != "blocks":
        return False
    if not _takes(log.engine, release, str(log.flags.get("kv_cache_dtype", "auto"))):
        return False
    return log.engine == "llamacpp" or any(map(log.wording.holds, _followers(log, release)))


def _followers(log: Log, release: str) -> Iterable[str]:
    """The releases that followed the rules of `release` when they printed the log.

    vLLM's V0 engine is planned by its last rules in later releases, whose wording is their own.
    """
    if log.engine != "vllm":
        return (release,)
    return (name for name in _dated("vllm").releases() if planned_by(log, name) == release)


@cache
def _takes(engine: str, release: str, dtype: str) -> bool:
    """Whether a release has the cache type that the log's flags ask for."""
    if engine == "llamacpp" or dtype == "auto":
        return True
    try:
        Deployment(f"{engine}@{release}", kv_cache_dtype=dtype)
    except KvproofError:
        return False
    return True


def _blocks_counted(log: Log) -> bool:
    """Whether vLLM's token line is plainly not concurrency x length, as it was before 0.20.1."""
    if log.engine != "vllm":
        return False
    row = next((row for row in ledger_rows(log) if row.name == TOKENS), None)
    return row is not None and not row.ok and abs(row.relative or 0) > _PLAIN


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The rules chosen for a log, and the line that says how."""

    release: str
    note: str


Compared = tuple[list[Comparison], tuple[Term, ...]]
Compare = Callable[[str], Compared | None]
"""The figures and the budget's terms by the rules of a release; None where nothing is predicted."""


def settle(log: Log, compare: Compare) -> Settled | None:
    """The newest set that gives the most of the printed figures; `compare` predicts by a release.

    None where the engine's rules do not depend on the release.
    """
    sets = candidates(log)
    if not sets:
        return None
    scored = [(rules, compare(rules.newest)) for rules in sets]
    known = [(rules, _score(log, found)) for rules, found in scored if found and found[0]]
    dated = f", dated {log.day}" if any(_later(log, rules.newest) for rules in sets) else ""
    head = f"no {log.program} version is named: {_wording(log)}{dated}"
    if not known:
        return Settled(release=sets[0].newest, note=f"{head}; the rules of {sets[0]} are used")
    best = min(score for _, score in known)
    fitting = [rules for rules, score in known if score == best]
    note = f"{head}; the rules of {fitting[0]} are used"
    if best[0]:
        return Settled(release=fitting[0].newest, note=f"{note}, but no rules give every figure")
    given = _given(next(found for rules, found in scored if rules is fitting[0]))
    if given is None:
        return Settled(release=fitting[0].newest, note=f"{note}: nothing printed tells them apart")
    if len(fitting) == len(known):
        return Settled(release=fitting[0].newest, note=f"{note}, all of which give {given}")
    order = _dated(log.engine).releases()
    in_time = sorted(sets, key=lambda rules: order.index(rules.newest), reverse=True)
    names = _joined(fitting, tuple(in_time))
    return Settled(release=fitting[0].newest, note=f"{note}; these give {given}: {names}")


def _given(found: Compared | None) -> str | None:
    """Which figures come out as printed where those that follow from others do; None for none."""
    rows = found[0] if found else []
    if all(row.ok for row in rows):
        return "the figures"
    return "the figures that follow from others" if any(row.exact for row in rows) else None


def _score(log: Log, found: Compared) -> tuple[int, bool, bool, float]:
    """Figures off that follow from others; graphs charged otherwise than printed; memory off; how
    far llama.cpp's compute buffers are from a build's graph, in hundredths of what is printed.
    """
    rows, terms = found
    charged = graphs_charged(log, _dated("vllm").utilizations())
    graphs = any("graph" in term.name.lower() for term in terms)
    return (
        sum(row.exact and not row.ok for row in rows),
        bool(terms) and charged is not None and charged != graphs,
        any(row.name == "available_kv_memory" and not row.ok for row in rows),
        round(sum(map(_missed, rows)), 2),
    )


def _missed(row: Comparison) -> float:
    """The share of a compute buffer that a build's rules miss; other rows count in other ways."""
    if not row.name.startswith(_COMPUTE) or abs(row.difference) <= row.step:
        return 0.0
    return _MISSED + min(1.0, abs(row.relative or 0.0))


def _joined(fitting: list[RuleSet], sets: tuple[RuleSet, ...]) -> str:
    """The fitting sets (newest first) as spans of releases, neighbours joined."""
    spans: list[list[str]] = []
    last = None
    for place, rules in enumerate(reversed(sets)):
        if rules not in fitting:
            continue
        if last == place - 1 and spans:
            spans[-1][1] = rules.newest
        else:
            spans.append([rules.releases[0], rules.newest])
        last = place
    return ", ".join(first if first == end else f"{first} to {end}" for first, end in spans)


def _wording(log: Log) -> str:
    counted = "; its tokens are not concurrency x length, as before 0.20.1"
    return _dated_by_words(log) + (counted if _blocks_counted(log) else "")


def _dated_by_words(log: Log) -> str:
    if log.wording.since is None and log.wording.until is None:
        return "any release's wording"
    quoted = " and ".join(f"{words.strip()!r}" for words in log.wording.because)
    return f"the wording {quoted} is that of {log.wording}"


def others(log: Log, name: str, compare: Compare) -> str:
    """The sets whose rules give the figure `name`, in words; empty where none does."""
    sets = tuple(reversed(rule_sets(log.engine)))
    fitting = [rules for rules in sets if _gives(compare(rules.newest), name)]
    return _joined(fitting, sets)


def _gives(found: Compared | None, name: str) -> bool:
    rows: Iterable[Comparison] = found[0] if found else ()
    return any(row.name == name and row.ok for row in rows)
