"""The console's connections: one request on each, one answer, and the connection is closed.

Bounds: so many connections, and of them so many that stay open for events; a head as `http.server` limits
it, a body of `BODY_BYTES_MAX`, all of it within `REQUEST_S`; an answer within `ANSWER_S`. What is not
plainly one request for us is refused before anything looks at it: a length given twice or not as a number,
any other framing, a name of a host that is not ours (pages of other sites can have their own names point
here), a method that no route has.

Every answer forbids what the page does not need: scripts, styles and connections of other origins, anything
inline, frames around it.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import structlog

from penstock.console.paths import NoRouteError, Route, route_of
from penstock.console.reading import RETRY_AFTER_S
from penstock.core.errors import AddressError

CONNECTIONS_MAX = 64
EVENT_STREAMS_MAX = 24
BODY_BYTES_MAX = 64 * 1024
REQUEST_S = 10.0
ANSWER_S = 60.0
_POLL_S = 0.5
_logger = structlog.get_logger("penstock.console")
_HOST = re.compile(r"\A(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9.-]{1,253})(:[0-9]{1,5})?\Z")
JSON = "application/json; charset=utf-8"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
#: To names of `console.hosts` alone, which are the console's: for a name of the machine it would hold of
#: everything else that is served there, the metrics among it.
_TLS_FROM_NOW_ON = "max-age=31536000"
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


@dataclass(frozen=True, slots=True)
class Request:
    """`secure`: it came over TLS. Names of headers are in lower case."""

    method: str
    route: Route
    fields: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    address: str
    host: str
    secure: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """`events`: pieces that are sent as they come, for as long as the client stays."""

    status: int
    body: bytes = b""
    kind: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    events: Iterator[bytes] | None = None


def answer_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, json.dumps(value, ensure_ascii=False, default=str).encode(), JSON, headers or {})


def refused(status: int, message: str, **fields: Any) -> Answer:
    return answer_json({"error": {"message": message, **fields}}, status)


class ConsoleServer:
    """Has its address from when it is made, and answers from `serve` on: who comes in between waits.

    `names`: by which browsers may call it, beside addresses.
    """

    def __init__(self, listen: str, names: frozenset[str], tls: ssl.SSLContext | None = None) -> None:
        host, _, port = listen.rpartition(":")
        known = frozenset(name.lower() for name in (*names, "localhost", socket.gethostname(), host))

        class Handler(_Handler):
            context = tls
            own_names = known
            kept_names = frozenset(name.lower() for name in names)

        self._handler = Handler
        try:
            self._server = _Server((host, int(port)), Handler)
        except OSError as error:
            raise AddressError(
                f"Nothing can listen on {listen} (`console.listen`): {error.strerror}.",
                remedy="Name another address in the pipeline file; port 0 takes a free one, and "
                "`console: {enabled: false}` has no console.",
            ) from error
        self.port = int(self._server.server_address[1])
        shown = "127.0.0.1" if host in ("0.0.0.0", "localhost") else host  # noqa: S104
        self.url = f"{'http' if tls is None else 'https'}://{shown}:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="console-http", daemon=True
        )

    def serve(self, answer: Callable[[Request], Answer]) -> None:
        self._handler.reply = staticmethod(answer)
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    reply: Callable[[Request], Answer]
    context: ssl.SSLContext | None
    own_names: frozenset[str]
    kept_names: frozenset[str]
    timeout = REQUEST_S
    protocol_version = "HTTP/1.1"
    server_version = "penstock"
    sys_version = ""
    server: _Server

    def setup(self) -> None:
        if self.context is not None:
            self.request.settimeout(REQUEST_S)
            # What was accepted is detached by this, and no longer a way to end the connection.
            self.request = self.context.wrap_socket(
                self.request, server_side=True, do_handshake_on_connect=False
            )
            self.server.is_now(self.client_address, self.request)
            self.request.do_handshake()
        super().setup()

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def handle_expect_100(self) -> bool:
        return True  # whoever waits for it sends its body anyway

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What is no request, or has a method that nothing has; nothing of it is repeated."""
        self.close_connection = True
        self._send(refused(code, "This is no request for the console."))

    def _answer(self) -> None:
        self.close_connection = True
        try:
            answer = self._read()
        except NoRouteError:
            answer = refused(404, "There is nothing by that name.")
        except TimeoutError:
            return
        except Exception as error:
            _logger.error("request not answered", kind=type(error).__name__)
            answer = refused(500, "Something went wrong; the log of the console says what.")
        self._send(answer)

    def _read(self) -> Answer:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return refused(421, "The console is not known by this name; `console.hosts` lists further ones.")
        if self.headers.get_all("Transfer-Encoding"):
            return refused(400, "Bodies are sent with their length.")
        lengths = self.headers.get_all("Content-Length") or ["0"]
        if len(lengths) != 1 or not lengths[0].isascii() or not lengths[0].isdigit():
            return refused(400, "The length of the body is not clear.")
        if int(lengths[0]) > BODY_BYTES_MAX or len(lengths[0]) > 8:
            return refused(413, "That is more than the console takes.")
        for name in ("Cookie", "Authorization", "Origin", "Content-Type"):
            if len(self.headers.get_all(name) or []) > 1:
                return refused(400, "A header is there twice.")
        route, fields = route_of(self.path)
        body = self.rfile.read(int(lengths[0]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        address, secure = str(self.client_address[0]), self.context is not None
        return self.reply(
            Request(self.command, route, fields, headers, body, address, hosts[0].lower(), secure)
        )

    def _is_ours(self, given: str) -> bool:
        match = _HOST.match(given)
        if match is None:
            return False
        name = match[1].lower().rstrip(".")
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name in self.own_names
        return True  # a page cannot have an address of ours as its own

    def _asked_name(self) -> str:
        headers = getattr(self, "headers", None)  # none of what is no request
        return "" if headers is None else str(headers.get("Host") or "").partition(":")[0].lower()

    def _send(self, answer: Answer) -> None:
        if (
            answer.events is not None
            and self.command != "HEAD"
            and not self.server.stays(self.client_address)
        ):
            message = "As many pages follow live as may; come again when one is closed."
            answer = answer_json({"error": {"message": message}}, 503, {"Retry-After": str(RETRY_AFTER_S)})
        self.send_response(answer.status)
        for name, value in {**_HEADERS, "Cache-Control": "no-store", **answer.headers}.items():
            self.send_header(name, value)
        if self.context is not None and self._asked_name() in self.kept_names:
            self.send_header("Strict-Transport-Security", _TLS_FROM_NOW_ON)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Connection", "close")
        if answer.events is None:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if answer.events is None:
            self.wfile.write(answer.body)
        else:
            for piece in answer.events:
                self.wfile.write(piece)
                self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Somebody looks every second: no news. What is done is in the audit log."""


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._open: dict[Any, tuple[socket.socket, float]] = {}
        self._staying: set[Any] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_full = len(self._open) >= CONNECTIONS_MAX
            if not is_full:
                self._open[client_address] = (request, time.monotonic() + ANSWER_S)
        if is_full:
            super().shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(client_address, None)
                self._staying.discard(client_address)

    def is_now(self, client: Any, request: socket.socket) -> None:
        """By another socket the same connection goes on."""
        with self._lock:
            if client in self._open:
                self._open[client] = (request, self._open[client][1])

    def stays(self, client: Any) -> bool:
        """Let a connection live for as long as its client; False if there are enough of that kind."""
        with self._lock:
            if client not in self._open or len(self._staying) >= EVENT_STREAMS_MAX:
                return False
            self._staying.add(client)
            self._open[client] = (self._open[client][0], float("inf"))
            return True

    def service_actions(self) -> None:
        """End what lasts too long, whatever it does."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, ends in self._open.values() if ends < now]
        for request in late:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle, or was sent away: its own business."""
