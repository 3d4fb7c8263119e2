"""probe: real servers on this machine, whose pages are given, kind and hostile."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

import kvproof
from kvproof.errors import HubError, InputError, KvproofError, UsageError
from kvproof.observe.probing.exposition import parse
from kvproof.observe.probing.fetch import LARGEST, Server
from kvproof.observe.probing.probe import probe
from kvproof.surfaces.cli import main
from kvproof.surfaces.cli.probe import probe as command

MODEL = "meta-llama/Llama-3.1-8B"
CACHE = (
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",'
    'gpu_memory_utilization="0.9",kv_cache_memory_bytes="None",num_gpu_blocks="27648",'
    'user_specified_block_size="False",%s} 1.0\n'
)
STATE = """# HELP vllm:num_requests_running Requests that run.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 2.0
vllm:num_requests_running{engine="1",model_name="a"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.5
vllm:prefix_cache_queries_total{engine="0"} 1000.0
vllm:prefix_cache_hits_total{engine="0"} 250.0
vllm:num_preemptions_total{engine="0"} 7.0
vllm:request_prompt_tokens_sum 4000.0
vllm:request_prompt_tokens_count 4.0
vllm:request_generation_tokens_sum 800.0
vllm:request_generation_tokens_count 4.0
vllm:time_to_first_token_seconds_bucket{le="0.1"} 0.0
vllm:time_to_first_token_seconds_bucket{le="0.3"} 10.0
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 10.0
vllm:time_to_first_token_seconds_count 10.0
vllm:time_to_first_token_seconds_sum 2.0
vllm:inter_token_latency_seconds_count 100.0
vllm:inter_token_latency_seconds_sum 0.8
"""


def models(name: str = MODEL, **more: object) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name, **more}]}).encode()


def vllm_pages(extra: str = 'x="y"', *, state: str = STATE) -> dict[str, bytes]:
    return {
        "/metrics": (CACHE % extra + state).encode(),
        "/version": b'{"version": "0.32.0"}',
        "/v1/models": models(root=MODEL, max_model_len=131072, owned_by="vllm"),
    }


@contextmanager
def serving(pages: dict[str, bytes], *, status: int = 200, **headers: str) -> Iterator[str]:
    """A server of these pages; everything else is 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(status if body is not None else 404)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def speaking(*parts: bytes, pause: float = 0.0) -> Iterator[str]:
    """A server that answers every connection with these bytes, slowly, whatever is asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def loop() -> None:
        while not ended.is_set():
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                try:
                    peer.recv(65536)
                    for part in parts:
                        peer.sendall(part)
                        ended.wait(pause)
                except OSError:
                    continue

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def row(found, name):
    return next(r for r in found.report.rows if r.name == name)


def test_vllms_blocks_tokens_and_state() -> None:
    extra = 'kv_cache_size_tokens="442368",kv_cache_max_concurrency="3.375"'
    with serving(vllm_pages(extra)) as url:
        found = probe(url, gpu="H100-80GB")
    model = kvproof.load_model(MODEL)
    flags = {"max_model_len": 131072, "gpu_memory_utilization": 0.9}  # as the pages say
    deployment = kvproof.Deployment("vllm@0.32", "H100-80GB", **flags)
    size = kvproof.capacity(model, deployment, 2**30).bytes_per_block
    capacity = kvproof.capacity(model, deployment, 27648 * size)
    assert found.ok
    assert row(found, "kv_cache_tokens").predicted == capacity.tokens == 442_368
    assert row(found, "max_concurrency").predicted == capacity.max_concurrency
    assert found.derived[0].value == 27648 * size
    assert found.derived[1].value == 27648 * size // 2
    budget = kvproof.budget(model, deployment)
    planned = kvproof.capacity(model, deployment, budget.kv_bytes).num_blocks
    assert row(found, "num_blocks").predicted == planned
    live = found.live
    assert (live.running, live.waiting, live.usage, live.preemptions) == (3, 4, 0.5, 7)
    assert live.prefix_hit_rate == 0.25
    first = live.latency("time to first token")
    assert (first.count, first.mean) == (10, 0.2)
    assert first.p50 == pytest.approx(0.2)
    assert live.mean_context == 1100


def test_the_time_of_a_token_lies_between_an_empty_and_a_full_server() -> None:
    with serving(vllm_pages()) as url:
        found = probe(url, gpu="H100-80GB")
    step = row(found, "time per output token")
    assert step.printed == 0.008
    assert 0 < step.low < step.predicted < step.high
    slow = STATE.replace("seconds_sum 0.8", "seconds_sum 80")
    with serving(vllm_pages(state=slow)) as url:
        assert not row(probe(url, gpu="H100-80GB"), "time per output token").ok


def test_the_block_size_is_the_reported_one() -> None:
    """vLLM on a CPU takes 128 where no flag says so (as a real 0.32 server told)."""
    pages = vllm_pages()
    pages["/metrics"] = (
        b'vllm:cache_config_info{block_size="128",effective_attention_block_size="128",'
        b'kv_cache_max_concurrency="512.0",kv_cache_memory_bytes="68719476736",'
        b'kv_cache_size_tokens="524288",num_gpu_blocks="4096",'
        b'user_specified_block_size="False"} 1.0\n'
    )
    pages["/v1/models"] = models(root=MODEL, max_model_len=1024, owned_by="vllm")
    with serving(pages) as url:
        found = probe(url)
    assert found.ok
    names = {r.name: (r.predicted, r.exact) for r in found.report.rows}
    assert names["num_blocks"] == (4096, True)
    assert names["kv_cache_tokens"] == (524_288, True)


def test_a_wrong_figure_is_off_and_the_status_says_so() -> None:
    with serving(vllm_pages('kv_cache_size_tokens="221184"')) as url:
        shown = CliRunner().invoke(command, [url], standalone_mode=False)
        assert shown.return_value == 1
        assert "Off: tokens in the cache" in shown.output
        told = CliRunner().invoke(command, [url, "--json"], standalone_mode=False)
    result = json.loads(told.stdout)["result"]
    assert result["ok"] is False
    assert result["live"]["running"] == 3
    (tokens,) = [r for r in result["rows"] if r["name"] == "kv_cache_tokens"]
    assert (tokens["printed"], tokens["predicted"], tokens["ok"]) == (221184, 442368, False)


def test_flags_that_no_page_tells_come_after_the_dashes() -> None:
    pages = vllm_pages('kv_cache_size_tokens="442368"')
    with serving(pages) as url:
        words = [url, "--json", "--", "--tensor-parallel-size", "4"]
        told = CliRunner().invoke(command, words, standalone_mode=False)
    result = json.loads(told.stdout)["result"]
    assert result["flags"]["tensor_parallel_size"] == 4
    assert result["derived"][0]["value"] == 27648 * 16 * 131072 // 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tp-size", "4"], None),
        (["--tensor-parallel-siz", "4", "--nope"], "SGLang flag"),
        (["vllm", "serve", MODEL], "starts vllm, not sglang"),
    ],
)
def test_flags_are_those_of_the_server_that_is_found(words: list[str], said: str | None) -> None:
    info = {"model_path": MODEL, "version": "0.5.9", "internal_states": [{}],
            "max_total_num_tokens": 400_000, "mem_fraction_static": 0.88}  # fmt: skip
    with serving({"/server_info": json.dumps(info).encode()}) as url:
        told = CliRunner().invoke(command, [url, "--json", "--", *words], standalone_mode=False)
    if said is None:
        assert json.loads(told.stdout)["result"]["flags"]["tp_size"] == 4
    else:
        assert said in str(told.exception)


def test_memory_that_was_asked_for_gives_the_blocks() -> None:
    model = kvproof.load_model(MODEL)
    deployment = kvproof.Deployment("vllm@0.32", max_model_len=131072)
    blocks = kvproof.capacity(model, deployment, 40 * 2**30).num_blocks
    pages = vllm_pages()
    pages["/metrics"] = (
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}",'
        f'kv_cache_memory_bytes="{40 * 2**30}"}} 1\n'.encode()
    )
    with serving(pages) as url:
        assert row(probe(url), "num_blocks").predicted == blocks


def test_sglangs_pool() -> None:
    tokens = 400_000
    info = {
        "model_path": MODEL,
        "version": "0.5.9",
        "tp_size": 1,
        "mem_fraction_static": 0.88,
        "page_size": 1,
        "max_total_num_tokens": tokens,
        "internal_states": [
            {"memory_usage": {"weight": 14.98, "kvcache": round(tokens * 131072 / 2**30, 2),
                              "token_capacity": tokens, "graph": 0.5}}
        ],
    }  # fmt: skip
    metrics = "sglang:num_running_reqs 2\nsglang:token_usage 0.5\nsglang:cache_hit_rate 0.1\n"
    with serving({"/server_info": json.dumps(info).encode(), "/metrics": metrics.encode()}) as url:
        found = probe(url)
    assert found.report.log.program == "SGLang"
    assert row(found, "kv_cache_tokens").ok
    assert (found.live.running, found.live.prefix_hit_rate) == (2, 0.1)


def test_llama_servers_model_and_slots() -> None:
    model = kvproof.load_model(MODEL)
    meta = {"n_params": model.parameters, "size": 16_060_522_496, "n_ctx_train": 131072}
    props = {"total_slots": 4, "model_path": "/models/Llama-3.1-8B", "build_info": "b11549-abc",
             "default_generation_settings": {"n_ctx": 8192}}  # fmt: skip
    slots = [{"id": i, "n_ctx": 8192, "is_processing": i == 0} for i in range(4)]
    pages = {"/props": json.dumps(props).encode(), "/slots": json.dumps(slots).encode(),
             "/v1/models": models(owned_by="llamacpp", meta=meta)}  # fmt: skip
    with serving(pages) as url:
        found = probe(url, MODEL)
    assert found.report.engine == "llamacpp@b11549"
    assert row(found, "parameters").ok
    assert found.live.running == 1
    assert found.report.log.value("slot_context") == 8192


@pytest.mark.parametrize(
    ("pages", "program"),
    [
        ({"/metrics": json.dumps([{"kvCacheStats": {"maxNumBlocks": 9, "tokensPerBlock": 32,
                                                    "usedNumBlocks": 3}}]).encode()},
         "TensorRT-LLM"),
        ({"/info": b'{"model_id": "a/b", "max_total_tokens": 9, "max_batch_total_tokens": 99}'},
         "TGI"),
        ({"/api/version": b'{"version": "0.16.0"}', "/api/ps": b'{"models": []}'}, "Ollama"),
    ],
)  # fmt: skip
def test_other_servers_are_recognised(pages: dict[str, bytes], program: str) -> None:
    with serving(pages) as url:
        assert probe(url, offline=True).report.log.program == program


def test_a_servers_paths_are_not_opened_here(tmp_path) -> None:
    """A path that is none here is looked up by its last part; no hub is asked either way."""
    pages = vllm_pages()
    pages["/v1/models"] = models(root="/data/models/nothing-known", max_model_len=4096)
    with serving(pages) as url:
        found = probe(url)
    assert found.report.model == "nothing-known"
    assert any("with each other only" in w for w in found.report.warnings)
    assert found.live.running == 3


def test_names_are_made_fit_to_print() -> None:
    pages = vllm_pages()
    pages["/v1/models"] = models("\x1b[31mred\n\x07", max_model_len=4096)
    pages["/version"] = json.dumps({"version": "0.32\x1b[2J"}).encode()
    with serving(pages) as url:
        shown = CliRunner().invoke(command, [url], standalone_mode=False)
    assert "\x1b" not in shown.output
    assert "\x07" not in shown.output


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(HubError, match="can't be reached"):
        probe(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("url", ["", "ftp://a", "http://", "http://a b", "http://[", "a:99999"])
def test_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="no address"):
        probe(url)


def test_an_address_may_end_in_v1_and_lack_its_scheme() -> None:
    with serving(vllm_pages()) as url:
        assert probe(f"{url}/v1/").url == url
        assert probe(url.removeprefix("http://")).url == url


def test_a_refused_key_says_what_to_give() -> None:
    with serving(vllm_pages(), status=401) as url, pytest.raises(UsageError, match="--api-key"):
        probe(url)


def test_the_key_is_sent() -> None:
    sent = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            sent.append(self.headers.get("Authorization"))
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        Server(f"http://127.0.0.1:{server.server_port}", key="abc").get("/metrics")
        thread.join()
    assert sent == ["Bearer abc"]


def test_redirects_are_not_followed() -> None:
    with (
        serving({"/v1/models": b""}, status=302, Location="http://elsewhere/x") as url,
        pytest.raises(InputError, match="redirects to http://elsewhere/x"),
    ):
        probe(url)


@pytest.mark.parametrize(
    "pages",
    [
        {},
        {"/metrics": b"\xff\xfe\x00" * 1000},
        {"/metrics": b"go_gc 1\n", "/v1/models": b"[]", "/version": b"<html>"},
        {"/metrics": b"vllm:x{" + b'a="' * 50_000 + b"\n", "/v1/models": b'{"data": 3}'},
        {"/v1/models": b"[" * 100_000, "/metrics": b"[" * 100_000},
        {"/metrics": b'[{"kvCacheStats": {"maxNumBlocks": -1}}, 3]', "/info": b'{"model_id": 3}'},
    ],
)
def test_pages_that_say_nothing_are_one_clear_line(pages: dict[str, bytes]) -> None:
    with serving(pages) as url:
        shown = CliRunner().invoke(command, [url, "--offline"], standalone_mode=False)
    if shown.exception is not None:
        assert isinstance(shown.exception, KvproofError)
        assert "\n" not in str(shown.exception)


@pytest.mark.parametrize("value", ["nan", "1e400", "-5", "999999999999999999999999", "x", "0"])
def test_absurd_counts(value: str) -> None:
    page = f'vllm:cache_config_info{{num_gpu_blocks="{value}",block_size="{value}"}} 1\n'
    page += f"vllm:num_requests_running {value}\nvllm:kv_cache_usage_perc {value}\n"
    with serving({"/metrics": page.encode(), "/v1/models": models()}) as url:
        shown = CliRunner().invoke(command, [url], standalone_mode=False)
    assert shown.exception is None or isinstance(shown.exception, KvproofError)


def test_too_long_a_page() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    with (
        speaking(head, *[b"a" * 2**20] * (LARGEST // 2**20 + 2)) as url,
        pytest.raises(InputError, match="longer than 16 MiB"),
    ):
        Server(url, timeout=60).get("/metrics")


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"HTTP/1.1 200 OK\r\n", *[b"X-%d: y\r\n" % i for i in range(99)]],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", *[b"a"] * 99],
        [b"SSH-2.0-server\r\n", b""],
    ],
)
def test_slow_or_strange_servers_end_in_time(parts: list[bytes]) -> None:
    with speaking(*parts, pause=0.1) as url:
        start = time.monotonic()
        with pytest.raises(HubError):
            Server(url, timeout=0.5).get("/metrics")
        assert time.monotonic() - start < 3


def test_the_statuses_of_the_command(capsys) -> None:
    with serving(vllm_pages()) as url, pytest.raises(SystemExit) as ended:
        main(["probe", url])
    assert ended.value.code == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SystemExit) as ended:
        main(["probe", f"http://127.0.0.1:{port}"])
    assert ended.value.code == 3
    with serving({}) as url, pytest.raises(SystemExit) as ended:
        main(["probe", url])
    assert ended.value.code == 2
    assert "no server that is known" in capsys.readouterr().err


def test_labels_with_escapes_and_lines_that_are_none() -> None:
    text = 'vllm:a{b="x\\"y",c="}{"} 3 1700000000\nvllm:a 4\nvllm:broken{\nother 5\nvllm:n NaN\n'
    found = parse(text, ("vllm:",)).all("vllm:a")
    assert [s.value for s in found] == [3.0, 4.0]
    assert dict(found[0].labels) == {"b": 'x"y', "c": "}{"}
