"""Pages of a server: bounded in time and size, no redirect followed, nothing kept open."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from kvproof import __version__
from kvproof.errors import HubError, InputError, UsageError

LARGEST = 16 * 2**20
_CHUNK = 65_536
_DEEPEST = 40


class Page(msgspec.Struct, frozen=True):
    """What a path answered."""

    path: str
    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text; bytes that are none are replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON; None where it is none or nests beyond reason."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return value if _shallow(value) else None


def _shallow(value: Any) -> bool:
    """Whether a parsed value nests at most 40 deep."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return True
    return False


def clean(value: object, longest: int = 200) -> str:
    """A server's words made fit to print: one line, no control characters, bounded."""
    text = str(value)[:longest]
    return "".join(c if c.isprintable() else "�" for c in text)


class Server:
    """A server's address. `get` asks it for one page.

    `timeout` bounds each page as a whole, however slowly its bytes come.
    """

    def __init__(self, url: str, *, timeout: float = 5.0, key: str | None = None) -> None:
        self.parts, self.timeout = _address(url), timeout
        self.base = self.parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{self.parts.scheme}://{self.parts.netloc}{self.base}"
        self._headers = {"User-Agent": f"kvproof/{__version__}", "Accept": "*/*"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    @property
    def local(self) -> bool:
        """Whether it runs on this machine."""
        return self.parts.hostname in ("localhost", "127.0.0.1", "::1")

    def get(self, path: str) -> Page:
        """One page. HubError when the server can't be reached, InputError for too long a page."""
        connection = self._connection()
        late = threading.Event()
        timer = threading.Timer(self.timeout, _stop, (connection, late))
        timer.daemon = True
        timer.start()
        try:
            connection.request("GET", f"{self.base}{path}", headers=self._headers)
            answer = connection.getresponse()
            if 300 <= answer.status < 400:
                self._refuse_redirect(answer.getheader("Location"))
            page = Page(path, answer.status, self._body(answer, path))
            if late.is_set():
                raise TimeoutError  # the end that was read is the one made by the timer
            return page
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failure(error, path, late=late.is_set()) from None
        finally:
            timer.cancel()
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self.parts.hostname or "", self.parts.port
        if self.parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self.timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=self.timeout)

    def _body(self, answer: http.client.HTTPResponse, path: str) -> bytes:
        parts, size, end = [], 0, time.monotonic() + self.timeout
        while chunk := answer.read1(_CHUNK):
            parts.append(chunk)
            size += len(chunk)
            if size > LARGEST:
                raise InputError(
                    f"{self.url}{path} is longer than {LARGEST // 2**20} MiB",
                    hint="is this the server's own address?",
                )
            if time.monotonic() > end:
                raise TimeoutError
        return b"".join(parts)

    def _refuse_redirect(self, location: str | None) -> None:
        where = clean(location or "elsewhere")
        raise InputError(f"{self.url} redirects to {where}", hint="give that address itself")

    def _failure(self, error: Exception, path: str, *, late: bool) -> HubError:
        """One line for what went wrong on the way."""
        if late or isinstance(error, TimeoutError):
            said = f"did not answer {path} in {self.timeout:g} s"
            return HubError(f"{self.url} {said}", hint="raise --timeout or look at the server")
        if isinstance(error, socket.gaierror):
            return HubError(f"no host {self.parts.hostname!r} is known", hint="check the address")
        if isinstance(error, ssl.SSLError):
            reason = clean(error.reason or error)
            return HubError(f"{self.url}: {reason}", hint="is it http, not https?")
        if isinstance(error, OSError):
            reason = clean(error.strerror or error)
            return HubError(f"{self.url} can't be reached: {reason}", hint="is it running there?")
        said = f"answers {path} with no HTTP"
        return HubError(f"{self.url} {said} ({type(error).__name__})", hint="check the port")


def _stop(connection: http.client.HTTPConnection, late: threading.Event) -> None:
    """End a connection whose time is up, wherever it waits."""
    late.set()
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _address(url: str) -> SplitResult:
    """The parts of `url`; UsageError for what is no http address. `host:port` counts as one."""
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        wrong = True
    if wrong or any(c.isspace() or not c.isprintable() for c in text):
        raise UsageError(f"{clean(text, 80)!r} is no address", hint="write http://host:8000")
    return parts
