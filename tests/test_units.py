from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.errors import UsageError, unknown_name
from kvproof.units import (
    parse_bytes,
    parse_rate,
    parse_token_list,
    parse_tokens,
    show_bytes,
    show_context,
    show_count,
    show_seconds,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("80 GB", 80 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1e9", 10**9),
        ("3g", 3 * 2**30),
        ("4Gi", 4 * 2**30),
        ("1,024", 1024),
        (7, 7),
        (16.06e9, 16_060_000_000),
    ],
)
def test_sizes(text: str | float, size: int) -> None:
    assert parse_bytes(text) == size


def test_tokens_and_ranges() -> None:
    assert parse_tokens("32k") == 32_768
    assert parse_tokens("1M") == 2**20
    assert parse_token_list("4k,1000") == (4096, 1000)
    assert parse_token_list("4k..32k") == (4096, 8192, 16384, 32768)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("3.35TB/s", 3.35e12), ("989TFLOP/s", 989e12), ("989TFLOPS", 989e12), ("5", 5.0)],
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "GiB", "-4k", "nan", "inf", "12 parsecs", "9" * 300, "1e999"])
@pytest.mark.parametrize("parse", [parse_bytes, parse_tokens, parse_rate])
def test_nonsense_is_one_clear_line(text: str, parse: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["32k..4k", "0..8k", "", "a..b", "4k..8k..16k"])
def test_ranges_that_do_not_rise(text: str) -> None:
    with pytest.raises(UsageError):
        parse_token_list(text)


@given(st.integers(min_value=0, max_value=2**60))
def test_every_size_is_shown(size: int) -> None:
    assert show_bytes(size).split()[1] in ("B", "KiB", "MiB", "GiB", "TiB")
    assert parse_bytes(f"{size}B") == size


def test_what_people_read() -> None:
    assert show_bytes(2**30) == "1.00 GiB"
    assert show_count(8_030_261_248) == "8.03B"
    assert show_count(671e9) == "671B"
    assert [show_context(n) for n in (4096, 131072, 2**20, 1000)] == ["4k", "128k", "1M", "1,000"]
    assert show_seconds(0.0099) == "9.9 ms"


def test_only_near_names_are_offered() -> None:
    known = ["--rope-scaling", "--max-model-len", "--max-log-len", "--tensor-parallel-size"]
    assert unknown_name("flag", "--no-such-flag", known, see="see --help").hint == "see --help"
    offered = unknown_name("flag", "--max-model-length", known, see="see --help").hint
    assert offered == "did you mean --max-model-len? see --help"
