"""A shared cache in front of one server, by the rules of RFC 9111 and 5861: for machines that have no other.

What carries its own lifetime is stored under its URL, whatever its status. Of requests for one URL that
nothing fresh is there for, one goes on to the server and the others wait for its answer. What is stale is
served while somebody asks anew if `stale-while-revalidate` allows it, else after that; it is asked for by its
etag, and a 304 makes what is there fresh again. A client that names the etag gets a 304 itself. Streams of
events pass through as they come, and so does what may not be stored. Encodings are not asked for, so no
answer varies.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

_TIMEOUT_S = 90.0
_OF_ONE_CONNECTION = frozenset(
    {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}
)


@dataclass(frozen=True)
class Stored:
    """An answer, and when it was young."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    made_at: float

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.made_at

    @property
    def is_fresh(self) -> bool:
        return self.age_s < self._lifetime_s

    @property
    def may_be_served_stale(self) -> bool:
        return self.age_s < self._lifetime_s + (_directive(self.headers, "stale-while-revalidate") or 0)

    @property
    def _lifetime_s(self) -> int:
        shared = _directive(self.headers, "s-maxage")
        return shared if shared is not None else _directive(self.headers, "max-age") or 0


class CachingProxy:
    """`log`: of each answer that was given the status that the server sent for it, `-` if it was not asked,
    and the URL."""

    def __init__(self, server_port: int) -> None:
        self.log: list[str] = []
        self._server_port = server_port
        self._stored: dict[str, Stored] = {}
        self._asked: dict[str, Future[Stored | None]] = {}  # None: each has to ask for itself
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """`log` has what is wanted."""

        class Server(ThreadingHTTPServer):
            request_queue_size = 256

        self._front = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._front.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._front.serve_forever, name="caching proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._front.shutdown()
        self._front.server_close()

    def _answer(self, client: BaseHTTPRequestHandler) -> None:
        url = client.path
        with self._lock:
            stored, asked = self._stored.get(url), self._asked.get(url)
            is_enough = stored is not None and (stored.is_fresh or stored.may_be_served_stale)
            leads = asked is None and not (stored is not None and stored.is_fresh)
            if leads:
                asked = self._asked[url] = Future()
        if is_enough:
            assert stored is not None
            if leads:
                threading.Thread(target=self._renew, args=(url, stored), daemon=True).start()
            self._give(client, stored, "-")
        elif leads:
            self._relay(client, *self._ask(url, stored))
        else:
            assert asked is not None
            found = asked.result(_TIMEOUT_S)
            if found is None:
                self._relay(client, *self._ask(url, None))
            else:
                self._give(client, found, "-")

    def _renew(self, url: str, stale: Stored) -> None:
        found, answer = self._ask(url, stale)
        if answer is not None:
            answer.close()
        else:
            assert found is not None
            self.log.append(f"{found[1]} {url}")

    def _ask(self, url: str, stale: Stored | None) -> tuple[tuple[Stored, int] | None, HTTPResponse | None]:
        """What is stored from now on and the server's status, or an answer that has to be passed on."""
        known: Stored | None = None
        try:
            etag = stale.headers.get("etag") if stale is not None else None
            connection = HTTPConnection("127.0.0.1", self._server_port, timeout=_TIMEOUT_S)
            connection.request("GET", url, headers={"if-none-match": etag} if etag else {})
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            made_at = time.monotonic() - int(headers.get("age", 0))
            if answer.status == 304 and stale is not None:
                answer.read()
                known = replace(stale, headers={**stale.headers, **headers}, made_at=made_at)
            elif _may_be_stored(headers):
                known = Stored(answer.status, headers, answer.read(), made_at)
            else:
                return None, answer
            connection.close()
            return (known, answer.status), None
        finally:
            with self._lock:
                if known is not None:
                    self._stored[url] = known
                waited_for = self._asked.pop(url, None)
            if waited_for is not None:
                waited_for.set_result(known)

    def _relay(
        self, client: BaseHTTPRequestHandler, found: tuple[Stored, int] | None, answer: HTTPResponse | None
    ) -> None:
        if found is not None:
            self._give(client, found[0], str(found[1]))
            return
        assert answer is not None
        self.log.append(f"{answer.status} {client.path}")
        client.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_ONE_CONNECTION:
                client.send_header(name, value)
        client.send_header("connection", "close")
        client.end_headers()
        try:
            while part := answer.read1(1 << 16):
                client.wfile.write(part)
        except OSError:  # who asked has gone
            client.close_connection = True
        finally:
            answer.close()

    def _give(self, client: BaseHTTPRequestHandler, stored: Stored, status: str) -> None:
        self.log.append(f"{status} {client.path}")
        named = client.headers.get("if-none-match")
        is_known = named is not None and stored.status == 200 and named == stored.headers.get("etag")
        client.send_response(304 if is_known else stored.status)
        for name, value in stored.headers.items():
            if name not in _OF_ONE_CONNECTION and name != "age":
                client.send_header(name, value)
        client.send_header("age", str(int(stored.age_s)))
        if not is_known:
            client.send_header("content-length", str(len(stored.body)))
        client.end_headers()
        if not is_known:
            client.wfile.write(stored.body)


def _directive(headers: Mapping[str, str], name: str) -> int | None:
    found = re.search(rf"(?:^|[\s,]){name}=(\d+)", headers.get("cache-control", ""))
    return None if found is None else int(found[1])


def _may_be_stored(headers: Mapping[str, str]) -> bool:
    if headers.get("content-type", "").startswith("text/event-stream"):
        return False
    words = {word.strip().split("=")[0] for word in headers.get("cache-control", "").split(",")}
    return not words & {"no-store", "no-cache", "private"} and bool(words & {"max-age", "s-maxage"})
