"""Transactions that the server streams before they end: the log is as if it had sent them whole."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.compute as pc
import pytest

from penstock.capture.client import CaptureProcess
from penstock.capture.remote import RemoteCapture
from penstock.capture.tail_reader import TailReader
from penstock.core.errors import CaptureAwayError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.reader import ChangeLog
from tests.always import AlwaysOn, always_spec
from tests.captured import brief, log_rows, read_now
from tests.conftest import Database, wait_until
from tests.integration.test_capture import MEMORY_MAX_KIB, peak_memory_kib, spec

pytestmark = pytest.mark.integration

SMALL, LARGE = "64kB", "1GB"
LONG_S = 600.0


@pytest.fixture
def orders(database: Database) -> Database:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute("CREATE TABLE other (id int PRIMARY KEY); CREATE TABLE emptied (id int PRIMARY KEY)")
    return database


def decode_with(database: Database, memory: str) -> None:
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '{memory}'")


def insert(connection: psycopg.Connection[Any], first: int, last: int) -> None:
    connection.execute(
        "INSERT INTO orders SELECT n, repeat('x', 50) FROM generate_series(%s::int, %s) n", (first, last)
    )


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def work(database: Database) -> None:
    """Two large transactions side by side with others between, and pieces of them rolled back."""
    with database.connect() as one, database.connect() as two:
        one.autocommit = two.autocommit = False
        insert(one, 1, 3000)
        insert(two, 10001, 13000)
        database.execute("INSERT INTO other VALUES (1)")
        one.execute("SAVEPOINT a")
        insert(one, 3001, 6000)
        one.execute("SAVEPOINT b")
        insert(one, 6001, 7000)
        one.execute("RELEASE SAVEPOINT b")
        one.execute("ROLLBACK TO SAVEPOINT a")
        one.execute("INSERT INTO other VALUES (2)")
        two.execute("SAVEPOINT c")
        two.execute("TRUNCATE emptied")
        two.execute("ROLLBACK TO SAVEPOINT c")
        two.execute("UPDATE orders SET note = 'y' WHERE id % 2 = 1")
        one.execute("SAVEPOINT d")
        insert(one, 3001, 3500)
        one.execute("DELETE FROM orders WHERE id < 10")
        two.commit()
        database.execute("INSERT INTO other VALUES (3)")
        one.commit()
    with database.connect() as three:  # rolled back whole
        three.autocommit = False
        insert(three, 20001, 25000)
        database.execute("INSERT INTO other VALUES (4)")
        three.rollback()
    with database.connect() as four:
        four.autocommit = False
        four.execute("TRUNCATE emptied")
        insert(four, 30001, 33000)
        four.execute("ALTER TABLE orders ADD COLUMN more int DEFAULT 7")
        insert_more(four, 33001, 36000)
        four.commit()


def insert_more(connection: psycopg.Connection[Any], first: int, last: int) -> None:
    connection.execute(
        "INSERT INTO orders SELECT n, 'z', n FROM generate_series(%s::int, %s) n", (first, last)
    )


@pytest.mark.slow
def test_the_log_is_the_same_whether_transactions_were_streamed_or_not(
    orders: Database, tmp_path: Path
) -> None:
    tables = ("public.orders", "public.other", "public.emptied")
    for name in ("streamed", "whole"):
        with CaptureProcess(spec(orders, tmp_path / name, *tables, slot=f"{name}_{orders.name}")) as capture:
            capture.start()
    work(orders)
    logs: dict[str, list[Sequence[dict[str, Any]]]] = {}
    for name, memory in (("streamed", SMALL), ("whole", LARGE)):
        decode_with(orders, memory)
        given = spec(orders, tmp_path / name, *tables, slot=f"{name}_{orders.name}")
        with CaptureProcess(given) as capture:
            capture.start()
            read_now(capture)
        logs[name] = [log_rows(tmp_path / name, table) for table in tables]
    [streamed] = orders.query(
        "SELECT stream_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = %s",
        (f"streamed_{orders.name}",),
    )
    assert streamed == (True,), "the small memory should have made the server stream"
    assert logs["streamed"] == logs["whole"]
    assert len(logs["whole"][0]) == 3000 + 3000 + 1500 + 500 + 9 + 6000
    assert bytes_in(tmp_path / "streamed" / "log" / "spool") == 0


def test_what_was_streamed_is_read_again_after_a_crash(orders: Database, tmp_path: Path) -> None:
    decode_with(orders, SMALL)
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        with orders.connect() as connection:
            connection.autocommit = False
            insert(connection, 1, 5000)
            read_now(capture)  # its first part has come, and waits on disk
            assert bytes_in(tmp_path / "log" / "spool") > 0
            capture._process.kill()  # type: ignore[union-attr]
            insert(connection, 5001, 8000)
            connection.commit()
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        read_now(capture)
    rows = log_rows(tmp_path)
    assert brief(rows, "id") == [("i", str(number)) for number in range(1, 8001)]
    assert [row["_op_index"] for row in rows] == list(range(0, 16000, 2))


@pytest.mark.slow
def test_a_transaction_of_ten_million_rows_stays_within_memory(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        with orders.connect() as connection:
            connection.autocommit = False
            for first in range(1, 10_000_001, 1_000_000):
                insert(connection, first, first + 999_999)
                capture.read_to(capture.note_target())
                capture.wait_reached(LONG_S)
            assert bytes_in(tmp_path / "log" / "spool") > 500_000_000
            connection.commit()
        capture.read_to(capture.note_target())
        capture.wait_reached(LONG_S)
        peak = peak_memory_kib(capture.pid)
    print(f"peak memory of capture: {peak / 1024:.0f} MiB")
    assert peak < MEMORY_MAX_KIB
    log = ChangeLog(tmp_path / "log")
    [step] = [manifest for manifest in log.manifests() if manifest.tables]
    found = log.files(StreamId("public", "orders"), Lsn(0), Lsn(2**63))
    assert found.rows == 10_000_000
    assert {(file.first_tx, file.last_tx) for file in found.files} == {(found.files[0].first_tx,) * 2}
    assert step.transactions == 1
    assert bytes_in(tmp_path / "log" / "spool") == 0


@pytest.mark.slow
@pytest.mark.timeout(3 * LONG_S)
def test_one_of_ten_million_rows_stays_within_memory_while_a_reader_follows(
    orders: Database, tmp_path: Path
) -> None:
    with AlwaysOn(always_spec(orders, tmp_path, seal_every_s=1.0)) as always:
        started = always.join("public.orders", "public.other")
        reader = _Counting(always.capture, tmp_path / "log", started.log_end or started.slot_position)
        with orders.connect() as connection:
            for first in range(10_000_001, 11_000_001, 10_000):  # the tail is full of others before
                insert(connection, first, first + 9_999)
            connection.autocommit = False
            for first in range(1, 10_000_001, 1_000_000):
                insert(connection, first, first + 999_999)
                orders.execute("INSERT INTO other VALUES (%s)", (first,))
            spool = tmp_path / "log" / "spool"
            wait_until(lambda: bytes_in(spool) > 500_000_000, "most of it to be on disk", LONG_S)
            connection.commit()
        always.capture.read_to(always.capture.note_target())
        end = always.capture.reached(LONG_S)
        assert end is not None, "all of it is sealed in time"
        sizes = reader.transactions(end)
        peak = peak_memory_kib(always.process.pid)
    print(f"peak memory of an always-on capture with a reader: {peak / 1024:.0f} MiB")
    assert Counter(sizes) == {10_000: 100, 1: 10, 10_000_000: 1}
    assert peak < MEMORY_MAX_KIB
    assert bytes_in(spool) == 0


class _Counting(threading.Thread):
    """Follows the tail from `after` and counts the rows of each transaction."""

    def __init__(self, capture: RemoteCapture, log: Path, after: Lsn) -> None:
        super().__init__(daemon=True)
        self._reader, self._at = TailReader(capture, log), after
        self._rows: Counter[int] = Counter()
        self.start()

    def run(self) -> None:
        with suppress(CaptureAwayError):  # the end of the test
            for found in self._reader.follow(self._at):
                for piece in found.pieces:
                    for each in pc.value_counts(piece.rows.column("_tx")).to_pylist():
                        self._rows[each["values"]] += each["counts"]
                self._at = found.end

    def transactions(self, to: Lsn) -> list[int]:
        """How many rows each has, once all up to `to` were given."""
        wait_until(lambda: self._at >= to or not self.is_alive(), f"the reader to have read to {to}", LONG_S)
        assert self._at >= to
        return list(self._rows.values())


@pytest.mark.slow
def test_a_large_transaction_that_is_rolled_back_leaves_nothing(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        spool = tmp_path / "log" / "spool"
        with orders.connect() as connection:
            connection.autocommit = False
            insert(connection, 1, 3_000_000)
            capture.read_to(capture.note_target())
            capture.wait_reached(LONG_S)
            assert bytes_in(spool) > 100_000_000
            connection.rollback()
        capture.read_to(capture.note_target())
        capture.wait_reached(LONG_S)
        wait_until(lambda: bytes_in(spool) == 0, "the spool to be emptied")
        assert not any(manifest.tables for manifest in ChangeLog(tmp_path / "log").manifests())
        orders.execute("INSERT INTO orders VALUES (1, 'after')")
        read_now(capture)
    assert brief(log_rows(tmp_path), "id", "note", "_op_index") == [("i", "1", "after", 0)]
