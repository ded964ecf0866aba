"""What clients may take of the server, over sockets: limits, nonsense, reading slowly or not at all."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import resource
import secrets
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.core.errors import ConfigError
from penstock.shapes.http.asgi import AsgiApp
from penstock.shapes.http.compression import Compressor
from penstock.shapes.http.connection import Connection
from penstock.shapes.http.request_parser import HEAD_BYTES_MAX
from penstock.shapes.http.sent_body import SentBodies
from penstock.shapes.http.server import connections_possible, serve
from penstock.shapes.shape import SnapshotProblem
from penstock.shapes.source.spool import Spools
from tests.conftest import wait_until
from tests.serving import Answer
from tests.shape_wire import END, Snapshot, Wire, item, live, waits

_GUARDED = {"secret": "hidden"}


def test_initial_and_existing_requests_are_limited_apart(
    tmp_path: Path, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    limits = {"initial": 1, "existing": 1}
    with Wire(tmp_path, max_concurrent_requests=limits) as wire:
        shape = wire.synced()
        waiting = meanwhile(lambda: live(wire, shape, "0_inf"))
        waits(wire)
        refused = live(wire, shape, "0_inf")
        assert refused.status == 503
        assert refused.json() == {
            "code": "concurrent_request_limit_exceeded",
            "message": "Concurrent existing request limit exceeded (limit: 1), please retry",
        }
        assert 6 <= int(refused.headers["retry-after"]) <= 10
        assert refused.headers["electric-internal-known-error"] == "true"
        assert wire.get(table="items", offset="-1").status == 200
        wire.append(shape, 100, [item(1)])
        assert waiting.result().status == 200
        assert live(wire, shape, "0_inf").status == 200


def test_large_bodies_and_long_lines_are_refused(tmp_path: Path) -> None:
    with Wire(tmp_path, body_bytes_max=2000) as wire:
        parameters = {"table": "items", "offset": "-1"}
        answer = wire.ask("POST", "/v1/shape", parameters, b'{"where":"' + b"x" * 3000 + b'"}')
        assert (answer.status, answer.json()) == (413, {"error": "Request body too large"})
        assert (
            wire.ask("POST", "/v1/shape", parameters, b"{").json()["error"] == "Invalid JSON in request body"
        )
        assert wire.ask("POST", "/v1/shape", parameters, b"").status == 200
        assert wire.ask("POST", "/v1/shape", parameters, b"").headers["cache-control"] == "no-cache"
        with socket.create_connection(("127.0.0.1", wire.port)) as client:
            client.settimeout(120)
            client.sendall(b"GET /v1/shape?where=")
            received = b""
            with contextlib.suppress(ConnectionError):  # it takes some, and ends the connection then
                for _ in range(200):
                    client.sendall(b"x" * 16_384)
                while piece := client.recv(4096):
                    received += piece
            assert not received or received.startswith(b"HTTP/1.1 414 ")
        assert wire.ask("GET", "/").status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/shape HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/shape HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_harms_nobody(wire: Wire, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", wire.port)) as client:
        client.settimeout(120)
        client.sendall(sent)
        assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
        assert client.recv(4096) == b""
    assert wire.ask("GET", "/").status == 200


def test_what_is_refused_says_why_and_is_not_kept(wire: Wire) -> None:
    """As any other answer does: a browser that may not read it shows nothing."""
    for sent, status, said in (
        ("GET /v1/shape?where=ü HTTP/1.1\r\n\r\n".encode(), 400, "percent-encoded"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 500 + b"\r\n", 431, "headers"),
        (b"GET / HTTP/1.1\r\na: ".ljust(HEAD_BYTES_MAX + 1, b"b"), 431, "bytes"),
        (b"\x00\r\n\r\n", 400, "no HTTP"),
    ):
        answer = _exchange(wire, sent)
        assert answer.status == status
        assert said in answer.json()["message"]
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["cache-control"] == "no-store"
        for name in ("electric-server", "x-request-id"):
            assert answer.headers[name]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 100_000 + b"\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n" + b"a:b\r\n" * 100_000,
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\na:" + b"b" * 1_000_000,
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"x" * 1_000_000,
    ],
    ids=["headers", "trailers", "a long trailer", "an extension of a chunk"],
)
def test_a_flood_of_header_lines_is_cut_off(wire: Wire, sent: bytes) -> None:
    """The lines are counted, not the names; what comes after a body is no way around that."""
    received = _sent(wire, sent)  # nothing, if the end reaches us before we have sent all
    assert not received or _answer(received).status in (400, 431)
    assert wire.ask("GET", "/").status == 200


def test_small_chunks_are_no_flood_and_trailers_mean_nothing(wire: Wire) -> None:
    head = b"POST /v1/shape?table=items&offset=-1 HTTP/1.1\r\nconnection: close\r\n"
    body = b"{" + b" " * 200_000 + b"}"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    answer = _exchange(
        wire,
        head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\norigin: https://evil.example\r\n\r\n",
    )
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("wire", [_GUARDED], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("POST /v1/shape?table=items&offset=-1&secret=guess", 401),
        ("POST /v1/shape?table=items&offset=-1", 401),
        ("POST /v1/shape?secret=%ff", 400),
        ("POST /", 404),
        ("GET /v1/shape?table=items&offset=-1&secret=hidden", 200),
        ("DELETE /v1/shape?table=items&secret=hidden", 405),
    ],
)
def test_a_body_that_means_nothing_is_heard_to_its_end_and_not_kept(
    wire: Wire, line: str, status: int
) -> None:
    body = b" " * 8_000_000
    head = f"{line} HTTP/1.1\r\ncontent-length: {len(body) + 1}\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", wire.port)) as client, _pinned() as pinned:
        client.settimeout(120)
        client.sendall(head.encode())
        client.sendall(body)
        wait_until(lambda: wire.received_bytes() == [len(body)], "all but its last byte to come")
        assert pinned() < 512 * 1024
        assert wire.door.bodies.used_bytes == 0
        client.sendall(b" ")
        assert _answer(_all_of(client)).status == status


@pytest.mark.parametrize("wire", [_GUARDED], indirect=True, ids=[""])
def test_a_body_in_small_chunks_takes_no_more_than_it_is_long(wire: Wire) -> None:
    size = 256 * 1024
    head = b"POST /v1/shape?table=items&offset=-1&secret=hidden HTTP/1.1\r\nconnection: close\r\n"
    sent = head + b"transfer-encoding: chunked\r\n\r\n" + b"2\r\n  \r\n" * (size // 2)
    with socket.create_connection(("127.0.0.1", wire.port)) as client, _pinned() as pinned:
        client.settimeout(120)
        client.sendall(sent)
        wait_until(lambda: wire.received_bytes() == [size], "the body to come")
        assert pinned() < 4 * size
        client.sendall(b"2\r\n{}\r\n0\r\n\r\n")
        assert _answer(_all_of(client)).status == 200
    assert wire.door.bodies.used_bytes == 0


def test_an_address_in_small_pieces_takes_no_more_than_it_is_long(wire: Wire) -> None:
    size = 256 * 1024

    async def feed() -> int:
        connection = Connection(wire.door, set())
        connection.connection_made(cast(Any, SimpleNamespace(set_write_buffer_limits=lambda high: None)))
        with _pinned() as pinned:
            for piece in [b"GET /?", *[b"xy"] * (size // 2)]:
                connection.data_received(piece)
            return pinned()

    assert wire.run(feed()) < 2 * size


def test_a_body_that_is_allowed_has_room_if_it_is_alone() -> None:
    bodies = SentBodies(bytes_max=10, all_bytes_max=4)
    body = bodies.open()
    body.add(b"0123456789")
    assert (body.refusal, bodies.used_bytes, body.take(), bodies.used_bytes) == (None, 10, b"0123456789", 0)


def test_bodies_of_all_connections_have_a_common_bound(wire: Wire) -> None:
    wire.door.bodies.all_bytes_max = 1_000_000
    line = "POST /v1/shape?table=items&offset=-1 HTTP/1.1\r\nhost: x\r\n"
    body = b"{" + b" " * 500_000 + b"}"
    with socket.create_connection(("127.0.0.1", wire.port)) as slow:
        slow.sendall(f"{line}content-length: 900000\r\n\r\n".encode() + b" " * 800_000)
        wait_until(lambda: wire.door.bodies.used_bytes == 800_000, "it to be sent")
        refused = _exchange(wire, f"{line}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert refused.status == 503
        assert refused.json()["code"] == "request_body_limit_exceeded"
        assert int(refused.headers["retry-after"]) >= 6
        assert refused.headers["connection"] == "close"
        assert refused.headers["electric-internal-known-error"] == "true"
        assert wire.door.bodies.used_bytes == 800_000
        assert wire.get(table="items", offset="-1").status == 200, "what has no body is not concerned"
    wait_until(lambda: wire.door.bodies.used_bytes == 0, "the slow one to be gone")
    assert wire.ask("POST", "/v1/shape", {"table": "items", "offset": "-1"}, body).status == 200
    assert wire.door.bodies.used_bytes == 0


def test_a_body_is_not_kept_while_its_answer_is_awaited(
    wire: Wire, meanwhile: Callable[[Callable[[], Answer]], Future[Answer]]
) -> None:
    shape = wire.synced()
    parameters = {"table": "items", "offset": "0_inf", "handle": shape.handle, "live": "true"}
    body = json.dumps({"ignored": "x" * 1_000_000}).encode()
    waiting = meanwhile(lambda: wire.ask("POST", "/v1/shape", parameters, body))
    waits(wire)
    assert wire.door.bodies.used_bytes == 0
    wire.append(shape, 100, [item(1)])
    assert waiting.result().status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nif-none-match: %b\r\n\r\n",
        b"GET / HTTP/1.1\r\norigin: %b\r\n\r\n",
        b"GET / HTTP/1.1\r\nmeans-nothing: %b\r\n\r\n",
        b"GET /%b HTTP/1.1\r\n\r\n",
        b"GET /?%b HTTP/1.1\r\n\r\n",
    ],
    ids=["read", "given back", "not read", "path", "query"],
)
def test_heads_sent_ahead_of_their_answers_pin_less_than_two_mebibytes(
    wire: Wire, head: bytes, meanwhile: Callable[[Callable[[], None]], Future[None]]
) -> None:
    shape = wire.synced()
    first = f"GET /v1/shape?table=items&offset=0_inf&handle={shape.handle}&live=true HTTP/1.1\r\n\r\n"
    sent = first.encode() + head % (b"x" * (HEAD_BYTES_MAX - 1000)) * 16
    with socket.create_connection(("127.0.0.1", wire.port)) as client, _pinned() as pinned:
        sending = meanwhile(lambda: client.sendall(sent))
        wait_until(lambda: wire.held_back() == 1, "no more to be read")
        assert pinned() < 2 * 1024 * 1024
        client.shutdown(socket.SHUT_RDWR)
        assert isinstance(sending.exception(), OSError | None)


def test_headers_sent_twice_are_one_list(wire: Wire) -> None:
    tag = wire.get(table="items", offset="-1").headers["etag"]
    lines = f'if-none-match: "x"\r\nIf-None-Match: {tag}\r\nconnection: close\r\n\r\n'
    sent = f"GET /v1/shape?table=items&offset=-1 HTTP/1.1\r\n{lines}"
    assert _exchange(wire, sent.encode()).status == 304


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://other.example/v1/health", 200),
        ("http://other.example", 200),
        ("http://other.example?x=/v1/nothing", 200),
        ("HTTP://other.example:80/nothing", 404),
        ("/?x=http://other.example/nothing", 200),
    ],
)
def test_a_target_may_name_a_host(wire: Wire, target: str, status: int) -> None:
    assert _exchange(wire, f"GET {target} HTTP/1.1\r\nconnection: close\r\n\r\n".encode()).status == status


def test_a_client_that_sends_no_more_gets_its_answers(wire: Wire) -> None:
    wire.shapes.snapshot = Snapshot([item(number) for number in range(4000)])
    request = b"GET /v1/shape?table=items&offset=-1 HTTP/1.1\r\nhost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", wire.port)) as client:
        client.settimeout(120)
        client.sendall(request * 2)
        client.shutdown(socket.SHUT_WR)
        received = _all_of(client)
    assert received.count(b"HTTP/1.1 200 ") == 2
    assert received.endswith(b"0\r\n\r\n")


def test_a_client_that_leaves_waits_no_more(wire: Wire) -> None:
    shape = wire.synced()
    query = f"table=items&offset=0_inf&handle={shape.handle}&live=true"
    with socket.create_connection(("127.0.0.1", wire.port)) as client:
        client.sendall(f"GET /v1/shape?{query} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        waits(wire)
    waits(wire, 0)


def test_connections_are_limited(tmp_path: Path) -> None:
    with Wire(tmp_path, max_connections=2) as wire, contextlib.ExitStack() as opened:
        for _ in range(2):
            opened.enter_context(socket.create_connection(("127.0.0.1", wire.port)))
        wait_until(lambda: len(wire.unsent_bytes()) == 2, "they are connected")
        with socket.create_connection(("127.0.0.1", wire.port)) as client:
            client.settimeout(120)
            refused = _answer(_all_of(client))
        assert refused.status == 503
        assert refused.json()["code"] == "connection_limit_exceeded"
        assert int(refused.headers["retry-after"]) >= 6
        opened.close()
        wait_until(lambda: not wire.unsent_bytes(), "they are gone")
        assert wire.ask("GET", "/v1/health").status == 200


def test_connections_leave_room_for_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        possible = connections_possible()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert 0 < possible < hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_port_that_is_taken_is_named(wire: Wire) -> None:
    with pytest.raises(ConfigError, match=f"port {wire.port} .*in use") as caught:
        wire.run(serve(wire.door, "127.0.0.1", wire.port))
    assert "ELECTRIC_PORT" in caught.value.remedy


def test_requests_sent_ahead_are_answered_in_order(wire: Wire) -> None:
    shape = wire.synced()
    paths = ["/", "/nope", f"/v1/shape?table=items&offset=0_inf&handle={shape.handle}", "/v1/health"]
    with socket.create_connection(("127.0.0.1", wire.port)) as client:
        client.settimeout(120)
        lines = [f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n" for path in paths * 5]
        client.sendall("".join(lines).encode() + b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
        received = b""
        while piece := client.recv(65_536):
            received += piece
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", received)
    assert statuses == [b"200", b"404", b"200", b"200"] * 5 + [b"200"]


def test_an_old_client_gets_a_long_answer_without_chunks(wire: Wire) -> None:
    rows = [item(number) for number in range(4000)]
    wire.shapes.snapshot = Snapshot(rows)
    wire.synced()
    with socket.create_connection(("127.0.0.1", wire.port)) as client:
        client.sendall(b"GET /v1/shape?table=items&offset=-1 HTTP/1.0\r\n\r\n")
        received = b""
        while piece := client.recv(65_536):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert json.loads(body) == [*rows, END]


def test_a_client_that_does_not_read_is_held_back_and_sent_away(tmp_path: Path) -> None:
    with Wire(tmp_path, send_timeout="500ms") as wire:
        wide = [{**item(number), "value": {"value": "x" * 10_000}} for number in range(3000)]  # 30 MB
        wire.shapes.snapshot = Snapshot(wide)
        shape = wire.synced()
        wait_until(lambda: shape.state == "ready", "the snapshot is complete")
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", wire.port))
        client.sendall(b"GET /v1/shape?table=items&offset=-1 HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_until(lambda: wire.app.admission.present["initial"] == 1, "it is being answered")
        assert wire.ask("GET", "/v1/health").status == 200
        assert max(wire.unsent_bytes()) <= 2 * 1024 * 1024
        wait_until(lambda: wire.app.admission.present["initial"] == 0, "it is sent away")
        client.close()


@pytest.mark.parametrize("encoding", ["identity", "gzip", "br"])
def test_clients_that_leave_during_an_answer_leave_nothing_open(wire: Wire, encoding: str) -> None:
    wire.shapes.snapshot = Snapshot(_noise(1000))
    shape = wire.synced()
    wait_until(lambda: shape.state == "ready", "the snapshot is complete")
    request = f"GET /v1/shape?table=items&offset=-1 HTTP/1.1\r\naccept-encoding: {encoding}\r\n\r\n"
    gc.collect()
    gc.disable()  # what is only found by looking for it is held for long
    others = _open_chunks()  # of other tests of this process
    try:
        for _ in range(20):
            with _unread(wire, request):
                wait_until(lambda: _open_chunks() > others, "it is being answered")
            wait_until(lambda: wire.app.admission.present["initial"] == 0, "it is known to be gone")
        wait_until(lambda: _open_chunks() <= others, "all files are closed")
    finally:
        gc.enable()


def test_brotli_holds_nothing_back() -> None:
    """Else a client that does not read is noticed megabytes later."""
    compressor = Compressor("br")
    pieces = [secrets.token_hex(128 * 1024).encode() for _ in range(8)]
    assert min(len(compressor.add(piece)) for piece in pieces) > 100_000


def test_spooled_bodies_have_a_common_bound(tmp_path: Path) -> None:
    spools = Spools(tmp_path, bytes_max=1000)
    one, other = spools.open(), spools.open()
    one.write(b"x" * 800)
    with pytest.raises(SnapshotProblem) as caught:
        other.write(b"x" * 300)
    assert (caught.value.status, bool(caught.value.retry_after_s)) == (503, True)
    assert b"".join(one.pieces()) == b"x" * 800
    one.close()
    one.close()
    last = spools.open()
    last.write(b"x" * 1000)
    assert spools.used_bytes == 1000
    del last
    assert spools.used_bytes == 0


@pytest.mark.parametrize("wire", [{"long_poll_timeout": "300ms"}], indirect=True, ids=[""])
def test_the_application_speaks_asgi_too(wire: Wire) -> None:
    shape = wire.synced()
    wire.append(shape, 100, [item(number) for number in range(4000)])

    def ask(method: str, query: str, body: bytes = b"") -> tuple[int, dict[bytes, bytes], bytes]:
        sent: list[Any] = []
        scope = {"type": "http", "method": method, "path": "/v1/shape", "headers": []}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        wire.run(AsgiApp(wire.door)({**scope, "query_string": query.encode()}, receive, send))
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], dict(sent[0]["headers"]), content

    status, headers, content = ask("GET", f"table=items&offset=0_inf&handle={shape.handle}")
    assert (status, headers[b"electric-offset"]) == (200, b"100_7998")
    assert len(json.loads(content)) == 4001
    assert ask("HEAD", f"table=items&offset=0_inf&handle={shape.handle}")[2] == b""
    assert ask("GET", f"table=items&offset=100_7998&handle={shape.handle}&live=true")[0] == 200
    assert ask("POST", "table=items&offset=-1", b"x" * 9_000_000)[0] == 413
    assert wire.app.admission.present == {"initial": 0, "existing": 0}


@pytest.mark.parametrize("wire", [_GUARDED], indirect=True, ids=[""])
def test_an_asgi_server_is_asked_for_no_body_without_the_secret(wire: Wire) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("nobody needs the body")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/shape", "headers": []}
    wire.run(AsgiApp(wire.door)({**scope, "query_string": b"table=items&offset=-1"}, receive, send))
    assert sent[0]["status"] == 401


def _noise(count: int) -> list[dict[str, Any]]:
    """Rows of 10 KB each that no compression makes much smaller."""
    return [{**item(number), "value": {"value": secrets.token_hex(5000)}} for number in range(count)]


def _open_chunks() -> int:
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(str(descriptor.readlink()))
    return sum("chunk_" in name for name in names)


@contextlib.contextmanager
def _pinned() -> Iterator[Callable[[], int]]:
    """How much memory is taken since, of what has not been given back."""
    gc.collect()
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def _unread(wire: Wire, request: str) -> Iterator[None]:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", wire.port))
        client.sendall(request.encode())
        yield


def _all_of(client: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65_536):
            received += piece
    return received


def _exchange(wire: Wire, sent: bytes) -> Answer:
    return _answer(_sent(wire, sent))


def _sent(wire: Wire, sent: bytes) -> bytes:
    """What comes back until the connection ends."""
    with socket.create_connection(("127.0.0.1", wire.port)) as client:
        client.settimeout(120)
        with contextlib.suppress(ConnectionError):  # it may have heard enough before
            client.sendall(sent)
        return _all_of(client)


def _answer(received: bytes) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), headers, body)
