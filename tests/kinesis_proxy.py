"""An HTTP proxy in front of a Kinesis server that lets requests fail by a plan (`tests.failure_plan`).

Neither kinesalite nor moto throttles or fails by itself. Operations are called by Kinesis' names. `answering`
makes every request fail with one error until it is None again: credentials that expired, a stream that is
gone. A call that has a record with the partition key `invalid` is refused as a whole; records with the
partition key `failing` fail alone, time and again, and so do those whose hash is in `failing_hashes`, as if
their shard were down. Operations that are `denied` are refused by rights.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.failure_plan import Fault, Plan

_HOST = "127.0.0.1"
_THROTTLED = "ProvisionedThroughputExceededException"
_FAILED = "InternalFailure"
_CUT = (OSError, http.client.HTTPException)
#: So that closing sends a reset, not the end of the stream.
_LINGER = struct.pack("ii", 1, 0)


class HttpFailureProxy:
    """Listens while it is entered. `plan` and `answering` may be exchanged at any time."""

    def __init__(self, behind: int, plan: Plan | None = None) -> None:
        self.plan = plan or Plan()
        self.answering: str | None = None
        self.invalid: str | None = None
        self.failing: str | None = None
        self.failing_hashes = range(0)
        self.refused: Counter[str] = Counter()  # by partition key, how often records failed alone
        self.denied: set[str] = set()
        self.behind = behind
        self.late: list[threading.Thread] = []

    @property
    def endpoint(self) -> str:
        return f"http://{_HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._server = _Server((_HOST, 0), type("_OwnHandler", (_Handler,), {"owner": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.cut()
        self._server.server_close()
        for thread in self.late:
            thread.join()

    def settle(self) -> None:
        """Wait until whatever comes late has come."""
        for thread in self.late:
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.connections: set[socket.socket] = set()

    def cut(self) -> None:
        for connection in list(self.connections):
            with contextlib.suppress(*_CUT):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    owner: HttpFailureProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)  # type: ignore[attr-defined]

    def finish(self) -> None:
        self.server.connections.discard(self.connection)  # type: ignore[attr-defined]
        with contextlib.suppress(*_CUT):
            super().finish()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def handle(self) -> None:
        with contextlib.suppress(*_CUT):
            super().handle()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        operation = self.headers.get("X-Amz-Target", ".").partition(".")[2]
        denied = "AccessDeniedException" if operation in self.owner.denied else None
        if (code := self.owner.answering or denied) is not None:
            self._answer(400, _error(code))
            return
        if self.owner.invalid is not None and self.owner.invalid in _partition_keys(body):
            self._answer(400, _error("ValidationException"))
            return
        keys = _partition_keys(body)
        if fails := [number for number, key in enumerate(keys) if self._fails(key)]:
            self._pass_on_in_part(body, dict.fromkeys(fails, _FAILED))
            self.owner.refused.update(keys[number] for number in fails)
            return
        fault = self.owner.plan.next(operation)
        if fault is None:
            self._answer(*self._passed_on(body))
        else:
            getattr(self, f"_{fault.kind}")(body, fault)

    def _fails(self, key: str) -> bool:
        hashes = self.owner.failing_hashes
        return key == self.owner.failing or (
            hashes.stop > 0 and int(hashlib.md5(key.encode()).hexdigest(), 16) in hashes
        )

    def _reset(self, body: bytes, fault: Fault) -> None:
        self._cut()

    def _slow(self, body: bytes, fault: Fault) -> None:
        answer = self._passed_on(body)
        time.sleep(fault.seconds)
        self._answer(*answer)

    def _lost(self, body: bytes, fault: Fault) -> None:
        self._passed_on(body)
        self._cut()

    def _halved(self, body: bytes, fault: Fault) -> None:
        self.close_connection = True
        self._answer(*self._passed_on(body), part=0.5)

    def _late(self, body: bytes, fault: Fault) -> None:
        def pass_on_later() -> None:
            time.sleep(fault.seconds)
            with contextlib.suppress(*_CUT):
                self._passed_on(body)

        thread = threading.Thread(target=pass_on_later)
        self.owner.late.append(thread)
        thread.start()
        self._cut()

    def _throttled(self, body: bytes, fault: Fault) -> None:
        self._answer(400, _error(_THROTTLED))

    def _failed(self, body: bytes, fault: Fault) -> None:
        self._answer(500, _error(_FAILED))

    def _partial(self, body: bytes, fault: Fault) -> None:
        count = len(_partition_keys(body))
        if not count:  # another operation
            self._answer(*self._passed_on(body))
            return
        chance = random.Random(fault.seed)
        fails = [number for number in range(count) if chance.random() < 0.5]
        self._pass_on_in_part(body, {number: chance.choice([_THROTTLED, _FAILED]) for number in fails})

    def _pass_on_in_part(self, body: bytes, fails: dict[int, str]) -> None:
        """All records but these, for which the answer has a code."""
        request = json.loads(body)
        records: list[Any] = request["Records"]
        passed = [number for number in range(len(records)) if number not in fails]
        request["Records"] = [records[number] for number in passed]
        results: dict[int, Any] = {
            number: {"ErrorCode": code, "ErrorMessage": "Not taken."} for number, code in fails.items()
        }
        if passed:
            status, answer = self._passed_on(json.dumps(request).encode())
            if status != 200:
                self._answer(status, answer)
                return
            results |= dict(zip(passed, json.loads(answer)["Records"], strict=True))
        told = {"FailedRecordCount": len(fails), "Records": [results[at] for at in range(len(records))]}
        self._answer(200, json.dumps(told).encode())

    def _passed_on(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(_HOST, self.owner.behind, timeout=60)
        try:
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in ("host", "content-length", "connection")
            }
            connection.request("POST", self.path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _answer(self, status: int, body: bytes, part: float = 1.0) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: int(part * len(body))])

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.connection.close()


def _partition_keys(body: bytes) -> list[str]:
    return [record["PartitionKey"] for record in json.loads(body).get("Records", [])]


def _error(code: str) -> bytes:
    return json.dumps({"__type": code, "message": "As planned."}).encode()
