"""From a write to the client: how long a single-row transaction takes to reach a long-polling client.

The clock starts before the INSERT is sent and stops when the client has the whole answer; the next write
follows when the client polls again, after a pause drawn from 5 to 15 ms so that nothing falls into step.
Writer and client are one process that uses psycopg and http.client. The first 100 writes are not counted.

alone        one shape, nothing else
first sync   the same while another client reads a table of 1 M rows for the first time, again and again, the
             shape deleted in between, until there are 500 samples: pauses between two syncs have none
sealing      the same while 2,000 rows a second go through another shape for 25 s; capture seals a step every
             second, and that it has sealed several is checked
indexed      beside 10,000 shapes `category = n` of the same table
ILIKE        a shape with ILIKE beside 1,000 such shapes of the same table, of which none matches
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.comparison import Figure
from bench.shapes_service import Service, ShapeClient, serving
from bench.workload import Connection
from penstock.log.manifest import list_sequence
from penstock.sources.postgres.embedded import EmbeddedPostgres

WRITES, WARM_UP = 1000, 100
SYNC_ROWS, SYNC_SAMPLES = 1_000_000, 500
SEALING_S, STEPS_MIN = 25.0, 2
INDEXED_SHAPES, ILIKE_SHAPES = 10_000, 1_000
_PAUSES_S = (0.005, 0.015)
_CREATORS = 16


def measure(server: EmbeddedPostgres, directory: Path, console: Console) -> list[Figure]:
    figures: list[Figure] = []

    def tell(name: str, samples: list[float], **bars: float) -> None:
        for percentile, bar in bars.items():
            value = float(np.percentile(samples, int(percentile[1:])))
            figures.append(Figure(f"write → client, {name}, {percentile}", value, bar, "ms"))
            console.log(f"{figures[-1].title}: {figures[-1]} of {len(samples):,}")

    with serving(server, "shapes_latency", directory) as service, service.connect() as connection:
        _create_table(connection, "items")
        probe = Probe(service, connection)
        tell("one shape", probe.samples(WRITES), p50=10, p99=40)
        _create_table(connection, "large", SYNC_ROWS)
        probe.samples(WARM_UP)  # the server's log has to be read past all these rows
        tell("during first syncs of 1 M rows", _while_syncing(service, probe), p99=100)
        with _writing(service) as is_running:
            tell("while steps are sealed", probe.samples_while(is_running), p99=100)
        probe.close()
    for name, shapes, where, probed, bar in (
        ("indexed", INDEXED_SHAPES, "category = {}", "category = -1", 15.0),
        ("ilike", ILIKE_SHAPES, "label ILIKE '%x{}y%'", "label ILIKE '%WRITTEN%'", 30.0),
    ):
        with serving(server, f"shapes_{name}", directory) as service, service.connect() as connection:
            _create_table(connection, "items")
            started = time.perf_counter()
            create_shapes(service, "items", [where.format(number) for number in range(shapes)])
            console.log(f"{shapes:,} shapes {where!r} created in {time.perf_counter() - started:.1f} s")
            probe = Probe(service, connection, probed)
            tell(f"{shapes:,} shapes {where.format('n')}", probe.samples(WRITES), p50=bar)
            probe.close()
    return figures


class Probe:
    """Writes rows one by one, each when the client waits, and takes the time until it has them."""

    def __init__(self, service: Service, connection: Connection, where: str = "category = -1") -> None:
        self._connection = connection
        self._client = ShapeClient(service.port, {"table": "items", "where": where})
        self._client.sync()
        self._received = threading.Event()
        self._received_at = 0.0
        self._expected = b""
        self._number = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._poll, name="client")
        self._thread.start()
        self.samples(WARM_UP)

    def samples(self, count: int) -> list[float]:
        return [self._write() for _ in range(count)]

    def samples_while(self, condition: Callable[[], bool]) -> list[float]:
        found = []
        while condition():
            found.append(self._write())
        return found

    def close(self) -> None:
        self._stopping = True
        self._write()
        self._thread.join()
        self._client.close()

    def _write(self) -> float:
        """One row; the milliseconds it took."""
        self._number += 1
        label = f"written {self._number}"
        self._expected = f'"{label}"'.encode()
        self._received.clear()
        time.sleep(random.uniform(*_PAUSES_S))
        started = time.perf_counter()
        self._connection.execute("INSERT INTO items (category, label) VALUES (-1, %s)", (label,))
        if not self._received.wait(60):
            raise TimeoutError("a write did not reach the client in 60 s")
        return (self._received_at - started) * 1000

    def _poll(self) -> None:
        while not self._stopping or self._expected:
            body = self._client.read(live=True)
            at = time.perf_counter()
            if self._expected and self._expected in body:
                self._received_at, self._expected = at, b""
                self._received.set()


def create_shapes(service: Service, table: str, clauses: list[str]) -> None:
    """Make a shape of each condition and wait for its snapshot."""

    def create(part: list[str]) -> None:
        for where in part:
            client = ShapeClient(service.port, {"table": table, "where": where})
            client.read()
            client.close()

    with ThreadPoolExecutor(_CREATORS) as pool:
        list(pool.map(create, (clauses[start::_CREATORS] for start in range(_CREATORS))))


def _create_table(connection: Connection, table: str, rows: int = 0) -> None:
    connection.execute(
        f"CREATE TABLE {table} (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, category bigint, "
        "label text)".encode()
    )
    connection.execute(f"CREATE INDEX ON {table} (category)".encode())
    _insert(connection, table, rows)


def _insert(connection: Connection, table: str, rows: int) -> None:
    """In one transaction."""
    numbers = f"SELECT i, md5(i::text) FROM generate_series(1, {rows}) AS i"
    connection.execute(f"INSERT INTO {table} (category, label) {numbers}".encode())


def _while_syncing(service: Service, probe: Probe) -> list[float]:
    """Samples during first syncs of the large table, one after the other, by a client in a process of its
    own: as many syncs as it takes for the samples to be enough."""
    command = [
        sys.executable,
        "-m",
        "bench.shapes_service",
        str(service.port),
        json.dumps({"table": "large"}),
    ]
    samples: list[float] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while len(samples) < SYNC_SAMPLES:
            assert process.stdout.readline() == "ready\n"
            print(file=process.stdin, flush=True)
            with ThreadPoolExecutor(1) as reader:
                rows = reader.submit(process.stdout.readline)
                samples += probe.samples_while(lambda rows=rows: not rows.done())  # type: ignore[misc]
            assert int(rows.result()) == SYNC_ROWS, "every row came once"
        process.stdin.close()
    return samples


@contextmanager
def _writing(service: Service) -> Iterator[Callable[[], bool]]:
    """Rows of a shape that nobody polls, so that steps have something in them, and are sealed."""
    client = ShapeClient(service.port, {"table": "large"})
    client.sync()
    client.close()
    sealed = max(list_sequence(service.log))
    until = time.monotonic() + SEALING_S

    def write() -> None:
        with service.connect() as connection:
            while time.monotonic() < until:
                _insert(connection, "large", 200)
                time.sleep(0.1)

    writer = threading.Thread(target=write)
    writer.start()
    yield writer.is_alive
    writer.join()
    steps = max(list_sequence(service.log)) - sealed
    assert steps >= STEPS_MIN, f"{steps} steps were sealed meanwhile"
