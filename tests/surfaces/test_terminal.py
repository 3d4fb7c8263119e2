"""Narrow terminals, plain locales, colours, and errors as documents."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kvproof.surfaces.terminal import json_for_stream, length
from kvproof.surfaces.text import bar, table

LLAMA = "meta-llama/Llama-3.1-8B"
COMMANDS = (
    ("plan", LLAMA, "--gpu", "H100-80GB", "--explain"),
    ("cache", LLAMA),
    ("capacity", LLAMA, "--kv-bytes", "40GiB"),
    ("compare", LLAMA, "Qwen/Qwen3-8B", "--gpu", "H100-80GB"),
    ("gpus", "blackwell"),
)


def kvproof(*args: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "COLUMNS"))}
    return subprocess.run(
        [sys.executable, "-m", "kvproof", *args],
        capture_output=True,
        timeout=120,
        check=False,
        env={**kept, **environment},
    )


@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: args[0])
def test_columns_are_kept(args: tuple[str, ...]) -> None:
    done = kvproof(*args, COLUMNS="64")
    assert done.returncode == 0, done.stderr
    command = False
    for line in done.stdout.decode().splitlines():
        command = line == "Command" or (command and line.startswith("  "))
        words_fit = all(len(word) < 50 for word in line.split())
        assert len(line) <= 64 or command or not words_fit, line
    wide = kvproof(*args)
    assert figures(wide.stdout) == figures(done.stdout)


def figures(raw: bytes) -> set[str]:
    return {word for word in raw.decode().split() if any(sign.isdigit() for sign in word)}


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}, {"LANG": "C"},
                    {"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}],
)  # fmt: skip
@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: args[0])
def test_plain_locales_get_plain_signs(args: tuple[str, ...], environment: dict[str, str]) -> None:
    done = kvproof(*args, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert done.stderr.isascii()
    if args[0] == "plan":
        assert b"####" in done.stdout


def test_json_stays_json_in_ascii() -> None:
    done = kvproof(*COMMANDS[0], "--json", PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout) == json.loads(kvproof(*COMMANDS[0], "--json").stdout)


def test_escapes_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", type("S", (), {"encoding": "ascii"})())
    text = json.dumps({"a": "é µ 🙂"}, ensure_ascii=False)
    assert json_for_stream(text).isascii()
    assert json.loads(json_for_stream(text)) == json.loads(text)


def test_colours_are_asked_for_or_not() -> None:
    assert b"\x1b[" not in kvproof(*COMMANDS[1]).stdout
    assert b"\x1b[" in kvproof(*COMMANDS[1], FORCE_COLOR="1").stdout
    assert b"\x1b[" not in kvproof(*COMMANDS[1], FORCE_COLOR="1", NO_COLOR="1").stdout


def test_tables_count_what_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = table(["a", "b"], [["x", "\x1b[31moff\x1b[0m"], ["y", "offset"]]).splitlines()
    assert len({length(line) for line in lines}) == 1
    prose = table(["a", "b", "because"], [["x", "1", "long words"], ["y", "2", "z"]], prose=True)
    assert prose.splitlines()[2] == "  y  2  z"
    monkeypatch.setenv("COLUMNS", "30")
    assert len(bar([("#", 1.0), ("=", 2.0)])) == 28


@pytest.mark.parametrize(
    ("args", "command", "code"),
    [
        ((LLAMA, "--gpu", "H1OO"), "plan", 2),
        (("capacity", LLAMA), "capacity", 2),
        (("cache", "nothing/here.json"), "cache", 2),
        (("gpus", "nosuchgpu"), "gpus", 2),
        (("--json",), "plan", 2),
    ],
)
def test_errors_are_documents_too(args: tuple[str, ...], command: str, code: int) -> None:
    done = kvproof(*args, "--json")
    assert done.returncode == code
    assert not done.stdout
    document = json.loads(done.stderr)
    assert document["schema_version"] == 1
    assert document["kvproof"]
    assert document["command"] == command
    assert document["error"]["code"] == code
    assert document["error"]["message"]
