"""Where requests arrive: the routes of the wire contract, who may use them, and what they may bring.

A path is brought to one form before anything is decided by it, so that no spelling of a route reaches its
handler without the secret. Behind the door are shapes (`App`), or nothing yet: another instance may have them
open. Then health is told, and whoever asks for a shape is told to come again. A server has one door for as
long as it listens, whatever comes to be behind it.

`reply` is what our own server calls: it answers at once what can be, and lets live requests wait without a
task. `asgi.py` has the same for any other server.
"""

from __future__ import annotations

import hmac
import itertools
import re
import secrets
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from penstock.shapes.http import answers
from penstock.shapes.http.app import App, failed
from penstock.shapes.http.fields import Fields, QueryError, parse_query
from penstock.shapes.http.longpoll import Deliver, Poll
from penstock.shapes.http.message import Answer, Headers, HttpRequest
from penstock.shapes.http.sent_body import SentBodies, SentBody
from penstock.shapes.settings import ShapeSettings

_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.\-]{20,200}")


class Door:
    """Used in the loop's thread. `status`: why it is shut, as health is told, while it is."""

    def __init__(self, settings: ShapeSettings) -> None:
        self._app: App | None = None
        self.status: Literal["starting", "waiting"] = "starting"
        self._secret = (settings.secret_text or "").encode()
        self.bodies = SentBodies(int(settings.body_bytes_max))
        self.connections_max = settings.max_connections
        self.send_timeout_s = settings.send_timeout.total_seconds()
        self._request_ids = itertools.count()
        self._request_prefix = secrets.token_hex(8)

    def open(self, app: App) -> None:
        """There are shapes, from the next request on."""
        assert self._app is None
        self._app = app

    def shut(self) -> None:
        """There are none any more. Whoever waits for one is answered."""
        app, self._app = self._app, None
        if app is not None:
            app.close()

    def own_headers(self, request: HttpRequest) -> Headers:
        """What an answer has for one client alone."""
        given = request.headers.get(b"x-request-id", b"")
        if not _REQUEST_ID.fullmatch(given):
            given = f"{self._request_prefix}{next(self._request_ids):08x}".encode()
        origin = request.headers.get(b"origin") or b"*"
        return ((b"access-control-allow-origin", origin), (b"x-request-id", given))

    def body_of(self, request: HttpRequest) -> SentBody | None:
        """Where its body is to go, once its head is there; None: it means nothing, whatever is in it."""
        if request.method != "POST" or route_of(request.path) != "shape":
            return None
        try:
            return self.bodies.open() if self._may(parse_query(request.query)) else None
        except QueryError:
            return None

    def reply(self, request: HttpRequest, deliver: Deliver) -> Answer | Poll | Coroutine[Any, Any, Answer]:
        """The answer; or a poll, whose answer is delivered; or what gives the answer when it is awaited."""
        match route_of(request.path):
            case "shape":
                try:
                    return self._reply_shape(request, deliver)
                except Exception as error:
                    return failed(error)
            case "root" if request.method in ("GET", "HEAD"):
                return answers.root()
            case "health" if request.method in ("GET", "HEAD"):
                return answers.health(self.status if self._app is None else self._app.status)
        return answers.not_found()

    def cancel(self, poll: Poll) -> None:
        """Its client is gone. What waited when the door was shut has been answered."""
        if self._app is not None:
            self._app.cancel(poll)

    def unreadable(self) -> Answer:
        return answers.failure(400, {"error": "Failed to read request body"})

    def refused(self, status: int, message: str) -> Answer:
        """Of what is no request."""
        return answers.failure(status, {"message": message})

    def too_many_connections(self) -> Answer:
        return answers.too_many_connections(self.connections_max)

    def _reply_shape(
        self, request: HttpRequest, deliver: Deliver
    ) -> Answer | Poll | Coroutine[Any, Any, Answer]:
        if request.method == "OPTIONS":
            return answers.options(request.headers.get(b"access-control-request-headers", b""))
        if request.method not in ("GET", "HEAD", "POST", "DELETE"):
            return answers.not_found()
        try:
            fields = parse_query(request.query)
        except QueryError:
            return answers.failure(400, {"message": "Invalid request"})
        if not self._may(fields):
            return answers.unauthorized()
        if request.body is not None and request.body.refusal is not None:
            return answers.refused_body(request.body.refusal)
        if self._app is None:
            return answers.not_ready(self.status)
        return self._app.reply(request, fields, deliver)

    def _may(self, fields: Fields) -> bool:
        if not self._secret:
            return True
        given = fields.get("secret", fields.get("api_secret", ""))
        return isinstance(given, str) and hmac.compare_digest(given.encode(), self._secret)


@lru_cache(maxsize=1024)
def _route(path: bytes) -> str:
    parts = [part for part in unquote_to_bytes(path).split(b"/") if part]
    return {(): "root", (b"v1", b"health"): "health", (b"v1", b"shape"): "shape"}.get(tuple(parts), "none")


def route_of(path: bytes) -> str:
    return _route(path) if len(path) < 256 else "none"
