"""A TCP proxy in front of a Kafka broker that lets requests fail by a plan (`tests.failure_plan`).

It knows where requests and answers begin and which operation a request is, and that a broker answers the
requests of a connection in their order: so a lost reply is one that the broker has given, and a test that
wants the answer to the third EndTxn lost gets just that.

Clients only begin at the address they are given; then they go to those that the broker advertises. So the
broker must have a listener of its own for this proxy, which advertises the proxy's port:

    listeners=DIRECT://127.0.0.1:<direct>,PROXIED://127.0.0.1:<behind>
    advertised.listeners=DIRECT://127.0.0.1:<direct>,PROXIED://127.0.0.1:<port>

A client that begins at the proxy then never leaves it, while a test that begins at the direct port sees what
is really there.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from tests.failure_plan import Fault, Plan

HOST = "127.0.0.1"
#: Operations by the number that begins a request; others are called by their number.
OPERATIONS = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    10: "FindCoordinator",
    18: "ApiVersions",
    19: "CreateTopics",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    26: "EndTxn",
    32: "DescribeConfigs",
}
_LENGTH = struct.Struct(">i")
_OPERATION = struct.Struct(">h")
#: So that closing sends a reset, not the end of the stream.
_LINGER = struct.pack("ii", 1, 0)


class FailureProxy:
    """Listens on `port` while it is entered; 0 takes a free one. `plan` may be exchanged at any time."""

    def __init__(self, behind: int, plan: Plan | None = None, port: int = 0) -> None:
        self.plan = plan or Plan()
        self._behind = behind
        self._port = port
        self._links: set[_Link] = set()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> str:
        return f"{HOST}:{self._port}"

    def __enter__(self) -> Self:
        self._listener = socket.create_server((HOST, self._port))
        self._port = self._listener.getsockname()[1]
        self._start(self._accept, self._listener)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._listener is not None
        listener, self._listener = self._listener, None
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self.cut()
        while self._threads:
            with self._lock:
                waiting = list(self._threads)
            for thread in waiting:
                thread.join()

    def cut(self) -> int:
        """Every connection there is now; how many."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection((HOST, self._behind), timeout=5)
            except OSError:
                _reset(client)
                continue
            broker.settimeout(None)
            link = _Link(client, broker)
            with self._lock:
                self._links.add(link)
            self._start(self._pass_requests, link)
            self._start(self._pass_answers, link)

    def _pass_requests(self, link: _Link) -> None:
        while (request := _frame(link.client)) is not None:
            number = _OPERATION.unpack_from(request, _LENGTH.size)[0]
            fault = self.plan.next(OPERATIONS.get(number, str(number)))
            if fault is not None and fault.kind == "reset":
                break
            link.faults.append(fault)
            if fault is not None and fault.kind == "late":
                link.cut_client()
                time.sleep(fault.seconds)
                if _send(link.broker, request):
                    return  # ended by whoever waits for the answer, so that the broker has taken it
                break
            if not _send(link.broker, request):
                break
        self._end(link)

    def _pass_answers(self, link: _Link) -> None:
        while (answer := _frame(link.broker)) is not None:
            fault = link.faults.popleft() if link.faults else None
            if fault is not None and fault.kind in ("lost", "late"):
                break
            if fault is not None:
                link.ended.wait(fault.seconds)
            if not _send(link.client, answer) and not link.has_late:
                break
        self._end(link)

    def _end(self, link: _Link) -> None:
        link.cut()
        with self._lock:
            self._links.discard(link)

    def _start(self, work: Callable[..., None], *given: object) -> None:
        def run() -> None:
            try:
                work(*given)
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="failure-proxy", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()


@dataclass(eq=False)
class _Link:
    """A client's connection and the one made for it to the broker."""

    client: socket.socket
    broker: socket.socket
    #: Of requests that are passed on and not answered yet, in order.
    faults: deque[Fault | None] = field(default_factory=deque)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def has_late(self) -> bool:
        return any(fault is not None and fault.kind == "late" for fault in list(self.faults))

    def cut(self) -> None:
        self.cut_client()
        _reset(self.broker)

    def cut_client(self) -> None:
        self.ended.set()
        _reset(self.client)


def _send(to: socket.socket, frame: bytes) -> bool:
    try:
        to.sendall(frame)
    except OSError:
        return False
    return True


def _frame(source: socket.socket) -> bytes | None:
    """The next request or answer, with its length in front; nothing, if the connection has ended."""
    head = _exactly(source, _LENGTH.size)
    if head is None:
        return None
    body = _exactly(source, _LENGTH.unpack(head)[0])
    return None if body is None else head + body


def _exactly(source: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = source.recv(min(count - len(parts), 1 << 20))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


def _reset(connection: socket.socket) -> None:
    """Whoever waits in it is let go, and the peer sees a reset."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
