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


START = 'time=2025-01-16T04:29:50.909Z level=INFO source=server.go:376 msg="starting {what}" cmd="'


@pytest.mark.parametrize(
    ("what", "options", "flags"),
    [
        ("llama server", "ollama_llama_server runner --model /x/sha256-d --ctx-size 8192 "
         "--batch-size 256 --n-gpu-layers 29 --threads 104 --parallel 4 --port 38609",
         {"n_ctx": 8192, "parallel": 4, "ubatch_size": 256}),
        ("ollama runner", "ollama runner --model /x/sha256-d --ctx-size 4096 --flash-attn "
         "--kv-cache-type q8_0 --parallel 1",
         {"n_ctx": 4096, "parallel": 1, "flash_attn": "on", "cache_type_k": "q8_0",
          "cache_type_v": "q8_0"}),
        ("runner", "ollama runner --ollama-engine --model /x/sha256-d --port 39873", {}),
    ],
)  # fmt: skip
def test_a_runners_command_line_is_read(what: str, options: str, flags: dict[str, object]) -> None:
    text = START.format(what=what) + options + '"\n' + KV.format(kv="896.0 MiB")
    assert kvproof.read_log(text).flags == flags


REQUEST = (
    'time=2025-08-24T08:33:16.089Z level=INFO source=runner.go:925 msg=load request="{{Operation:'
    "{kind} LoraPath:[] Parallel:{parallel} BatchSize:512 FlashAttention:{flash} KvSize:{size} "
    "KvCacheType:{stored} NumThreads:32 GPULayers:37[ID:GPU-62 Layers:37(0..36)] "
    'MultiUserCache:false ProjectorPath: MainGPU:0 UseMmap:false}}"\n'
)


def test_a_request_for_a_load_names_the_context() -> None:
    """The request that ends a runner, which asks for nothing, says nothing of it."""
    closed = REQUEST.format(kind="close", parallel=0, flash="false", size=0, stored="")
    asked = REQUEST.format(kind="fit", parallel=2, flash="Enabled", size=8192, stored="q8_0")
    report = kvproof.check(closed + asked + closed + KV.format(kv="612.0 MiB"), "Qwen/Qwen3-8B")
    assert [(row.name, row.verdict) for row in report.rows] == [("base cache", "ok")]
    assert not any("num_ctx" in line for line in report.warnings)


def test_a_server_without_a_context_says_nothing_of_it() -> None:
    text = SERVER.format(context="0", flash="true", kind="", parallel="1")
    log = kvproof.read_log(text + KV.format(kv="1.1 GiB"))
    report = kvproof.check(log, model="Qwen/Qwen3-8B", gpu="RTX-4090")
    assert report.rows == ()
    assert any("num_ctx is not known" in line for line in report.warnings)
