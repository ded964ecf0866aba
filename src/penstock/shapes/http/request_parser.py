"""`RequestParser`: bytes of one client become requests, within bounds.

Bounds of one request: a head of `HEAD_BYTES_MAX` and `HEADERS_MAX` lines, whatever comes around and after a
body included (trailers mean nothing here); a body where the door wants one, in its limits: any other is
counted and forgotten, up to `DISCARDED_BYTES_MAX`, so that its sender hears why. All bytes that are not the
body's count as the head's, but for what frames chunks, so nothing that a client sends escapes both counts.
What is beyond is refused, and so is what is no HTTP.
"""

from __future__ import annotations

import re
from typing import Protocol

import httptools

from penstock.shapes.http.door import Door
from penstock.shapes.http.message import HEADERS_READ, HttpRequest
from penstock.shapes.http.sent_body import SentBody

HEAD_BYTES_MAX = 512 * 1024  # a clause of 64 KB may be sent percent-encoded, and a subset's beside it
HEADERS_MAX = 200
CHUNK_FRAME_BYTES = 16  # a chunk's length and line ends
QUEUED_MAX = 100  # one read may bring more than that many
DISCARDED_BYTES_MAX = 64 * 1024 * 1024  # of a body that is not kept, so that its sender hears why
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*")
_URI_TOO_LONG = (414, f"The address is longer than {HEAD_BYTES_MAX} bytes")
_HEAD_TOO_LARGE = (431, f"There are more than {HEADERS_MAX} headers, or {HEAD_BYTES_MAX} bytes of them")
_TOO_MANY_REQUESTS = (400, f"More than {QUEUED_MAX} requests were sent ahead of their answers")
_NOT_ASCII = (400, "The request is no HTTP: characters outside ASCII must be percent-encoded")
_BAD_REQUEST = (400, "The request is no HTTP")


class RefusedError(Exception):
    """What was sent is no request of ours, or more than anyone needs."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


class RequestListener(Protocol):
    """Who is told of requests, while bytes are fed."""

    @property
    def queued(self) -> int:
        """How many requests wait for their turn."""

    def request_begun(self) -> None: ...

    def body_awaited(self) -> None:
        """The client sends the body once it is told to go on."""

    def body_endless(self) -> None:
        """More than is listened to."""

    def request_received(self, request: HttpRequest, *, keeps_alive: bool, is_old: bool) -> None:
        """A whole one. `is_old`: HTTP/1.0, which has no chunks."""


class RequestParser:
    """Of one connection; the parser that it drives calls back what begins with `on_`."""

    def __init__(self, door: Door, listener: RequestListener) -> None:
        self._door = door
        self._listener = listener
        self._parser = httptools.HttpRequestParser(self)
        self._reset()

    def _reset(self) -> None:
        self._message = object()
        self._url = bytearray()
        self._url_bytes = 0
        self._headers: dict[bytes, list[bytes]] = {}
        self._header_lines = 0
        self._request: HttpRequest | None = None  # once its head is complete
        self._body: SentBody | None = None
        self._head_bytes = 0  # all that are not the body's
        self._chunks = 0
        self.body_bytes = 0  #: of the present one as they come, whether they are kept or not
        self.in_body = False  #: the present one's head is complete

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Those of the present request, as far as they came."""
        return {name: b", ".join(values) for name, values in self._headers.items()}

    def forget_body(self) -> None:
        if self._body is not None:
            self._body.drop()

    def feed(self, data: bytes) -> bool:
        """False: what follows is another protocol's. A `RefusedError` if it is out of bounds or no HTTP."""
        message, body_bytes = self._message, self.body_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return False
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, RefusedError):
                raise error.__context__ from None
            is_ascii = self._header_lines > 0 or data.isascii()
            raise RefusedError(*(_BAD_REQUEST if is_ascii else _NOT_ASCII)) from None
        if message != self._message:
            body_bytes = 0
        self._head_bytes += len(data) - (self.body_bytes - body_bytes)
        if self._head_bytes > HEAD_BYTES_MAX + CHUNK_FRAME_BYTES * self._chunks:
            is_address = self._url_bytes > HEAD_BYTES_MAX // 2
            raise RefusedError(*(_URI_TOO_LONG if is_address else _HEAD_TOO_LARGE))
        return True

    def on_message_begin(self) -> None:
        self._reset()
        self._listener.request_begun()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._url_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_lines += 1
        if self._header_lines > HEADERS_MAX:
            raise RefusedError(*_HEAD_TOO_LARGE)
        if not self.in_body and (name := name.lower()) in HEADERS_READ:
            self._headers.setdefault(name, []).append(value)

    def on_headers_complete(self) -> None:
        self.in_body = True
        method = self._parser.get_method().decode("latin-1")
        path, _, query = _target(bytes(self._url))
        self._url.clear()
        self._request = HttpRequest(method, path, query, self.headers)
        self._request.body = self._body = self._door.body_of(self._request)
        expected = self._headers.get(b"expect")
        if expected and expected[0].lower() == b"100-continue":
            self._listener.body_awaited()

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)
        if self._body is not None:
            self._body.add(body)
        if self.body_bytes > max(DISCARDED_BYTES_MAX, self._door.bodies.bytes_max):
            self._listener.body_endless()

    def on_message_complete(self) -> None:
        if self._listener.queued >= QUEUED_MAX:
            raise RefusedError(*_TOO_MANY_REQUESTS)
        request, body = self._request, self._body
        assert request is not None
        is_kept = body is None or body.refusal is None
        is_large = self.body_bytes > self._door.bodies.bytes_max or not is_kept
        keeps_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade() and not is_large
        is_old = self._parser.get_http_version() == "1.0"
        self._reset()
        self._listener.request_received(request, keeps_alive=keeps_alive, is_old=is_old)


def _target(url: bytes) -> tuple[bytes, bytes, bytes]:
    """Path and query of a request line's target, which a proxy may send with scheme and host."""
    if (absolute := _ABSOLUTE.match(url)) is not None:
        rest = url[absolute.end() :]
        url = rest if rest.startswith(b"/") else b"/" + rest
    return url.split(b"#", 1)[0].partition(b"?")
