"""The server: completions, streaming, refusals, and metrics under vLLM's names."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request

import pytest

torch = pytest.importorskip("torch")

from kvproof.errors import UsageError  # noqa: E402
from kvproof.lab.batching import Batcher  # noqa: E402
from kvproof.lab.generation import generate, pool_for  # noqa: E402
from kvproof.lab.serve import Engine, Server, make_server  # noqa: E402
from kvproof.observe.probing.probe import probe  # noqa: E402

pytestmark = pytest.mark.lab


class Letters:
    """A tokenizer for the random body: one token a byte."""

    stop = -1

    def encode(self, text):
        return [b % 211 for b in text.encode()]

    def decode(self, tokens):
        return "".join(f"<{t}>" for t in tokens)

    def chat(self, messages):
        return self.encode("".join(m["content"] for m in messages))


@pytest.fixture
def server(small):
    engine = Engine(Batcher(small, pool_for(small, 128, sequences=2)), Letters(), "small")
    server = Server(engine, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def post(url, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
        return answer.read().decode()


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def test_completions_are_the_generated_tokens(server, small):
    want = generate(small, Letters().encode("hello there"), 9).tokens
    body = {"prompt": "hello there", "max_tokens": 9}
    answer = json.loads(post(f"{server}/v1/completions", body))
    assert answer["choices"][0]["text"] == Letters().decode(want)
    assert answer["usage"]["completion_tokens"] == 9
    chat = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 9}
    told = json.loads(post(f"{server}/v1/chat/completions", chat))
    assert told["choices"][0]["message"]["content"] == Letters().decode(want)
    events = post(f"{server}/v1/completions", body | {"stream": True}).split("\n\n")
    parts = [json.loads(e[6:])["choices"][0]["text"] for e in events if e.startswith("data: {")]
    assert "".join(parts) == Letters().decode(want)
    assert "data: [DONE]" in events


def test_a_stop_string_ends_the_answer_before_it(server, small):
    want = Letters().decode(generate(small, Letters().encode("hello there"), 9).tokens)
    stop = want[want.index(">", 12) - 2 :][:5]  # from within one token's text into the next one's
    body = {"prompt": "hello there", "max_tokens": 9, "stop": [stop, "never"]}
    (choice,) = json.loads(post(f"{server}/v1/completions", body))["choices"]
    assert choice["text"] == want[: want.index(stop)]
    assert choice["finish_reason"] == "stop"
    events = post(f"{server}/v1/completions", body | {"stream": True}).split("\n\n")
    parts = [json.loads(e[6:])["choices"][0] for e in events if e.startswith("data: {")]
    assert "".join(p["text"] for p in parts) == want[: want.index(stop)]
    assert parts[-1]["finish_reason"] == "stop"


def test_parameters_that_change_nothing_are_taken(server):
    """As clients send them: their own defaults written out, or null."""
    body = {"prompt": ["hello there"], "max_tokens": 5, "n": None, "best_of": 1, "echo": False,
            "presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": None, "logprobs": None,
            "top_k": -1, "response_format": {"type": "text"}, "stop": None}  # fmt: skip
    plain = {"prompt": "hello there", "max_tokens": 5}
    first, second = (json.loads(post(f"{server}/v1/completions", b)) for b in (body, plain))
    assert first["choices"] == second["choices"]


def test_load_tests_ignore_the_end(server, small, monkeypatch):
    tokens = generate(small, Letters().encode("hello there"), 9).tokens
    monkeypatch.setattr(Letters, "stop", tokens[3])
    body = {"prompt": "hello there", "max_tokens": 9}
    ends = [json.loads(post(f"{server}/v1/completions", body | more)) for more in
            ({}, {"ignore_eos": True})]  # fmt: skip
    first = tokens.index(tokens[3]) + 1
    assert [e["usage"]["completion_tokens"] for e in ends] == [first, 9]
    assert [e["choices"][0]["finish_reason"] for e in ends] == ["stop", "length"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_in_a_step_leaves_nobody_waiting(small, monkeypatch):
    batcher = Batcher(small, pool_for(small, 128, sequences=2))
    monkeypatch.setattr(batcher, "step", lambda: 1 / 0)
    engine = Engine(batcher, Letters(), "small")
    assert list(engine.submit([1, 2, 3], 5)) == []
    engine.close()
    with pytest.raises(UsageError, match="stopping"):
        engine.submit([1, 2, 3], 5)


def test_a_name_of_any_characters_is_a_label(small):
    engine = Engine(Batcher(small, pool_for(small, 128)), Letters(), 'a "b" \\ c\nd')
    engine.close()
    text = engine.metrics.text()
    assert 'model_name="a \\"b\\" \\\\ c\\nd",engine="0"' in text


def test_a_seed_repeats_a_sampled_answer(server):
    body = {"prompt": "hello there", "max_tokens": 12, "temperature": 1.5, "top_p": 0.95}

    def answer(seed):
        return json.loads(post(f"{server}/v1/completions", body | {"seed": seed}))["choices"][0]

    assert answer(1)["text"] == answer(1)["text"]
    assert len({answer(seed)["text"] for seed in range(4)}) > 1


def test_usage_comes_with_a_stream_that_asks(server):
    body = {"prompt": "hello there", "max_tokens": 4, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    events = post(f"{server}/v1/completions", body).split("\n\n")
    last = json.loads([e[6:] for e in events if e.startswith("data: {")][-1])
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}


def test_metrics_have_vllms_names(server):
    post(f"{server}/v1/completions", {"prompt": "hello there", "max_tokens": 4})
    text = get(f"{server}/metrics")
    labels = 'model_name="small",engine="0"'
    assert f'vllm:request_success_total{{{labels},finished_reason="length"}} 1' in text
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                 "num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
                 "prompt_tokens_total", "generation_tokens_total"):  # fmt: skip
        kind = "counter" if name.endswith("_total") else "gauge"
        assert f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} " in text
    for name, count in (("time_to_first_token_seconds", 1), ("inter_token_latency_seconds", 3),
                        ("e2e_request_latency_seconds", 1)):  # fmt: skip
        assert f'vllm:{name}_bucket{{{labels},le="+Inf"}} {count}' in text
        assert f"vllm:{name}_count{{{labels}}} {count}" in text
    assert json.loads(get(f"{server}/v1/models"))["data"][0]["id"] == "small"


def test_probe_compares_the_pool_with_the_plan(server, small):
    post(f"{server}/v1/completions", {"prompt": "hello there", "max_tokens": 4})
    found = probe(server, small.body.config)
    assert found.report.log.program == "kvproof lab"
    (blocks,) = [row for row in found.report.rows if row.name == "num_blocks"]
    assert blocks.exact
    assert blocks.printed == blocks.predicted == 16
    assert found.live.latency("time to first token").count == 1
    assert found.live.latency("time per output token").count == 1
    wrong = small.body.config | {"num_hidden_layers": 3}
    assert not probe(server, wrong).ok


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        {"prompt": 3},
        {"prompt": "x" * 999},
        {"prompt": "x", "max_tokens": "9"},
        {"prompt": "x", "temperature": "hot"},
        {"prompt": "x", "top_p": 2},
        {"prompt": "x", "stop": [1]},
        {"prompt": "x", "n": 2},
        {"prompt": "x", "frequency_penalty": 0.5},
        {"prompt": "x", "logit_bias": {"5": 100}},
        {"prompt": "x", "response_format": {"type": "json_object"}},
        {"prompt": "x", "max_tokens": 0},
        {"prompt": "half a pair: \ud800"},
        {"prompt": ["x", "y"]},
        b"[" * 100_000,
    ],
)
def test_wrong_requests_are_told_so(server, body):
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(f"{server}/v1/completions", body)
    with caught.value as error:
        assert error.code == 400
        assert json.loads(error.read())["error"]["message"]


@pytest.mark.parametrize(
    "messages",
    [None, [], ["x"], [{"role": "user"}], [{"role": "user", "content": [{"type": "image_url"}]}]],
)
def test_wrong_conversations_are_told_so(server, messages):
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(f"{server}/v1/chat/completions", {"messages": messages})
    with caught.value as error:
        assert error.code == 400
        assert "message" in json.loads(error.read())["error"]["message"]


def test_parts_of_text_are_one_text(server):
    """As chat clients and load tests send them."""
    plain = [{"role": "user", "content": "hello there"}]
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]
    texts = [
        json.loads(post(f"{server}/v1/chat/completions", {"messages": m, "max_tokens": 5}))
        for m in (plain, [{"role": "user", "content": parts}])
    ]
    first, second = (answer["choices"][0]["message"]["content"] for answer in texts)
    assert first == second
    events = post(f"{server}/v1/chat/completions",
                  {"messages": plain, "max_tokens": 5, "stream": True}).split("\n\n")  # fmt: skip
    deltas = [json.loads(e[6:])["choices"][0]["delta"] for e in events if e.startswith("data: {")]
    assert [d.get("role") for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(d["content"] for d in deltas) == first


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
        b"POST /nowhere HTTP/1.1\r\nContent-Length: 30\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
        b"PUT /v1/completions HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_a_body_that_is_not_read_is_no_second_request(server, head, capfd):
    with socket.create_connection(("127.0.0.1", int(server.rpartition(":")[2])), 60) as line:
        line.sendall(head)
        line.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: line.recv(4096), b"")).decode()
    assert answer.count("HTTP/1.1 ") + answer.startswith("{") == 1
    assert json.loads(answer.rpartition("\r\n")[2])["error"]["message"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_taken_port_is_one_clear_error(server):
    with pytest.raises(UsageError, match="can't be had"):
        make_server(port=int(server.rpartition(":")[2]))


def test_closing_ends_open_answers_and_idle_connections(small):
    """Nobody is left waiting, and no thread is left running."""
    engine = Engine(Batcher(small, pool_for(small, 2000, sequences=2)), Letters(), "small")
    server = Server(engine, 0)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    url = f"http://127.0.0.1:{server.server_port}"
    body = json.dumps({"prompt": "hello", "max_tokens": 1900, "stream": True}).encode()
    idle = socket.create_connection(("127.0.0.1", server.server_port), 60)
    answer = urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body))
    with idle, answer:
        assert answer.readline().startswith(b"data: ")
        server.shutdown()
        server.server_close()
        serving.join()
        assert answer.read().endswith(b"data: [DONE]\n\n")
        assert idle.recv(1) == b""
    assert not [t for t in threading.enumerate() if "process_request" in t.name]
