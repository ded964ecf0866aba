"""What goes over the wire: requests as they came, answers as they go.

An `Answer` may be sent to many clients at once: what differs between them (their origin, the id of their
request) is added when it is written. Its body is one piece of bytes, or a `Stream` of pieces, which belongs
to one client.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus

from penstock.shapes.http.sent_body import SentBody

Headers = tuple[tuple[bytes, bytes], ...]
Pieces = AsyncGenerator[bytes, None]

PIECE_BYTES_MAX = 128 * 1024
_WITHOUT_BODY = (204, 304)
#: The headers of requests that mean something here. No others are kept.
HEADERS_READ = frozenset(
    {
        b"accept-encoding",
        b"access-control-request-headers",
        b"expect",
        b"if-none-match",
        b"origin",
        b"x-request-id",
    }
)


@dataclass(slots=True)
class HttpRequest:
    """`path` as it was sent; names of headers in lower case; `body`, where one is wanted (`Door.body_of`)."""

    method: str
    path: bytes
    query: bytes = b""
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    body: SentBody | None = None


class Stream:
    """The pieces of a long body. Whoever takes it must `close` it, also if nothing was read."""

    __slots__ = ("_on_close", "pieces")

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self._on_close: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        self._on_close.append(callback)

    async def close(self) -> None:
        try:
            await self.pieces.aclose()
        finally:
            callbacks, self._on_close = self._on_close, []
            for callback in callbacks:
                callback()


class Answer:
    def __init__(self, status: int, headers: Headers, body: bytes | Stream = b"") -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def has_body(self) -> bool:
        return self.status not in _WITHOUT_BODY

    @cached_property
    def head(self) -> bytes:
        """The first line and the headers that all clients get, each with its end."""
        line = f"HTTP/1.1 {self.status} {_reason(self.status)}\r\n".encode()
        return line + b"".join(name + b": " + value + b"\r\n" for name, value in self.all_headers)

    @property
    def all_headers(self) -> Headers:
        """With the body's length, where it is known."""
        if not self.has_body or isinstance(self.body, Stream):
            return self.headers
        return (*self.headers, (b"content-length", str(len(self.body)).encode()))


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
