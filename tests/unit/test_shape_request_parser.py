"""Bytes of a client become requests, however they are cut, and nothing of them escapes the bounds."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.shapes.http.door import Door
from penstock.shapes.http.message import HttpRequest
from penstock.shapes.http.request_parser import HEAD_BYTES_MAX, HEADERS_MAX, RefusedError, RequestParser
from penstock.shapes.http.sent_body import SentBodies, SentBody

pytestmark = pytest.mark.unit

POST = b"POST /v1/shape?table=items HTTP/1.1\r\nHost: h\r\n"


class Doorway:
    """Wants the body of every POST."""

    def __init__(self) -> None:
        self.bodies = SentBodies(100)

    def body_of(self, request: HttpRequest) -> SentBody | None:
        return self.bodies.open() if request.method == "POST" else None


class Received:
    """Who is told of requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[HttpRequest, bool, bool]] = []
        self.queued = self.begun = self.awaited = self.endless = 0

    def request_begun(self) -> None:
        self.begun += 1

    def body_awaited(self) -> None:
        self.awaited += 1

    def body_endless(self) -> None:
        self.endless += 1

    def request_received(self, request: HttpRequest, *, keeps_alive: bool, is_old: bool) -> None:
        self.requests.append((request, keeps_alive, is_old))


def parsing() -> tuple[RequestParser, Received]:
    received = Received()
    return RequestParser(cast(Door, Doorway()), received), received


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_requests_are_the_same_however_their_bytes_are_cut(size: int) -> None:
    parser, received = parsing()
    sent = (
        b"GET http://proxy/v1/shape?table=items#part HTTP/1.1\r\nOrigin: o\r\nX-Other: x\r\n\r\n"
        + POST
        + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nOrigin: trailer\r\n\r\n"
        + b"GET / HTTP/1.0\r\n\r\n"
    )
    for start in range(0, len(sent), size):
        assert parser.feed(sent[start : start + size])

    (first, keeps, _), (second, _, _), (third, keeps_old, is_old) = received.requests
    assert (first.path, first.query, first.headers) == (b"/v1/shape", b"table=items", {b"origin": b"o"})
    assert second.body is not None
    assert (second.body.take(), second.headers) == (b"abcde", {})
    assert (third.path, keeps, keeps_old, is_old, received.begun) == (b"/", True, False, True, 3)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"x" * (HEAD_BYTES_MAX + 1), 414),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * (HEAD_BYTES_MAX + 1), 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (HEADERS_MAX + 1) + b"\r\n", 431),
        (b"GET /\xc3\xa4 HTTP/1.1\r\n\r\n", 400),
        (b"nothing that anybody knows\r\n\r\n", 400),
    ],
)
def test_what_is_out_of_bounds_or_no_http_is_refused(sent: bytes, status: int) -> None:
    parser, received = parsing()

    with pytest.raises(RefusedError) as refused:
        parser.feed(sent)

    assert (refused.value.status, received.requests) == (status, [])


def test_trailers_count_as_the_head_does() -> None:
    parser, _ = parsing()
    parser.feed(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")

    with pytest.raises(RefusedError):
        parser.feed(b"Trailer: value\r\n" * HEADERS_MAX + b"\r\n")


def test_a_body_beyond_the_limit_is_heard_to_its_end_and_its_connection_does_not_go_on() -> None:
    parser, received = parsing()

    parser.feed(POST + b"Expect: 100-continue\r\nContent-Length: 101\r\n\r\n" + b"x" * 101)

    ((request, keeps_alive, _),) = received.requests
    assert request.body is not None
    assert (request.body.refusal, keeps_alive, received.awaited) == ("too large", False, 1)


def test_another_protocol_is_not_ours_to_speak() -> None:
    parser, _ = parsing()

    assert not parser.feed(b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nbytes")
