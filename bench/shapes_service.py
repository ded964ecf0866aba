"""`penstock shapes serve` as a process, with a database of its own, and a raw HTTP client for it.

The client does what a sync client does and nothing more: it reads a shape from the start, then polls with
the offset, handle and cursor it was given.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import psutil
import psycopg

from bench.workload import Connection
from penstock.sources.postgres.embedded import EmbeddedPostgres

HOST = "127.0.0.1"
HEALTHY_S = 60.0
SLOT = "penstock_slot_default"
#: No request is turned away: the benchmarks open thousands at once.
_ENVIRONMENT = {
    "ELECTRIC_INSECURE": "true",
    "ELECTRIC_ENABLE_INTEGRATION_TESTING": "true",
    "ELECTRIC_MAX_CONCURRENT_REQUESTS": '{"initial": 20000, "existing": 20000}',
}


@dataclass(frozen=True, slots=True)
class Service:
    port: int
    url: str  # of the database
    pid: int
    log: Path  # of its changes

    def connect(self) -> Connection:
        return psycopg.connect(self.url, autocommit=True)

    @property
    def lane_pid(self) -> int:
        """The process that serves shapes, not its supervisor nor capture."""
        for process in psutil.Process(self.pid).children(recursive=True):
            if "penstock.shapes" in process.cmdline():
                return process.pid
        raise RuntimeError("the process that serves shapes is gone")

    def acknowledged(self, connection: Connection) -> int:
        """How far everything is durable, by what the slot was told."""
        found = connection.execute(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", (SLOT,)
        ).fetchone()
        assert found is not None
        return int(str(found[0]))


@contextmanager
def serving(server: EmbeddedPostgres, database: str, directory: Path) -> Iterator[Service]:
    """A fresh database, served; both are gone afterwards."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{database}"'.encode())
    url = server.url(database)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ELECTRIC_")},
        **_ENVIRONMENT,
        "DATABASE_URL": url,
        "ELECTRIC_STORAGE_DIR": str(directory / database),
    }
    port = _free_port()
    command = [sys.executable, "-m", "penstock", "shapes", "serve", "--port", str(port)]
    log = directory / f"{database}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            if not _becomes_active(port, process):
                raise RuntimeError(f"the service did not become active:\n{log.read_text()[-2000:]}")
            yield Service(port, url, process.pid, directory / database / "log")
        finally:
            process.terminate()
            process.wait(60)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
        connection.execute(f'DROP DATABASE "{database}" WITH (FORCE)'.encode())


def wait_for_position(service: Service, connection: Connection, position: int, timeout_s: float) -> None:
    """Until everything up to `position` is durable in shapes' logs."""
    deadline = time.monotonic() + timeout_s
    while service.acknowledged(connection) < position:
        if time.monotonic() > deadline:
            raise TimeoutError("the slot was not acknowledged in time")
        time.sleep(0.005)


def current_position(connection: Connection) -> int:
    found = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert found is not None
    return int(str(found[0]))


@dataclass(slots=True)
class ShapeClient:
    """Reads one shape over one connection."""

    port: int
    parameters: Mapping[str, str]
    timeout_s: float = 120.0
    offset: str = "-1"
    handle: str = ""
    cursor: str = ""
    up_to_date: bool = False
    bytes_read: int = 0
    _connection: http.client.HTTPConnection = field(init=False)

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection(HOST, self.port, timeout=self.timeout_s)

    def path(self, *, live: bool = False) -> str:
        more = {"offset": self.offset}
        if self.handle:
            more["handle"] = self.handle
        if live:
            more |= {"live": "true", "cursor": self.cursor}
        return "/v1/shape?" + urlencode({**self.parameters, **more})

    def read(self, *, live: bool = False) -> bytes:
        """One request; a live one is answered when there is something new."""
        self._connection.request("GET", self.path(live=live))
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {body[:500].decode(errors='replace')}")
        self.take({name.lower(): value for name, value in answer.headers.items()})
        self.bytes_read += len(body)
        return body

    def take(self, headers: Mapping[str, str]) -> None:
        """Where an answer says to go on."""
        self.offset, self.handle = headers["electric-offset"], headers["electric-handle"]
        self.cursor = headers.get("electric-cursor", self.cursor)
        self.up_to_date = headers.get("electric-up-to-date") is not None

    def sync(self) -> int:
        """Read until there is nothing more; how many rows came."""
        rows = 0
        self.up_to_date = False
        while not self.up_to_date:
            rows += self.read().count(b'"operation":"insert"')
        return rows

    def delete(self) -> None:
        """Have the shape removed: whoever asks for it next has it made anew."""
        parameters = {"table": self.parameters["table"], "handle": self.handle}
        self._connection.request("DELETE", "/v1/shape?" + urlencode(parameters))
        answer = self._connection.getresponse()
        answer.read()
        assert answer.status == 202

    def close(self) -> None:
        self._connection.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def _becomes_active(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + HEALTHY_S
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        try:
            connection.request("GET", "/v1/health")
            if json.loads(connection.getresponse().read())["status"] == "active":
                return True
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    return False


def main() -> None:
    """First syncs of one shape, in a process of its own: `python -m bench.shapes_service PORT JSON`.

    Each line on stdin asks for one. The number of its rows is printed when the last has come; then the shape
    is deleted, and `ready` is printed, as it is at the start.
    """
    print("ready", flush=True)
    for _ in sys.stdin:
        client = ShapeClient(int(sys.argv[1]), json.loads(sys.argv[2]))
        print(client.sync(), flush=True)
        client.delete()
        client.close()
        print("ready", flush=True)


if __name__ == "__main__":
    main()
