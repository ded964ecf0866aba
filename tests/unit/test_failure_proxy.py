"""The failure proxy does what its plan says, and the same plan again the same."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import wait_until
from tests.failure_plan import KINDS, Fault, Kind, Plan
from tests.failure_proxy import HOST, FailureProxy
from tests.kinesis_proxy import HttpFailureProxy

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


@pytest.fixture
def service() -> Iterator[tuple[int, list[str]]]:
    """A port where records are put, and the keys of those that were."""
    taken: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            records = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["Records"]
            taken.extend(record["PartitionKey"] for record in records)
            body = json.dumps({"Records": [{"SequenceNumber": record["PartitionKey"]} for record in records]})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1], taken
        server.shutdown()
        thread.join()


def put(proxy: HttpFailureProxy, *keys: str) -> tuple[int, Any] | None:
    """Status and answer; nothing, if the connection was cut."""
    connection = http.client.HTTPConnection(HOST, int(proxy.endpoint.rpartition(":")[2]))
    body = json.dumps({"Records": [{"PartitionKey": key} for key in keys]})
    try:
        connection.request("POST", "/", body, {"X-Amz-Target": "Kinesis_20131202.PutRecords"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_named_call_of_kinesis_is_struck_as_the_plan_says(
    service: tuple[int, list[str]], kind: Kind
) -> None:
    port, taken = service
    keys = [str(number) for number in range(20)]
    with HttpFailureProxy(port, Plan(exactly={("PutRecords", 2): Fault(kind, 0.02, seed=1)})) as proxy:
        assert put(proxy, "first") == (200, {"Records": [{"SequenceNumber": "first"}]})
        answer = put(proxy, *keys)
        assert put(proxy, "last") is not None
        proxy.settle()
    arrived = [key for key in taken if key in keys]
    if kind in ("reset", "lost", "late", "halved"):
        assert answer is None
        assert arrived == ([] if kind == "reset" else keys)
        return
    assert answer is not None
    status, told = answer
    if kind in ("throttled", "failed"):
        assert arrived == []
        assert (status, told["__type"]) == (
            (400, "ProvisionedThroughputExceededException")
            if kind == "throttled"
            else (500, "InternalFailure")
        )
        return
    assert status == 200
    results = told["Records"]
    assert [key for key, result in zip(keys, results, strict=True) if "ErrorCode" not in result] == arrived
    assert (arrived == keys) == (kind == "slow")
    assert kind == "slow" or 0 < len(arrived) == 20 - told["FailedRecordCount"] < 20


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
