"""Continuous reading against a real Postgres: when steps are sealed, and what a slow disk cannot do to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.capture import steps
from penstock.capture.acknowledgement import AcknowledgementTracker
from penstock.capture.loop import ReplicationLoop
from penstock.capture.postgres.decoder import PgoutputDecoder
from penstock.capture.postgres.marks import mark_position
from penstock.capture.postgres.relations import Relations
from penstock.capture.postgres.rows import TransactionIds
from penstock.capture.postgres.stream import PostgresStream
from penstock.capture.steps import StepBuilder
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.log.reader import ChangeLog
from penstock.log.writer import LogWriter
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.replication import ReplicationStream
from penstock.sources.postgres.streamed import StreamedTransactions
from tests.captured import log_rows
from tests.conftest import Database, wait_until

pytestmark = pytest.mark.integration

ORDERS = StreamId("public", "orders")
NEVER_S = 3600.0
SENDER_TIMEOUT_S = 60.0
SHORT_SENDER_TIMEOUT_S = 2.0


@dataclass
class Recorded:
    """A tail that remembers: `offered` is what `committed` has declared whole."""

    full: bool = False
    pushed: list[tuple[int, str]] = field(default_factory=list)
    offered: list[tuple[int, str]] = field(default_factory=list)
    ends: list[Lsn] = field(default_factory=list)

    def rows(self, schema: TableSchema, leaf: StreamId, rows: pa.RecordBatch) -> None:
        self.pushed += zip(rows.column("_tx").to_pylist(), rows.column("id").to_pylist(), strict=True)

    def untold(self, tx: int) -> None:
        pytest.fail("Postgres tells all changes")

    def committed(self, end: Lsn, open_tx: int | None) -> None:
        whole = [row for row in self.pushed if open_tx is None or row[0] < open_tx]
        assert all(tx < end for tx, _ in whole)
        self.offered += whole
        self.pushed = self.pushed[len(whole) :]

    def sealed(self, end: Lsn) -> None:
        self.full = False
        self.ends.append(end)


class Following:
    """A loop that follows one table, in this process."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        *,
        seal_every_s: float = NEVER_S,
        bytes_max: int = 1 << 30,
        two_phase: bool = False,
        sender_timeout_s: float = SENDER_TIMEOUT_S,
    ) -> None:
        self.database, self.directory = database, directory
        self.slot = f"slot_{database.name}"
        database.execute("CREATE PUBLICATION penstock FOR TABLE orders")
        [(start,)] = database.query(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)",
            (self.slot, two_phase),
        )
        self.tail = Recorded()
        self.failures: list[BaseException] = []
        self.sealed: list[Lsn] = []
        self.writer = LogWriter(
            directory / "log", system_id="7", timeline=1, epoch=Lsn(1), end=Lsn.parse(start)
        )
        self.tracker = AcknowledgementTracker({"lake": None}, Lsn.parse(start), self.writer.end)
        self.decoder = PgoutputDecoder(
            Relations([ORDERS], lambda: connect(database.url)),
            TransactionIds(1000),
            StreamedTransactions(directory / "log" / "spool"),
        )
        self.builder = StepBuilder(
            self.writer,
            self.decoder,
            bytes_max,
            self.tail,
            seal_every_s,
        )
        url = f"{database.url}?options=-c%20wal_sender_timeout%3D{int(sender_timeout_s * 1000)}"
        self.loop = ReplicationLoop(
            PostgresStream(
                ReplicationStream(connect(url, replication=True), self.slot, "penstock", self.writer.end),
                sender_timeout_s,
            ),
            self.builder,
            self.writer,
            self.tracker,
            on_reached=lambda _: pytest.fail("only a bounded read reaches anything"),
            on_progress=lambda _: None,
            on_failed=self.failures.append,
            on_sealed=self.sealed.append,
        )
        self.loop.start()
        self.loop.follow()

    def demand_now(self) -> Lsn:
        with self.database.connect() as connection:
            target = mark_position(connection)
        self.loop.demand(target)
        return target

    def sender(self) -> tuple[int, float]:
        """The process that sends to us, and when it last heard from us."""
        [row] = self.database.query(
            "SELECT r.pid, extract(epoch FROM r.reply_time)::float8 FROM pg_stat_replication AS r "
            "JOIN pg_replication_slots AS s ON s.active_pid = r.pid WHERE s.slot_name = %s",
            (self.slot,),
        )
        return row[0], row[1]

    def ids(self) -> list[str]:
        return (
            [row["id"] for row in log_rows(self.directory)] if ChangeLog(self.directory / "log").end() else []
        )

    def close(self) -> None:
        self.loop.stop()
        self.decoder.close()


@pytest.fixture
def orders(database: Database) -> Database:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    return database


@pytest.fixture
def follow(orders: Database, tmp_path: Path) -> Iterator[Callable[..., Following]]:
    made: list[Following] = []

    def start(**arguments: Any) -> Following:
        made.append(Following(orders, tmp_path, **arguments))
        return made[-1]

    yield start
    for following in made:
        following.close()


def insert(database: Database, first: int, last: int) -> None:
    database.execute(f"INSERT INTO orders SELECT n, 'x' FROM generate_series({first}, {last}) AS n")


def test_changes_reach_the_tail_unasked_and_the_log_on_demand(
    orders: Database, follow: Callable[..., Following]
) -> None:
    following = follow()
    insert(orders, 1, 3)
    wait_until(lambda: len(following.tail.offered) == 3, "the rows to be offered")
    assert following.ids() == [], "nothing has asked for a step yet"
    target = following.demand_now()
    wait_until(lambda: following.writer.end >= target, "the demanded step")
    assert following.ids() == ["1", "2", "3"]
    assert [row[1] for row in following.tail.offered] == ["1", "2", "3"]
    wait_until(lambda: following.sealed == [following.writer.end], "to be told of it")
    assert following.tail.ends == following.sealed


def test_a_step_is_sealed_when_it_is_old_enough_although_nothing_follows(
    orders: Database, follow: Callable[..., Following]
) -> None:
    following = follow(seal_every_s=0.2)
    insert(orders, 1, 3)
    wait_until(lambda: following.ids() == ["1", "2", "3"], "the step to be sealed by age")


def test_steps_are_sealed_by_size_and_hold_whole_transactions(
    orders: Database, follow: Callable[..., Following]
) -> None:
    following = follow(bytes_max=1)
    for first in range(0, 40_000, 4_000):
        insert(orders, first, first + 3_999)
    wait_until(lambda: len(following.ids()) == 40_000, "all rows to be sealed")
    log = ChangeLog(following.directory / "log")
    for manifest in log.manifests():
        rows = log.files(ORDERS, manifest.start, manifest.end).rows
        assert rows % 4_000 == 0, "a step never cuts a transaction"
    assert following.ids() == [str(number) for number in range(40_000)]


def test_a_full_tail_has_the_step_sealed(orders: Database, follow: Callable[..., Following]) -> None:
    following = follow()
    following.tail.full = True
    insert(orders, 1, 3)
    wait_until(lambda: following.ids() == ["1", "2", "3"], "the step to be sealed for the tail")
    wait_until(lambda: not following.tail.full, "the tail to be told of it")


def test_what_only_keepalives_moved_is_sealed_seldom_and_on_demand(
    orders: Database, follow: Callable[..., Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.execute("CREATE TABLE elsewhere (id int)")
    following = follow()
    begin = following.writer.end
    orders.execute("INSERT INTO elsewhere SELECT generate_series(1, 1000)")
    wait_until(lambda: following.builder.position > begin, "a keepalive")
    assert following.writer.end == begin
    target = following.demand_now()
    wait_until(lambda: following.writer.end >= target, "an empty step on demand")
    monkeypatch.setattr(steps, "_EMPTY_STEP_EVERY_S", 0.1)
    before = following.writer.end
    orders.execute("INSERT INTO elsewhere SELECT generate_series(1, 1000)")
    wait_until(lambda: following.writer.end > before, "an empty step in its time")
    assert all(not manifest.tables for manifest in ChangeLog(following.directory / "log").manifests())


def test_nothing_is_sealed_after_an_abort(orders: Database, follow: Callable[..., Following]) -> None:
    following = follow()
    insert(orders, 1, 3)
    wait_until(lambda: len(following.tail.offered) == 3, "the rows to be offered")
    following.loop.abort()
    following.builder.demand(following.builder.position)
    following.builder.tick()
    following.close()
    assert ChangeLog(following.directory / "log").manifests() == []


def test_rows_of_a_transaction_that_is_only_prepared_are_never_taken(
    orders: Database, follow: Callable[..., Following]
) -> None:
    following = follow(two_phase=True)
    orders.execute(f"BEGIN; INSERT INTO orders VALUES (1); PREPARE TRANSACTION '{orders.name}'")
    wait_until(lambda: bool(following.failures), "the reading to end")
    assert "two_phase" in str(following.failures[0])
    assert following.tail.offered == []
    following.close()
    assert ChangeLog(following.directory / "log").manifests() == []
    orders.execute(f"ROLLBACK PREPARED '{orders.name}'")


@pytest.mark.slow
def test_a_disk_that_stalls_for_longer_than_the_servers_patience_keeps_the_connection(
    orders: Database, follow: Callable[..., Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    following = follow(seal_every_s=0.2, sender_timeout_s=SHORT_SENDER_TIMEOUT_S)
    insert(orders, 1, 10)
    wait_until(lambda: len(following.ids()) == 10, "the first rows")
    pid, _ = following.sender()
    stalled, released = threading.Event(), threading.Event()
    write = LogWriter.write

    def stall(*arguments: object) -> None:
        stalled.set()
        released.wait()
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LogWriter, "write", stall)
    try:
        insert(orders, 11, 300_000)  # more than both sides buffer: the server is blocked on us
        assert stalled.wait(120)
        since = time.time()
        wait_until(
            lambda: following.sender()[1] - since > 3 * SHORT_SENDER_TIMEOUT_S,
            "status messages during the stall",
        )
        assert following.sender()[0] == pid
        assert not following.failures
        assert len(following.ids()) == 10
    finally:
        released.set()
    wait_until(lambda: len(following.ids()) == 300_000, "everything after the stall", timeout_s=120)
    assert following.sender()[0] == pid, "it is still the same connection"
    assert following.ids() == [str(number) for number in range(1, 300_001)]


def test_streamed_transactions_are_offered_whole_and_in_the_order_of_their_commits(
    orders: Database, follow: Callable[..., Following]
) -> None:
    orders.execute(f"ALTER DATABASE {orders.name} SET logical_decoding_work_mem = '64kB'")
    following = follow(seal_every_s=0.2)
    with orders.connect(autocommit=False) as one, orders.connect(autocommit=False) as two:
        for first in range(0, 20_000, 2_000):
            for connection, offset in ((one, 0), (two, 100_000)):
                connection.execute(
                    "INSERT INTO orders SELECT n, repeat('x', 50) FROM generate_series(%s::int, %s) AS n",
                    (first + offset, first + offset + 1_999),
                )
            insert(orders, 200_000 + first, 200_000 + first)
        wait_until(lambda: following.builder.counters.spilled_bytes > 0, "blocks on disk")
        wait_until(lambda: len(following.ids()) == 10, "the small ones, sealed beside the open ones")
        assert len(following.tail.offered) == 10
        two.commit()
        wait_until(lambda: len(following.tail.offered) == 20_010, "the first to commit")
        one.commit()
    wait_until(lambda: len(following.ids()) == 40_010, "both")
    expected = [str(200_000 + first) for first in range(0, 20_000, 2_000)]
    expected += [str(number) for number in (*range(100_000, 120_000), *range(20_000))]
    assert following.ids() == expected
    assert [row[1] for row in following.tail.offered] == expected
    assert following.builder.counters.spilled_bytes == 0
    assert list((following.directory / "log" / "spool").iterdir()) == []
