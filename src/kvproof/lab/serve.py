"""A small OpenAI-compatible server over the batcher, with the metric names that vLLM users know.

    GET  /health  /v1/models  /metrics  /version
    POST /v1/completions  /v1/chat/completions

Of OpenAI's parameters it knows max_tokens (max_completion_tokens), temperature (0, greedy, unless
given), top_p, seed, stop (a text or up to four) and stream (server-sent events, with
stream_options.include_usage). n other than 1, logprobs and tools are refused.

One thread owns the batcher and the pool; handlers hand requests over and wait. It answers on
127.0.0.1 only and is for experiments: `kvproof probe` and load tests can be tried on it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvproof import __version__
from kvproof.errors import KvproofError, UsageError
from kvproof.lab.asked import Asked, asked_of
from kvproof.lab.batching import Batcher, Request
from kvproof.lab.elements import cache_types
from kvproof.lab.generation import generate
from kvproof.lab.metrics import Metrics
from kvproof.lab.models.folder import FolderTokenizer
from kvproof.lab.models.sources import load, weights_file
from kvproof.lab.models.tokenizer import Tokenizer
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.sampling import Sampling
from kvproof.lab.text_stream import TextStream

_MAX_BODY = 1 << 20
_LENGTH = re.compile("[0-9]{1,9}")


class Engine:
    """The batcher in a thread of its own. `submit` may be called from any thread."""

    def __init__(self, batcher: Batcher, tokenizer: Any, name: str, root: str = "") -> None:
        self.batcher, self.tokenizer, self.name = batcher, tokenizer, name
        self.metrics = Metrics(batcher, name)
        self.root = root or name
        self.since = int(time.time())
        self._condition = threading.Condition()
        self._streams: dict[Request, queue.SimpleQueue[int | None]] = {}
        self._sent: dict[Request, int] = {}  # tokens of each that its reader has been given
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="kvproof-lab-engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        sampling: Sampling | None = None,
        *,
        ignore_end: bool = False,
    ) -> Generator[int, None, None]:
        """Queue a request; its tokens as they are made. UsageError at once when it can't fit.

        `ignore_end`: the model's own end does not end it, as load tests want.
        """
        tokens: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        stop = None if ignore_end else self.tokenizer.stop
        with self._condition:
            if self._closed:
                raise UsageError("the server is stopping")
            request = self.batcher.add(prompt, max_tokens, stop=stop, sampling=sampling)
            self._streams[request] = tokens
            self._condition.notify()
        return self._read(request, tokens)

    def _read(
        self, request: Request, tokens: queue.SimpleQueue[int | None]
    ) -> Generator[int, None, None]:
        try:
            while (token := tokens.get()) is not None:
                yield token
        finally:
            with self._condition:
                self._sent.pop(request, None)
                if self._streams.pop(request, None) is not None and not request.done:
                    self.batcher.cancel(request)
                    self.metrics.end(request, "abort")

    def close(self) -> None:
        """Stop the thread after its current step; waiting readers are released."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()

    def _loop(self) -> None:
        try:
            self._work()
        finally:  # a fault in a step is shown by the thread; nobody waits for what does not come
            with self._condition:
                self._closed = True
                for stream in self._streams.values():
                    stream.put(None)

    def _work(self) -> None:
        while True:
            with self._condition:
                while self.batcher.idle and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                finished = self.batcher.step()
                self._deliver([*self.batcher.running, *finished])
            time.sleep(1e-5)  # a moment without the lock, so that handlers get their turn

    def _deliver(self, requests: list[Request]) -> None:
        for request in requests:
            stream = self._streams.get(request)
            for token in request.tokens[self._sent.get(request, 0) :]:
                self.metrics.token(request)
                if stream is not None:
                    stream.put(token)
            self._sent[request] = len(request.tokens)
            if request.done:
                self._sent.pop(request)
                self.metrics.end(request, request.reason)
                if stream is not None:
                    stream.put(None)


class Server(ThreadingHTTPServer):
    """The HTTP server; `server_close` stops the engine too, and waits for every answer's end.

    A thread that outlives the interpreter inside torch or the tokenizer would abort the process.
    """

    daemon_threads = False

    def __init__(self, engine: Engine, port: int) -> None:
        self.engine = engine
        self._lines: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no fault; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection until it is shut."""
        self._lines.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget it."""
        self._lines.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """End running answers, read nothing more, and wait for the handlers' last words."""
        self.engine.close()
        for line in list(self._lines):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RD)
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds that a connection may be silent, or a client not read

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: standard error stays for faults."""

    def do_GET(self) -> None:
        """Health, models and metrics."""
        engine = self.server.engine
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send(200, engine.metrics.text().encode(), "text/plain; version=0.0.4")
        elif path == "/version":
            self._json(200, {"version": __version__})
        elif path == "/health":
            self._send(200, b"", "text/plain")
        elif path == "/v1/models":
            entry = {"id": engine.name, "object": "model", "created": engine.since,
                     "owned_by": "kvproof", "root": engine.root}  # fmt: skip
            self._json(200, {"object": "list", "data": [entry]})
        else:
            self._error(404, f"no route {self.path[:80]}")

    def do_POST(self) -> None:
        """Completions of a prompt or a conversation."""
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            self.close_connection = True  # the body is not read
            self._error(404, f"no route {self.path[:80]}")
            return
        try:
            asked = asked_of(self._body(), self.server.engine.tokenizer, chat=chat)
            tokens = self.server.engine.submit(
                asked.prompt, asked.count, asked.sampling, ignore_end=asked.ignore_end
            )
        except KvproofError as error:
            self._error(400, str(error))
            return
        if asked.stream:
            self._stream(tokens, asked)
        else:
            self._answer(tokens, asked)

    def _body(self) -> dict[str, Any]:
        told = self.headers.get("Content-Length", "")
        length = int(told) if _LENGTH.fullmatch(told) else 0
        if not 0 < length <= _MAX_BODY:
            self.close_connection = True  # whatever was sent is not read
            raise UsageError(
                f"a body of {length} bytes", hint="send Content-Length and JSON of at most 1 MiB"
            )
        try:
            body = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError):
            raise UsageError("the body is no JSON") from None
        if not isinstance(body, dict):
            raise UsageError("the body is no JSON object")
        return body

    def _answer(self, tokens: Generator[int, None, None], asked: Asked) -> None:
        text = TextStream(self.server.engine.tokenizer.decode, asked.stops)
        parts = list(_texts(tokens, text, asked))
        whole = "".join(part for part, _, _ in parts)
        _, made, reason = parts[-1]
        choice = {"message": {"role": "assistant", "content": whole}} if asked.chat else {
            "text": whole}  # fmt: skip
        answer = self._envelope(asked, choice | {"finish_reason": reason})
        self._json(200, answer | {"usage": asked.usage(made)})

    def _stream(self, tokens: Generator[int, None, None], asked: Asked) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        text, made = TextStream(self.server.engine.tokenizer.decode, asked.stops), 0
        said = False
        try:
            for part, count, reason in _texts(tokens, text, asked):
                made = count
                role = {} if said else {"role": "assistant"}
                said = True
                choice = {"delta": {**role, "content": part}} if asked.chat else {"text": part}
                self._event(self._envelope(asked, choice | {"finish_reason": reason}))
            if asked.stream_usage:
                self._event(self._envelope(asked) | {"usage": asked.usage(made)})
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            tokens.close()

    def _event(self, value: object) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def _envelope(self, asked: Asked, *choices: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion" if asked.chat else "text_completion"
        return {
            "id": asked.name,
            "object": f"{kind}.chunk" if asked.chat and asked.stream else kind,
            "created": int(time.time()),
            "model": self.server.engine.name,
            "choices": [{"index": 0, **choice} for choice in choices],
        }

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The faults that http.server finds by itself, as JSON too."""
        self.close_connection = True
        self._error(code, message or explain or "a wrong request")

    def _error(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def _json(self, status: int, value: object) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def _texts(
    tokens: Generator[int, None, None], text: TextStream, asked: Asked
) -> Iterator[tuple[str, int, str | None]]:
    """Pieces of the answer with the tokens made so far; the last one says why it ends."""
    made = 0
    for token in tokens:
        made += 1
        part = text.push(token)
        if text.stopped:
            tokens.close()
            yield part, made, "stop"
            return
        if part:
            yield part, made, None
    yield text.finish(), made, "length" if made >= asked.count else "stop"


def make_server(
    *,
    port: int = 0,
    blocks: int = 512,
    block_size: int = 16,
    kv_dtype: str = "f32",
    model: str | None = None,
    max_batched_tokens: int = 512,
) -> Server:
    """A server of a GGUF file, a folder or `gemma-3-270m` (default SmolLM2-135M).

    Kernels are compiled before it is returned, for `serve_forever`. UsageError when the port can't
    be had.
    """
    _check_free(port)
    types, path = cache_types(kv_dtype), weights_file(model)
    runner = load(path)
    pool = PagedPool(runner.body.slots, types, blocks=blocks, block_size=block_size)
    generate(runner, [1, 2], 2, types=types, block_size=block_size)  # compiles the kernels
    batcher = Batcher(runner, pool, max_batched_tokens=max_batched_tokens)
    tokenizer = FolderTokenizer(path) if path.is_dir() else Tokenizer(path)
    engine = Engine(batcher, tokenizer, runner.body.name, str(path.resolve()))
    return Server(engine, port)


def _check_free(port: int) -> None:
    """Ask for the port before the weights are read, which takes a while."""
    try:
        with socket.create_server(("127.0.0.1", port)):
            pass
    except OSError as error:
        raise UsageError(
            f"port {port} can't be had: {error.strerror}", hint="give another --port"
        ) from None
