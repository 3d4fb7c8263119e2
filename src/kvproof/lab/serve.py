"""A small OpenAI-compatible server over the batcher, with the metric names that vLLM users know.

    GET  /health  /v1/models  /metrics  /version
    POST /v1/completions  /v1/chat/completions      greedy; "stream": true sends server-sent events

One thread owns the batcher and the pool; handlers hand requests over and wait. It answers on
127.0.0.1 only and is for experiments: `kvproof probe` and load tests can be tried on it.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kvproof import __version__
from kvproof.errors import KvproofError, UsageError
from kvproof.lab.batching import Batcher, Request
from kvproof.lab.elements import cache_types
from kvproof.lab.models.sources import default_weights, load
from kvproof.lab.models.tokenizer import Tokenizer
from kvproof.lab.pool.pool import PagedPool

_MAX_BODY = 1 << 20


class Histogram:
    """Counts of seconds by bucket, as Prometheus wants them."""

    bounds = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(self.bounds) + 1), 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, model: str) -> list[str]:
        """Its samples: buckets that add up, then sum and count."""
        label, below = f'model_name="{model}"', 0
        out = [f"# TYPE {name} histogram"]
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            out.append(f'{name}_bucket{{{label},le="{bound}"}} {below}')
        return [*out, f"{name}_sum{{{label}}} {self.total:.6f}", f"{name}_count{{{label}}} {below}"]


class Engine:
    """The batcher in a thread of its own. `submit` may be called from any thread."""

    def __init__(self, batcher: Batcher, tokenizer: Any, name: str, root: str = "") -> None:
        self.batcher, self.tokenizer, self.name = batcher, tokenizer, name
        self.root = root or name
        self._first, self._each = Histogram(), Histogram()
        self._condition = threading.Condition()
        self._streams: dict[Request, queue.SimpleQueue[int | None]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="kvproof-lab-engine", daemon=True)
        self._thread.start()

    def submit(self, prompt: list[int], max_tokens: int) -> Iterator[int]:
        """Queue a request; its tokens as they are made. UsageError at once when it can't fit."""
        tokens: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        with self._condition:
            request = self.batcher.add(prompt, max_tokens, stop=self.tokenizer.stop)
            self._streams[request] = tokens
            self._condition.notify()
        return self._read(request, tokens)

    def _read(self, request: Request, tokens: queue.SimpleQueue[int | None]) -> Iterator[int]:
        try:
            while (token := tokens.get()) is not None:
                yield token
        finally:
            with self._condition:
                if self._streams.pop(request, None) is not None and not request.done:
                    self.batcher.cancel(request)

    def close(self) -> None:
        """Stop the thread after its current step; waiting readers are released."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()

    def _loop(self) -> None:
        sent: dict[Request, int] = {}
        while True:
            with self._condition:
                while self.batcher.idle and not self._closed:
                    self._condition.wait()
                if self._closed:
                    for stream in self._streams.values():
                        stream.put(None)
                    return
                finished = self.batcher.step()
                self._deliver([*self.batcher.running, *finished], sent)
            time.sleep(1e-5)  # a moment without the lock, so that handlers get their turn

    def _deliver(self, requests: list[Request], sent: dict[Request, int]) -> None:
        for request in requests:
            stream = self._streams.get(request)
            for token in request.tokens[sent.get(request, 0) :]:
                if stream is not None:
                    stream.put(token)
            sent[request] = len(request.tokens)
            if request.done:
                sent.pop(request)
                self._time(request)
                if stream is not None:
                    stream.put(None)

    def _time(self, request: Request) -> None:
        """Count a finished request's waiting for its first token, and its tokens after that."""
        if request.first_token is None or request.finished is None:
            return
        self._first.add(request.first_token - request.arrived)
        if len(request.tokens) > 1:
            self._each.add((request.finished - request.first_token) / (len(request.tokens) - 1))

    def metrics(self) -> str:
        """The state in Prometheus' text form, under vLLM's names."""
        batcher, label = self.batcher, f'{{model_name="{self.name}"}}'
        counters = batcher.counters
        types = batcher.pool.types
        dtype = types.k.name if types.k == types.v else f"{types.k.name}/{types.v.name}"
        config = (
            f'block_size="{batcher.pool.block_size}",cache_dtype="{dtype}",'
            f'kv_cache_memory_bytes="{batcher.pool.allocated_bytes}",'
            f'num_gpu_blocks="{batcher.pool.groups[0].books.total}"'
        )
        rows = [
            ("num_requests_running", "gauge", len(batcher.running)),
            ("num_requests_waiting", "gauge", len(batcher.waiting)),
            ("kv_cache_usage_perc", "gauge", batcher.pool.usage),
            ("num_preemptions_total", "counter", counters.preemptions),
            ("prompt_tokens_total", "counter", counters.prefill_tokens),
            ("generation_tokens_total", "counter", counters.decode_tokens),
            ("prefix_cache_queries_total", "counter", counters.queried_tokens),
            ("prefix_cache_hits_total", "counter", counters.hit_tokens),
            ("request_success_total", "counter", counters.finished),
        ]
        lines = [f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{config}}} 1"]
        lines += [
            f"# TYPE vllm:{name.removesuffix('_total')} {kind}\nvllm:{name}{label} {value}"
            for name, kind, value in rows
        ]
        lines += self._first.lines("vllm:time_to_first_token_seconds", self.name)
        lines += self._each.lines("vllm:request_time_per_output_token_seconds", self.name)
        return "\n".join(lines) + "\n"


class Server(ThreadingHTTPServer):
    """The HTTP server; `server_close` stops the engine too."""

    daemon_threads = True

    def __init__(self, engine: Engine, port: int) -> None:
        self.engine = engine
        super().__init__(("127.0.0.1", port), _Handler)

    def server_close(self) -> None:
        """Stop listening and stop the engine."""
        super().server_close()
        self.engine.close()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: standard error stays for faults."""

    def do_GET(self) -> None:
        """Health, models and metrics."""
        engine = self.server.engine
        if self.path == "/metrics":
            self._send(200, engine.metrics().encode(), "text/plain; version=0.0.4")
        elif self.path == "/version":
            self._json(200, {"version": __version__})
        elif self.path == "/health":
            self._send(200, b"", "text/plain")
        elif self.path == "/v1/models":
            entry = {"id": engine.name, "object": "model", "owned_by": "kvproof",
                     "root": engine.root}  # fmt: skip
            self._json(200, {"object": "list", "data": [entry]})
        else:
            self._error(404, f"no route {self.path[:80]}")

    def do_POST(self) -> None:
        """Completions of a prompt or a conversation."""
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            self._error(404, f"no route {self.path[:80]}")
            return
        try:
            body = self._body()
            prompt = self._prompt(body, chat=chat)
            count = body.get("max_completion_tokens") or body.get("max_tokens") or 64
            if not isinstance(count, int) or isinstance(count, bool):
                raise UsageError("max_tokens is no whole number")
            tokens = self.server.engine.submit(prompt, count)
        except KvproofError as error:
            self._error(400, str(error))
            return
        if body.get("stream"):
            self._stream(tokens, chat=chat)
        else:
            self._answer(tokens, len(prompt), count, chat=chat)

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= _MAX_BODY:
            raise UsageError(f"a body of {length} bytes", hint="send JSON of at most 1 MiB")
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError:
            raise UsageError("the body is no JSON") from None
        if not isinstance(body, dict):
            raise UsageError("the body is no JSON object")
        return body

    def _prompt(self, body: dict[str, Any], *, chat: bool) -> list[int]:
        codes = self.server.engine.tokenizer
        if not chat:
            text = body.get("prompt")
            if not isinstance(text, str):
                raise UsageError("prompt is no text")
            ids: list[int] = codes.encode(text)
            return ids
        messages = body.get("messages")
        plain = isinstance(messages, list) and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages
        )
        if not plain or not all(isinstance(m.get("content"), str) for m in messages or []):
            raise UsageError("messages need a role and a text each")
        conversation: list[int] = codes.chat(messages)
        return conversation

    def _answer(self, tokens: Iterator[int], asked: int, most: int, *, chat: bool) -> None:
        made = list(tokens)
        text = self.server.engine.tokenizer.decode(made)
        part = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        reason = "length" if len(made) >= most else "stop"
        usage = {
            "prompt_tokens": asked,
            "completion_tokens": len(made),
            "total_tokens": asked + len(made),
        }
        self._json(
            200, self._envelope(part | {"finish_reason": reason}, chat=chat) | {"usage": usage}
        )

    def _stream(self, tokens: Iterator[int], *, chat: bool) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for token in tokens:
                text = self.server.engine.tokenizer.decode([token])
                part = {"delta": {"content": text}} if chat else {"text": text}
                event = self._envelope(part | {"finish_reason": None}, chat=chat)
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            tokens.close()  # type: ignore[attr-defined]

    def _envelope(self, choice: dict[str, Any], *, chat: bool) -> dict[str, Any]:
        kind = "chat.completion" if chat else "text_completion"
        return {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.server.engine.name,
            "choices": [{"index": 0, **choice}],
        }

    def _error(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def _json(self, status: int, value: object) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def make_server(
    *,
    port: int = 0,
    blocks: int = 512,
    block_size: int = 16,
    kv_dtype: str = "f32",
    model: str | None = None,
) -> Server:
    """A server of a GGUF model (SmolLM2-135M by default), ready for `serve_forever`."""
    runner = load(model)
    pool = PagedPool(runner.body.slots, cache_types(kv_dtype), blocks=blocks, block_size=block_size)
    root = str(Path(model).resolve() if model else default_weights())
    engine = Engine(Batcher(runner, pool), Tokenizer(model), runner.body.name, root)
    return Server(engine, port)
