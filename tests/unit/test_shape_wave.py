"""Waves: one answer to many clients that wait, past their transports."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
from collections.abc import Callable, Iterator, Sequence

import pytest

from penstock.shapes.http import wave
from penstock.shapes.http.longpoll import Poll
from penstock.shapes.http.message import COPIED_BYTES_MAX, Answer
from tests.conftest import wait_until
from tests.shape_wire import Wire, item, live, up_to_date, waits

MANY = 3 * wave.FEW


@pytest.fixture
def waiting(wire: Wire) -> Iterator[Callable[..., list[socket.socket]]]:
    """Clients that have sent what they are given, each on a connection of its own."""
    with contextlib.ExitStack() as open_sockets:

        def ask(requests: Sequence[bytes], polls: int) -> list[socket.socket]:
            clients = []
            for request in requests:
                client = socket.create_connection(("127.0.0.1", wire.port), timeout=30)
                clients.append(open_sockets.enter_context(client))
                client.sendall(request)
            waits(wire, polls)
            return clients

        yield ask


def request(handle: str, number: int, *lines: str, method: str = "GET", offset: str = "0_inf") -> bytes:
    target = f"/v1/shape?table=items&handle={handle}&offset={offset}&live=true&cursor=0"
    own = (f"x-request-id: {number:020d}", *lines)
    return "\r\n".join((f"{method} {target} HTTP/1.1", "host: x", *own, "\r\n")).encode()


def read(client: socket.socket, method: str = "GET") -> tuple[dict[str, str], bytes]:
    """An answer; the connection may go on."""
    answer = http.client.HTTPResponse(client, method=method)
    answer.begin()
    assert answer.status == 200
    return {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def raw(client: socket.socket) -> bytes:
    """What comes until there is a whole answer."""
    received = b""
    while not received.endswith(b"]"):
        received += client.recv(65536)
    return received


def test_all_get_the_same_bytes_but_for_the_headers_of_their_own(
    wire: Wire, waiting: Callable[..., list[socket.socket]]
) -> None:
    shape = wire.synced()
    live(wire, shape, "0_inf")
    asked = [request(shape.handle, n, f"origin: https://{n % 7}.example") for n in range(MANY)]
    clients = waiting(asked, MANY)
    wire.append(shape, 100, [item(7), item(8)])
    answers = [raw(client) for client in clients]
    alone = raw(waiting([asked[0]], 0)[0])  # not in a wave
    for number, answer in enumerate(answers):
        own = f"access-control-allow-origin: https://{number % 7}.example\r\nx-request-id: {number:020d}\r\n"
        first = b"access-control-allow-origin: https://0.example\r\nx-request-id: " + b"0" * 20 + b"\r\n"
        assert answer.replace(own.encode(), first) == answers[0]
    assert answers[0] == alone
    assert wire.app.admission.present == {"initial": 0, "existing": 0}


def test_who_wants_no_body_or_no_further_answer_is_among_them(
    wire: Wire, waiting: Callable[..., list[socket.socket]]
) -> None:
    shape = wire.synced()
    live(wire, shape, "0_inf")
    asked = [request(shape.handle, n) for n in range(MANY)]
    asked[3] = request(shape.handle, 3, method="HEAD")
    asked[5] = request(shape.handle, 5, "connection: close")
    clients = waiting(asked, MANY)
    wire.append(shape, 100, [item(7)])
    for number, client in enumerate(clients):
        headers, body = read(client, "HEAD" if number == 3 else "GET")
        assert (body == b"") == (number == 3)
        assert headers.get("connection") == ("close" if number == 5 else None)
        assert headers["x-request-id"] == f"{number:020d}"
    assert clients[5].recv(1) == b""


def test_connections_go_on_with_the_requests_behind(
    wire: Wire, waiting: Callable[..., list[socket.socket]]
) -> None:
    shape = wire.synced()
    live(wire, shape, "0_inf")
    asked = [request(shape.handle, n) + request(shape.handle, n, offset="100_0") for n in range(MANY)]
    clients = waiting(asked, MANY)
    for tx in (100, 200):
        wire.append(shape, tx, [item(tx)])
        for client in clients:
            assert items_of(read(client)[1]) == [item(tx), up_to_date(tx)]
        waits(wire, MANY if tx == 100 else 0)
    for number, client in enumerate(clients):
        client.sendall(request(shape.handle, number, offset="200_0"))
    waits(wire, MANY)


def test_clients_that_have_gone_keep_nobody_from_the_answer(
    wire: Wire, waiting: Callable[..., list[socket.socket]]
) -> None:
    shape = wire.synced()
    live(wire, shape, "0_inf")
    clients = waiting([request(shape.handle, n) for n in range(MANY)], MANY)

    async def go_and_change() -> None:
        """In the server's loop, which hears of it when all is written."""
        for client in clients[::2]:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        wire.append(shape, 100, [item(7)])

    wire.run(go_and_change())
    for client in clients[1::2]:
        assert items_of(read(client)[1]) == [item(7), up_to_date(100)]
    wait_until(lambda: len(wire.unsent_bytes()) == MANY // 2, "the others are let go of")
    assert wire.app.waiting == 0
    assert wire.app.admission.present == {"initial": 0, "existing": 0}


def items_of(body: bytes) -> object:
    return json.loads(body)


class Client:
    """A `Line` to a socket that takes what it can; the rest is noted."""

    def __init__(self, own: bytes, room: int | None = None) -> None:
        self.ours, self.theirs = socket.socketpair()
        if room is not None:
            self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        self.own = own
        self.unsent: bytes | None = None
        self.delivered: list[Answer] = []

    def place(self) -> tuple[int, bytes] | None:
        return self.ours.fileno(), self.own

    def sent(self, unsent: bytes) -> None:
        self.unsent = unsent

    def received(self) -> bytes:
        self.theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return self.theirs.recv(1 << 20)
        return b""

    def poll(self) -> Poll:
        poll = Poll.__new__(Poll)
        poll.deliver, poll.line = self.delivered.append, self
        return poll

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def lines() -> Iterator[list[Client]]:
    clients = [Client(b"own: " + b"x" * (number % 3) + b"\r\n") for number in range(MANY)]
    yield clients
    for client in clients:
        client.close()


def whole(answer: Answer, own: bytes) -> bytes:
    assert isinstance(answer.body, bytes)
    return answer.head + own + b"\r\n" + answer.body


def test_what_a_socket_does_not_take_is_left_to_its_connection(lines: list[Client]) -> None:
    answer = Answer(200, ((b"a", b"b"),), bytes(range(256)) * 40)
    lines[2].close()
    lines[2] = Client(b"full\r\n", room=1)
    lines[2].ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            lines[2].ours.send(b"-" * 100)
    before = lines[2].theirs.recv(1 << 20, socket.MSG_PEEK)
    lines[4].theirs.close()  # and one is broken
    wave.deliver_to_all([line.poll() for line in lines], answer)
    for number, line in enumerate(lines):
        expected = whole(answer, line.own)
        assert line.unsent is not None
        if number == 4:
            assert line.unsent == expected
            continue
        received = line.received()
        if number == 2:
            assert received.startswith(before)
            received = received[len(before) :]
            assert line.unsent
        assert received + line.unsent == expected
        assert not line.delivered


def test_those_without_a_line_are_among_them(lines: list[Client]) -> None:
    answer = Answer(200, (), b"[]")
    polls = [line.poll() for line in lines]
    for poll in polls[::3]:
        poll.line = None
    wave.deliver_to_all(polls, answer)
    for number, line in enumerate(lines):
        assert line.received() == (b"" if number % 3 == 0 else whole(answer, line.own))
        assert line.delivered == ([answer] if number % 3 == 0 else [])


@pytest.mark.parametrize(
    ("count", "body"), [(wave.FEW - 1, b"[]"), (MANY, b"x" * (COPIED_BYTES_MAX + 1))], ids=["few", "large"]
)
def test_few_clients_and_large_answers_go_the_usual_way(lines: list[Client], count: int, body: bytes) -> None:
    answer = Answer(200, (), body)
    wave.deliver_to_all([line.poll() for line in lines[:count]], answer)
    assert all(line.delivered == [answer] and line.unsent is None for line in lines[:count])


def test_an_answer_without_a_body_is_one_too(lines: list[Client]) -> None:
    answer = Answer(304, ((b"etag", b'"x"'),))
    wave.deliver_to_all([line.poll() for line in lines], answer)
    assert [line.received() for line in lines] == [answer.head + line.own + b"\r\n" for line in lines]
