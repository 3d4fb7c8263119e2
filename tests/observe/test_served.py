"""What an Ollama server says of itself, where its runner's lines name no context."""

from __future__ import annotations

import pytest

import kvproof
from kvproof.observe.deploy import setup_of

SERVER = (
    'time=2026-05-03T11:36:56 level=INFO source=routes.go:1782 msg="server config" env="map['
    "HTTPS_PROXY: OLLAMA_CONTEXT_LENGTH:{context} OLLAMA_FLASH_ATTENTION:{flash} "
    'OLLAMA_KV_CACHE_TYPE:{kind} OLLAMA_LLM_LIBRARY: OLLAMA_NUM_PARALLEL:{parallel} ]"\n'
    "time=2026-05-03T11:36:57 level=INFO source=routes.go:1238 "
    'msg="Listening on 127.0.0.1:11434 (version 0.12.3)"\n'
)
KV = 'time=2026-05-03T11:36:58 source=memory.go msg=offload memory.required.kv="{kv}"\n'


@pytest.mark.parametrize(
    ("said", "kv", "flags"),
    [
        (("16384", "true", "q8_0", "1"), "1.2 GiB",
         {"ctx_size": 16384, "parallel": 1, "flash_attn": "on", "cache_type_k": "q8_0"}),
        (("8192", "false", "q8_0", "2"), "2.3 GiB", {"ctx_size": 16384, "parallel": 2}),
        (("4096", "true", "", "0"), "576.0 MiB", {"ctx_size": 4096, "parallel": 1}),
    ],
)  # fmt: skip
def test_a_servers_context_and_types_are_the_runners(
    said: tuple[str, ...], kv: str, flags: dict[str, object]
) -> None:
    context, flash, kind, parallel = said
    text = SERVER.format(context=context, flash=flash, kind=kind, parallel=parallel)
    log = kvproof.read_log(text + KV.format(kv=kv))
    setup = setup_of(log, "RTX-4090")
    assert {name: setup.deployment.flags.get(name) for name in flags} == flags
    assert ("cache_type_k" in flags) is ("cache_type_k" in setup.deployment.flags)
    assert any("OLLAMA_CONTEXT_LENGTH" in line for line in setup.assumptions)
    report = kvproof.check(log, model="Qwen/Qwen3-8B", gpu="RTX-4090")
    assert [(row.name, row.verdict) for row in report.rows] == [("base cache", "ok")]


def test_a_runners_own_context_wins() -> None:
    text = SERVER.format(context="16384", flash="true", kind="", parallel="1")
    log = kvproof.read_log(text + "llama_context: n_ctx         = 8192\n")
    deployment = setup_of(log, "RTX-4090").deployment
    assert "ctx_size" not in deployment.flags
    assert deployment.flags["n_ctx"] == 8192


def test_a_server_without_a_context_says_nothing_of_it() -> None:
    text = SERVER.format(context="0", flash="true", kind="", parallel="1")
    log = kvproof.read_log(text + KV.format(kv="1.1 GiB"))
    report = kvproof.check(log, model="Qwen/Qwen3-8B", gpu="RTX-4090")
    assert report.rows == ()
    assert any("num_ctx is not known" in line for line in report.warnings)
