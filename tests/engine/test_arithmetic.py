"""A shell's sums, as bash works them out, and what stays as it is written."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.engine.arithmetic import worked_out
from kvproof.engine.shell import simple_commands
from kvproof.surfaces.cli import main

NUMBERS = st.integers(min_value=0, max_value=40)
SUMS = st.recursive(
    NUMBERS.map(str),
    lambda part: st.one_of(
        st.tuples(part, st.sampled_from("+-*/%"), part).map(lambda x: f"({x[0]} {x[1]} {x[2]})"),
        part.map(lambda x: f"-{x}" if x[0] != "-" else x),
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(SUMS)
def test_sums_are_those_of_a_shell(expression: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"echo $(({expression}))"], capture_output=True, text=True, check=False
    )
    expected = int(done.stdout) if done.returncode == 0 else None
    if len(expression) <= 200:
        assert worked_out(expression, {}) == expected


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("vllm serve m --max-model-len=$((32*1024))", "--max-model-len=32768"),
        ("vllm serve m --max-model-len $(( (L + 1) * 1024 ))", "17408"),
        ('vllm serve m --max-model-len "$(($L*1024))"', "16384"),
        ("vllm serve m --max-model-len $((${L} << 10))", "16384"),
        ("vllm serve m --max-model-len=$((UNSET*1024))", "--max-model-len=$((UNSET*1024))"),
        ("vllm serve m --max-model-len=$(nproc)", "--max-model-len=$(nproc)"),
        ("vllm serve m --max-model-len='$((1+1))'", "--max-model-len=$((1+1))"),
    ],
)
def test_words_with_sums(text: str, word: str) -> None:
    (command,) = simple_commands(f"L=16; {text}")
    assert command.words[-1] == word


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1/0",
        "2**9",
        "x",
        "1 if 1 else 2",
        "f(1)",
        "1.5",
        "9" * 40,
        "1<<99",
        "(" * 150 + "1",
        "1if 1else 2",
        "a" * 150 + "!",
    ],
)
def test_what_is_no_sum_has_no_value(text: str) -> None:
    assert worked_out(text, {}) is None


def test_a_command_substitution_is_named_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--gpu", "H100", "--", "vllm serve Qwen/Qwen3-8B --max-model-len=$(nproc)"])
    assert ended.value.code == 2
    assert "$(nproc)" in capsys.readouterr().err
