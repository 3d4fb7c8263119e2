"""The same figures are found whatever a log came in: encodings, wrappings, noise."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvproof
from kvproof.errors import InputError

LINES = (
    "INFO 11-20 09:00:00 [api_server.py:1839] vLLM API server version 0.11.2",
    "INFO 11-20 09:00:00 [utils.py:233] non-default args: {'model': 'org/name', 'max_model_len': "
    "8192, 'tensor_parallel_size': 2}",
    "(Worker_TP0 pid=77) INFO [gpu_model_runner.py:2653] Model loading took 16.9619 GiB and 9.4 "
    "seconds",
    '(Worker_TP0 pid=77) INFO [gpu_worker.py:298] "Available KV cache memory: 13.10 GiB"',
    "(Worker_TP1 pid=78) INFO [gpu_worker.py:298] Available KV cache memory: 13.08 GiB",
    "(EngineCore_DP0 pid=70) INFO [kv_cache_utils.py:1229] GPU KV cache size: 245,360 tokens",
    "(EngineCore_DP0 pid=70) INFO [kv_cache_utils.py:1234] Maximum concurrency for 8,192 tokens "
    "per request: 29.95x",
)
TEXT = "\n".join(LINES) + "\n"


def found(log: Any) -> list[tuple[str, float, str | None]]:
    return [(f.name, f.value, f.worker) for f in log.figures]


EXPECTED = found(kvproof.read_log(TEXT))


def same(data: bytes) -> None:
    log = kvproof.read_log(io.BytesIO(data))
    assert found(log) == EXPECTED
    assert (log.engine, log.version, log.model) == ("vllm", "0.11.2", "org/name")
    assert log.flags["tensor_parallel_size"] == 2


def docker(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-29T10:00:00Z"})


def journal(line: str) -> str:
    return json.dumps({"MESSAGE": list(f"\x1b[32m{line}".encode()), "_PID": "912", "PRIORITY": "6"})


def collector(line: str) -> str:
    return json.dumps({"kubernetes": {"pod": "x"}, "message": f"\x1b[0;36m{line}\x1b[0m"})


ENCODED: dict[str, Callable[[str], bytes]] = {
    "utf-8 with a mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "utf-16 with a mark": lambda text: text.encode("utf-16"),
    "utf-16 big-endian with a mark": lambda t: codecs.BOM_UTF16_BE + t.encode("utf-16-be"),
    "utf-16 without": lambda text: text.encode("utf-16-le"),
    "windows line ends": lambda text: text.replace("\n", "\r\n").encode(),
    "old mac line ends": lambda text: text.replace("\n", "\r").encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip of utf-16": lambda text: gzip.compress(text.encode("utf-16")),
    "docker's json": lambda text: "\n".join(map(docker, text.splitlines())).encode(),
    "journald's json": lambda text: "\n".join(map(journal, text.splitlines())).encode(),
    "a collector's json": lambda text: "\n".join(map(collector, text.splitlines())).encode(),
    "one json object": lambda text: json.dumps({"log": text}).encode(),
    "a progress bar before each line": lambda text: "".join(
        f"Loading shards:  50% 1/2\rLoading shards: 100% 2/2\r{line}\n"
        for line in text.splitlines()
    ).encode(),
    "colours with colons and links": lambda text: "".join(
        f"\x1b[38;2;10;20;30m\x1b]8;;file://x\x07{line}\x1b[K\x1b[?25h\x1b[0m\n"
        for line in text.splitlines()
    ).encode(),
    "no end of the last line": lambda text: text.rstrip("\n").encode(),
}


@pytest.mark.parametrize("form", ENCODED)
def test_the_form_of_the_file_does_not_matter(form: str) -> None:
    same(ENCODED[form](TEXT))


def test_a_gzip_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    assert found(kvproof.read_log(path)) == EXPECTED


NOISE = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=60),
        st.sampled_from(
            [
                'INFO: 10.0.0.1:99 - "POST /v1/completions HTTP/1.1" 200 OK',
                '  File "x.py", line 3, in forward',
                "Capturing CUDA graphs (FULL):  43%|####3     | 15/35 [00:01<00:02,  9.1it/s]",
                "INFO Engine 000: Avg prompt throughput: 1.0 tokens/s, GPU KV cache usage: 3.2%",
                "{" * 40,
                '{"level": "info", "ts": 1.5}',
            ]
        ),
    ),
    max_size=4,
)
PREFIX = st.one_of(
    st.sampled_from(
        ["", "2026-11-29T10:00:00.123456789Z stdout F ", "llm-1  | ", "[pod/llm-0/server] ",
         "Nov 29 10:00:00 box vllm[912]: ", "\x1b[2m10:00:00\x1b[0m ", "<14>1 2026-11-29 box - - "]
    ),
    st.integers(0, 10**6).map(lambda n: f"[{n}] "),
)  # fmt: skip


@given(st.lists(NOISE, min_size=len(LINES), max_size=len(LINES)), PREFIX)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_noise_and_prefixes_change_no_figure(noise: list[list[str]], prefix: str) -> None:
    words = ("kv", "gib", "token", "graph", "weight", "memory", "gpu", "concurrency", "block")
    out = []
    for others, line in zip(noise, LINES, strict=True):
        out += [x for x in others if "usage" in x or not any(w in x.lower() for w in words)]
        out.append(prefix + line)
    text = "\n".join(out) + "\n"
    assert found(kvproof.read_log(text)) == EXPECTED


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(TEXT.encode())[:-9], "end"),
        (b"\x1f\x8b" + b"x" * 50, "can't be read"),
        (b"BZh91AY&SY", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"PK\3\4rest", "zip"),
        (b"a\0b" * 20, "not a text log"),
    ],
)
def test_what_cannot_be_unpacked_is_one_clear_line(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        kvproof.read_log(io.BytesIO(data))
    assert "\n" not in str(caught.value)


def test_a_million_json_lines_take_seconds() -> None:
    block = "".join(
        docker(f'INFO: 10.0.0.1:{n} - "POST /v1/completions HTTP/1.1" 200 OK') + "\n"
        for n in range(10_000)
    ).encode()
    began = time.process_time()
    log = kvproof.read_log(io.BytesIO(docker(LINES[4]).encode() + b"\n" + block * 100))
    assert len(log.figures) == 1
    assert time.process_time() - began < 20


def test_a_hundred_megabytes_in_one_line_are_bounded() -> None:
    began = time.process_time()
    log = kvproof.read_log(
        io.BytesIO(TEXT.encode() + b"Available KV cache memory 1,1 " * 3_500_000)
    )
    assert found(log)[: len(EXPECTED)] == EXPECTED
    assert time.process_time() - began < 10
