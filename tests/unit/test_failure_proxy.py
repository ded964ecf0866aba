"""The failure proxy does what its plan says, and the same plan again the same."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import wait_until
from tests.failure_plan import Fault, Kind, Plan
from tests.failure_proxy import HOST, FailureProxy

PRODUCE, END_TXN = 0, 26


class Broker:
    """Answers each request with its own bytes, and keeps them."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as source:
            while head := source.read(4):
                body = source.read(struct.unpack(">i", head)[0])
                self.taken.append(body[2:])
                connection.sendall(head + body)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


def ask(proxy: FailureProxy, *requests: tuple[int, bytes]) -> list[bytes] | None:
    """On one connection, all at once; nothing, if it was cut."""
    sent = [struct.pack(">h", operation) + text for operation, text in requests]
    with socket.create_connection((HOST, proxy.port)) as connection, connection.makefile("rb") as answers:
        try:
            connection.sendall(b"".join(struct.pack(">i", len(body)) + body for body in sent))
            found = []
            for _ in sent:
                head = answers.read(4)
                if len(head) < 4:
                    return None
                found.append(answers.read(struct.unpack(">i", head)[0])[2:])
        except OSError:
            return None
    return found


def test_without_faults_all_is_passed_on(broker: Broker) -> None:
    with FailureProxy(broker.port) as proxy:
        large = b"x" * 3_000_000
        assert ask(proxy, (PRODUCE, b"a"), (END_TXN, b"b"), (PRODUCE, large)) == [b"a", b"b", large]


@pytest.mark.parametrize(
    ("kind", "is_taken"), [("reset", False), ("lost", True), ("late", True), ("slow", True)]
)
def test_the_named_request_is_struck_and_no_other(broker: Broker, kind: Kind, is_taken: bool) -> None:
    plan = Plan(exactly={("EndTxn", 2): Fault(kind, 0.05)})
    with FailureProxy(broker.port, plan) as proxy:
        assert ask(proxy, (END_TXN, b"1"), (PRODUCE, b"p")) == [b"1", b"p"]
        assert ask(proxy, (END_TXN, b"2")) == ([b"2"] if kind == "slow" else None)
        assert ask(proxy, (END_TXN, b"3")) == [b"3"]
        if is_taken:
            wait_until(lambda: b"2" in broker.taken, "the request to reach the broker")
    assert (b"2" in broker.taken) == is_taken
    assert [(struck.operation, struck.ordinal) for struck in plan.struck] == [("EndTxn", 2)]


def test_a_proxy_on_the_same_port_again_and_a_broker_that_is_away(broker: Broker) -> None:
    with FailureProxy(broker.port) as proxy:
        port = proxy.port
        assert ask(proxy, (PRODUCE, b"a")) == [b"a"]
    broker.close()
    with FailureProxy(broker.port, port=port) as proxy:
        assert ask(proxy, (PRODUCE, b"b")) is None
    again = Broker()
    with FailureProxy(again.port, port=port) as proxy:
        assert ask(proxy, (PRODUCE, b"c")) == [b"c"]
    broker._listener, again._listener = again._listener, broker._listener


@given(st.integers(0, 2**31), st.lists(st.sampled_from(["Produce", "EndTxn", "Fetch"]), max_size=60))
def test_what_is_struck_depends_on_seed_operation_and_ordinal_alone(seed: int, operations: list[str]) -> None:
    shares: dict[Kind, float] = {"reset": 0.2, "lost": 0.2, "slow": 0.3}
    one, other = (
        Plan(seed, shares, only=["Produce", "EndTxn"]),
        Plan(seed, shares, only=["Produce", "EndTxn"]),
    )
    for operation in operations:
        one.next(operation)
    for operation in sorted(operations):
        other.next(operation)
    assert sorted(map(repr, one.struck)) == sorted(map(repr, other.struck))
    assert not any(struck.operation == "Fetch" for struck in one.struck)
