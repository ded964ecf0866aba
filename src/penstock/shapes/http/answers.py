"""Answers of the wire contract, case by case: statuses, headers, bodies. Pure.

`AnswerMaker` holds what is the same for all answers of a server. Every answer of a shape says which handle
and offset it ends at; caches are told by `cache-control` for how long that is true: a first chunk never
changes, a live answer is for those who ask at the same moment.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import orjson

from penstock import __version__
from penstock.core.offset import LogOffset
from penstock.shapes.http.compression import Encoding
from penstock.shapes.http.cursor import next_cursor
from penstock.shapes.http.message import Answer, Headers, Stream
from penstock.shapes.http.request import ShapeRequest
from penstock.shapes.http.sent_body import Refusal
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import Shape, SnapshotProblem

EXPOSED = (
    b"electric-cursor,electric-handle,electric-has-data,electric-offset,electric-schema,"
    b"electric-up-to-date,electric-internal-known-error,retry-after"
)
SHAPE_METHODS = b"GET, POST, HEAD, DELETE, OPTIONS"
OTHER_METHODS = b"GET, HEAD"
MUST_REFETCH = b'[{"headers":{"control":"must-refetch"}}]'

_JSON = (b"content-type", b"application/json; charset=utf-8")
_VARY = (b"vary", b"accept-encoding, origin")
_VARY_ORIGIN = (b"vary", b"origin")  # each answer names the origin that asked
_NO_STORE: Headers = ((b"cache-control", b"no-store"), (b"surrogate-control", b"no-store"))
_OF_ALL: Headers = (
    (b"electric-server", f"penstock/{__version__}".encode()),
    (b"access-control-expose-headers", EXPOSED),
)
_OF_SHAPES: Headers = (*_OF_ALL, (b"access-control-allow-methods", SHAPE_METHODS))
_OF_OTHERS: Headers = (*_OF_ALL, (b"access-control-allow-methods", OTHER_METHODS))
_FIRST_CHUNK = b"public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746"
_LIVE = b"public, max-age=5, stale-while-revalidate=5"
_ALLOWED_HEADERS = ("if-none-match", "traceparent")


def up_to_date(lsn: int) -> bytes:
    return b'{"headers":{"control":"up-to-date","global_last_seen_lsn":"%d"}}' % lsn


class AnswerMaker:
    def __init__(self, settings: ShapeSettings) -> None:
        self.long_poll_s = settings.long_poll_timeout.total_seconds()
        max_age = round(settings.cache_max_age.total_seconds())
        stale_age = round(settings.cache_stale_age.total_seconds())
        self._not_live = f"public, max-age={max_age}, stale-while-revalidate={stale_age}".encode()
        sse_s = max(round(settings.sse_timeout.total_seconds()) - 1, 0)
        self._sse = f"public, max-age={sse_s}".encode()

    def of_shape(
        self,
        shape: Shape,
        request: ShapeRequest,
        end: LogOffset,
        body: bytes | Stream,
        *,
        up_to_date: bool,
        has_data: bool,
        post: bool = False,
        encoding: Encoding | None = None,
    ) -> Answer:
        """200 with a part of the shape, up to and including `end`."""
        tag = etag(shape.handle, request, end, changed=has_data)
        headers = [
            *self._headers(shape, request, end, tag_of(tag, encoding), post=post),
            (b"electric-has-data", b"true" if has_data else b"false"),
        ]
        if up_to_date:
            headers.append((b"electric-up-to-date", b""))
        if not request.live:
            headers.append((b"electric-schema", shape.definition.schema_header.encode()))
        if encoding is not None:
            headers.append((b"content-encoding", encoding.encode()))
        return Answer(200, tuple(headers), body)

    def not_modified(
        self, shape: Shape, request: ShapeRequest, end: LogOffset, tag: bytes, *, up_to_date: bool, post: bool
    ) -> Answer:
        """What is not modified has data: what has none is true once only."""
        headers = [*self._headers(shape, request, end, tag, post=post), (b"electric-has-data", b"true")]
        if up_to_date:
            headers.append((b"electric-up-to-date", b""))
        return Answer(304, tuple(headers))

    def of_sse(
        self, shape: Shape, request: ShapeRequest, body: Stream, *, has_data: bool, post: bool
    ) -> Answer:
        """`has_data`: there is something at once, and that alone is sent."""
        headers = (
            *_OF_SHAPES,
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache" if post else self._sse),
            (b"connection", b"keep-alive"),
            (b"x-accel-buffering", b"no"),  # nginx then passes each event on at once
            _VARY_ORIGIN,
            (b"electric-handle", shape.handle.encode()),
            (b"electric-offset", request.offset_text.encode()),
            (b"electric-cursor", self._cursor(request)),
            (b"electric-has-data", b"true" if has_data else b"false"),
        )
        return Answer(200, headers, body)

    def of_subset(self, shape: Shape, end: LogOffset, body: Stream, encoding: Encoding | None) -> Answer:
        headers = [
            *_OF_SHAPES,
            _JSON,
            (b"cache-control", b"no-cache"),
            _VARY,
            (b"electric-snapshot", b"true"),
            (b"electric-has-data", b"true"),
            (b"electric-handle", shape.handle.encode()),
            (b"electric-offset", str(end).encode()),
            (b"electric-schema", shape.definition.schema_header.encode()),
        ]
        if encoding is not None:
            headers.append((b"content-encoding", encoding.encode()))
        return Answer(200, tuple(headers), body)

    def _headers(
        self, shape: Shape, request: ShapeRequest, end: LogOffset, tag: bytes, *, post: bool
    ) -> list[tuple[bytes, bytes]]:
        headers = [
            *_OF_SHAPES,
            _JSON,
            (b"cache-control", b"no-cache" if post else self._cache_control(request)),
            _VARY,
            (b"electric-handle", shape.handle.encode()),
            (b"electric-offset", str(end).encode()),
            (b"etag", b'"' + tag + b'"'),
        ]
        if request.live:
            headers.append((b"electric-cursor", self._cursor(request)))
        return headers

    def _cache_control(self, request: ShapeRequest) -> bytes:
        if request.live:
            return _LIVE
        return _FIRST_CHUNK if request.offset == LogOffset.BEFORE_ALL else self._not_live

    def _cursor(self, request: ShapeRequest) -> bytes:
        return str(next_cursor(time.time(), self.long_poll_s, request.cursor)).encode()


def etag(handle: str, request: ShapeRequest, end: LogOffset, *, changed: bool) -> bytes:
    """Without its quotes, of the body as it is. What says that nothing has changed is true once only."""
    tag = f"{handle}:{request.offset_text}:{end}"
    return (tag if changed else f"{tag}:{time.monotonic_ns()}").encode()


def tag_of(tag: bytes, encoding: Encoding | None) -> bytes:
    """Of the body in that encoding: other bytes, another tag."""
    return tag if encoding is None else tag + b":" + encoding.encode()


def matching(if_none_match: bytes, tag: bytes) -> bytes | None:
    """The tag, of whichever encoding, that the client has; weak ones count."""
    known = {tag_of(tag, encoding) for encoding in (None, "br", "gzip")}
    for each in if_none_match.split(b","):
        given = each.strip()
        if given == b"*":
            return tag
        found = given.removeprefix(b"W/").strip(b'"')
        if found in known:
            return found
    return None


def must_refetch(handle: str | None) -> Answer:
    cache = b"public, max-age=60, must-revalidate" if handle else b"max-age=1"
    headers = (*_OF_SHAPES, _JSON, (b"cache-control", cache), _VARY_ORIGIN)
    return Answer(409, (*headers, (b"electric-handle", handle.encode())) if handle else headers, MUST_REFETCH)


def failure(
    status: int, content: Mapping[str, Any], *, retry_after_s: int | None = None, known: bool = False
) -> Answer:
    headers = [*_OF_SHAPES, _JSON, *_NO_STORE, _VARY_ORIGIN]
    if retry_after_s is not None:
        headers.append((b"retry-after", str(retry_after_s).encode()))
    if known:
        headers.append((b"electric-internal-known-error", b"true"))
    return Answer(status, tuple(headers), orjson.dumps(content))


def invalid(errors: Mapping[str, Any]) -> Answer:
    return failure(400, {"message": "Invalid request", "errors": errors})


def out_of_bounds() -> Answer:
    return invalid({"offset": ["out of bounds for this shape"]})


def of_problem(problem: SnapshotProblem) -> Answer:
    """What kept a shape from being made or read, in words for clients."""
    if problem.status == 409:
        return must_refetch(None)
    said = {"message": problem.message}
    content = said if problem.code is None else {"code": problem.code, "error": problem.message}
    return failure(problem.status, content, retry_after_s=problem.retry_after_s, known=problem.known)


def too_many(kind: str, limit: int) -> Answer:
    message = f"Concurrent {kind} request limit exceeded (limit: {limit}), please retry"
    content = {"code": "concurrent_request_limit_exceeded", "message": message}
    return failure(503, content, retry_after_s=random.randint(6, 10), known=True)  # noqa: S311 - to spread them


def too_many_connections(limit: int) -> Answer:
    content = {
        "code": "connection_limit_exceeded",
        "message": f"Connection limit exceeded (limit: {limit}), please retry",
    }
    return failure(503, content, retry_after_s=random.randint(6, 10), known=True)  # noqa: S311 - to spread them


def refused_body(refusal: Refusal) -> Answer:
    if refusal == "too large":
        return failure(413, {"error": "Request body too large"})
    content = {
        "code": "request_body_limit_exceeded",
        "message": "Too much is being sent in the bodies of other requests, please retry",
    }
    return failure(503, content, retry_after_s=random.randint(6, 10), known=True)  # noqa: S311 - to spread them


def not_ready(status: str) -> Answer:
    """There are no shapes yet; `status`, as health has it: because another instance has them, or we begin."""
    awaited = "another instance to let go of the shapes" if status == "waiting" else "the service to be ready"
    content = {"message": f"Timeout waiting for {awaited}"}
    return failure(503, content, retry_after_s=5, known=True)


def unauthorized() -> Answer:
    return failure(401, {"message": "Unauthorized - Invalid API secret"})


def internal_error() -> Answer:
    return failure(500, {"error": "Internal server error"})


def accepted() -> Answer:
    """Of a DELETE."""
    return Answer(202, (*_OF_SHAPES, (b"cache-control", b"no-cache"), _VARY_ORIGIN))


def options(asked_headers: bytes) -> Answer:
    asked = {each.strip() for each in asked_headers.decode("latin-1").lower().split(",")}
    allowed = ", ".join(name for name in _ALLOWED_HEADERS if name in asked)
    headers = [
        *_OF_SHAPES,
        (b"access-control-max-age", b"86400"),
        (b"connection", b"keep-alive"),
        _VARY_ORIGIN,
    ]
    if allowed:
        headers.append((b"access-control-allow-headers", allowed.encode()))
    return Answer(204, tuple(headers))


def root() -> Answer:
    return Answer(200, (*_OF_OTHERS, _VARY_ORIGIN))


def health(status: str) -> Answer:
    headers = (*_OF_OTHERS, (b"content-type", b"application/json"), _VARY_ORIGIN)
    cache = (b"cache-control", b"no-cache, no-store, must-revalidate")
    return Answer(200 if status == "active" else 202, (*headers, cache), orjson.dumps({"status": status}))


def not_found() -> Answer:
    headers = (*_OF_OTHERS, (b"content-type", b"text/plain; charset=utf-8"), *_NO_STORE, _VARY_ORIGIN)
    return Answer(404, headers, b"Not found")
