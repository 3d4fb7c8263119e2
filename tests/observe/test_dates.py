"""Which releases a wording allows, and the rule sets that follow."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import kvproof
from kvproof.engine.release import shown
from kvproof.engine.vllm.versions import NEWEST
from kvproof.observe.dates import span, wording
from kvproof.observe.formats import rows
from kvproof.observe.releases import asked_share, candidates, rule_sets

# Releases that the posts state otherwise than their lines: shortened or rounded by hand.
QUOTED = {"log101", "log110", "log266", "log301"}


@pytest.mark.parametrize(
    ("versions", "inside", "outside"),
    [
        ("0.6.5-0.10.2", ("0.6.5", "0.7.3", "0.10.2"), ("0.6.4", "0.10.3", "0.11.0")),
        ("0.9.1-0.13", ("0.9.1", "0.13.0", "0.13.5"), ("0.9.0", "0.14.0")),
        ("0.14+", ("0.14.0", "0.33.0", "1.0.0"), ("0.13.9", "0.9.2")),
        ("0.6.4", ("0.6.4",), ("0.6.3", "0.6.5", "0.7.0")),
        ("any", ("0.1.0", "9.9.9"), ()),
        ("2024+", ("0.1.0", "9.9.9"), ()),
        ("0.11+ on CPU", ("0.11.0",), ("0.10.2",)),
    ],
)
def test_spans(versions: str, inside: tuple[str, ...], outside: tuple[str, ...]) -> None:
    found = span([wording(versions, "words")])
    assert all(found.holds(release) for release in inside)
    assert not any(found.holds(release) for release in outside)


def test_wordings_meet_and_contradictions_date_nothing() -> None:
    both = span([wording("0.9.1+", "a"), wording("0.8.1-0.11.0", "b"), wording("0.7+", "c")])
    assert (both.since, both.until, both.because) == ("0.9.1", "0.11.0", ("a", "b"))
    assert str(span([wording("0.14+", "a"), wording("0.6.5-0.10.2", "b")])) == "any release"


def test_every_rows_releases_can_be_read() -> None:
    for row in rows():
        text = row.row.versions
        plain = re.match(r"\d+\.\d", text)
        assert not plain or wording(text, "").since is not None, text


def test_published_logs_lie_within_the_span_of_their_wording(data_dir: Path) -> None:
    seen = 0
    for line in (data_dir / "logs" / "engine_startups.jsonl").read_text().splitlines():
        record = json.loads(line)
        stated = re.fullmatch(r"(\d+\.\d+\.\d+)(?:(?:rc|\.post|\.dev|\+)[^/]*)?",
                              record.get("engine_version") or "")  # fmt: skip
        if record["engine"] != "vllm" or stated is None or stated[1].startswith("0.1."):
            continue
        log = kvproof.read_log("\n".join(record["lines"]) + "\n")
        assert log.wording.holds(stated[1]) or record["id"] in QUOTED, record["id"]
        seen += log.wording.since is not None
    assert seen > 20


def test_rule_sets_cover_every_release_once() -> None:
    for engine in ("vllm", "sglang", "tensorrt_llm", "llamacpp"):
        releases = [name for rules in rule_sets(engine) for name in rules.releases]
        assert len(releases) == len(set(releases)) > 3


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_every_dated_row_leaves_a_rule_set(engine: str) -> None:
    releases = [name for rules in rule_sets(engine) for name in rules.releases]
    dated = [(row.row, wording(row.row.versions, "")) for row in rows() if row.engine == engine]
    for row, found in dated:
        if found.since is None or (found.until is not None and found.until < (0, 5)):
            continue  # undated, or of releases older than any whose rules were read
        within = span([found])
        assert any(within.holds(release) for release in releases), row


def test_v0_lines_leave_only_v0_rules() -> None:
    text = (
        "INFO model weights take 14.25GiB; non_torch_memory takes 0.10GiB; PyTorch activation peak "
        "memory takes 1.09GiB; the rest of the memory reserved for KV Cache is 5.77GiB.\n"
    )
    found = candidates(kvproof.read_log(text))
    assert {rules.newest[:3] for rules in found} <= {"0.6", "0.7"}


@pytest.mark.parametrize(("tokens", "dated"), [("37,392", True), ("401,080", False)])
def test_tokens_that_are_not_concurrency_x_length_are_of_before_0_20_1(
    tokens: str, dated: bool
) -> None:
    """gemma-4-31B printed 37,392 tokens beside 1.53x at 262,144 (vllm-project/vllm#39734)."""
    text = (
        "INFO Available KV cache memory: 31.21 GiB\n"
        f"INFO GPU KV cache size: {tokens} tokens\n"
        "INFO Maximum concurrency for 262,144 tokens per request: 1.53x\n"
    )
    found = [name for rules in candidates(kvproof.read_log(text)) for name in rules.releases]
    assert "0.20.0" in found
    assert ("0.20.1" not in found) == dated
    said = " ".join(kvproof.check(text, "Qwen/Qwen3-14B", "H100-80GB").assumptions)
    assert ("not concurrency x length" in said) == dated


def test_a_cache_type_dates_a_log_that_names_no_release() -> None:
    text = (
        "[2026-09-01 TP0] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1, "
        "kv_cache_dtype='fp4_e2m1')\n"
        "[2026-09-01 TP0] Load weight end. avail mem=70.80 GB, mem usage=7.70 GB.\n"
    )
    found = [name for rules in candidates(kvproof.read_log(text)) for name in rules.releases]
    assert set(found) == {f"0.5.{patch}" for patch in range(5, 16)}
    odd = candidates(kvproof.read_log(text.replace("fp4_e2m1", "fp3_magic")))
    assert len(odd) == len(rule_sets("sglang"))  # no release takes it: all are left


@pytest.mark.parametrize(
    ("lines", "share"),
    [
        ("vLLM API server version 0.11.0\n", 0.9),
        ("vLLM API server version 0.21.0\n", 0.92),
        ("Available KV cache memory: 3.10 GiB, as 0.9.1 to 0.13 round it\n", 0.9),
        (
            "vLLM API server version 0.21.0\nnon-default args: {'gpu_memory_utilization': 0.5}\n",
            0.5,
        ),
    ],
)
def test_the_share_that_was_asked_for(lines: str, share: float) -> None:
    text = f"{lines}INFO Available KV cache memory: 3.15 GiB\n"
    assert asked_share(kvproof.read_log(text)) == share


def test_a_span_of_releases_ends_with_one_that_was_published() -> None:
    spans = [str(rules) for rules in rule_sets("vllm")]
    assert spans[-1].endswith(shown(NEWEST))
    assert "0.27.0 to 0.27.1" in spans
    assert "0.30.0" in spans


@pytest.mark.parametrize(
    ("platform", "within", "beyond"), [("GPU", "0.5.4", "0.7.0"), ("cuda", "0.8.5", "0.6.6")]
)
def test_blocks_are_called_by_the_platform_since_0_7(
    platform: str, within: str, beyond: str
) -> None:
    text = "INFO model_runner.py:732] Loading model weights took 2.3463 GB\n"
    log = kvproof.read_log(text + f"INFO # {platform} blocks: 22982, # CPU blocks: 6241\n")
    assert log.wording.holds(within)
    assert not log.wording.holds(beyond)
