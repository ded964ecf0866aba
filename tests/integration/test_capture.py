"""The capture process against a real Postgres: what is in the log, and what a crash cannot do to it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from penstock.capture import leadership
from penstock.capture.client import CaptureProcess
from penstock.capture.open import open_source
from penstock.capture.spec import CaptureProgress, CaptureSpec
from penstock.core.errors import PositionGoneError, SourceBusyError, SourceError, StateError, StorageError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest, manifest_path
from penstock.log.reader import ChangeLog
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.inbox import FrameInbox, NativeInbox
from penstock.sources.postgres.replication import ReplicationStream
from tests.capture_specs import capture_spec
from tests.captured import brief, log_rows, read_now
from tests.conftest import WAIT_S, Database, wait_until

pytestmark = pytest.mark.integration

MEMORY_MAX_KIB = 512 * 1024


def spec(database: Database, directory: Path, *streams: str, **changed: Any) -> CaptureSpec:
    values: dict[str, Any] = {
        "url": database.url,
        "slot": f"slot_{database.name}",
        "publication": "penstock",
        "log_directory": directory / "log",
        "checkpoint_path": directory / "checkpoint.json",
        "streams": tuple(StreamId.parse(stream) for stream in streams or ("public.orders",)),
        "lanes": {"lake": None},
    }
    return capture_spec(**{**values, **changed})


@pytest.fixture
def orders(database: Database) -> Database:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    return database


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a predecessor to let go is only of use where there is one."""
    monkeypatch.setenv(leadership.PATIENCE_VARIABLE, "0.2")


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "failpoints"
    monkeypatch.setenv("PENSTOCK_FAILPOINT_REPORT", str(path))
    yield path
    monkeypatch.delenv("PENSTOCK_FAILPOINT", raising=False)


def test_every_change_is_in_the_log_as_the_source_sent_it(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        started = capture.start()
        assert started.slot_created
        assert started.log_end is None
        orders.execute("INSERT INTO orders VALUES (1, 'one'), (2, NULL)")
        orders.execute("UPDATE orders SET note = 'ünö' WHERE id = 1")
        orders.execute("UPDATE orders SET id = 3 WHERE id = 2")
        orders.execute("DELETE FROM orders WHERE id = 1")
        orders.execute("TRUNCATE orders")
        end = read_now(capture)
    rows = log_rows(tmp_path)
    assert brief(rows, "id", "note", "_old_kind", "_op_index") == [
        ("i", "1", "one", "n", 0),
        ("i", "2", None, "n", 2),
        ("u", "1", "ünö", "n", 0),
        ("u", "3", None, "k", 0),
        ("d", None, None, "k", 0),
        ("t", None, None, "n", 0),
    ]
    assert rows[3]["_old"] == {"id": "2", "note": None}
    assert rows[4]["_old"] == {"id": "1", "note": None}
    offsets = [(row["_tx"], row["_op_index"]) for row in rows]
    assert offsets == sorted(offsets)
    manifest = ChangeLog(tmp_path / "log").manifests()[-1]
    assert manifest.end == end
    assert (manifest.system_id, manifest.epoch) == (started.system_id, started.epoch)
    found = ChangeLog(tmp_path / "log").files(StreamId("public", "orders"), started.slot_position, end)
    assert found.truncates == ((rows[5]["_tx"], 0),)
    assert found.files[0].ops == {"i": 2, "u": 2, "d": 1, "t": 1}
    xids = orders.query("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    assert 0 < max(row["_xid"] for row in rows) < xids[0][0]
    assert json.loads((tmp_path / "checkpoint.json").read_text())["lsn"] == str(end)


def test_how_far_it_has_read_and_sealed_can_be_asked(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        orders.execute("INSERT INTO orders VALUES (1, 'one')")
        end = read_now(capture)
        found = capture.progress()
        assert (found.log_end, found.rows, found.transactions) == (end, 1, 1)
        assert found.position >= end


def test_operations_are_numbered_over_all_published_tables(orders: Database, tmp_path: Path) -> None:
    orders.execute("CREATE TABLE items (id int PRIMARY KEY)")
    orders.execute("CREATE TABLE others (id int PRIMARY KEY)")
    orders.execute("CREATE PUBLICATION penstock FOR TABLE others")
    with CaptureProcess(spec(orders, tmp_path, "public.orders", "public.items")) as capture:
        capture.start()
        with orders.connect(autocommit=False) as connection:
            for statement in (
                "INSERT INTO orders VALUES (1)",
                "INSERT INTO others VALUES (1), (2)",
                "INSERT INTO items VALUES (1)",
                "TRUNCATE others, items",
                "INSERT INTO orders VALUES (2)",
            ):
                connection.execute(statement.encode())
        read_now(capture)
    assert brief(log_rows(tmp_path), "id", "_op_index") == [("i", "1", 0), ("i", "2", 12)]
    items = log_rows(tmp_path, "public.items")
    assert items[0]["_op_index"] == 6
    assert items[1]["_op"] == "t"
    assert items[1]["_op_index"] in (8, 10)
    assert StreamId("public", "others") not in ChangeLog(tmp_path / "log").streams_with_changes(
        Lsn(0), Lsn(2**63)
    )


def test_unchanged_toast_is_named_or_filled_from_the_old_row(database: Database, tmp_path: Path) -> None:
    for table in ("named", "filled"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, big text, n int)")
        database.execute(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL")
    full = frozenset({StreamId("public", "filled")})
    wanted = spec(database, tmp_path, "public.named", "public.filled", full_identity=full)
    with CaptureProcess(wanted) as capture:
        capture.start()
        for table in ("named", "filled"):
            database.execute(f"INSERT INTO {table} VALUES (1, repeat('x', 10000), 1)")
            database.execute(f"UPDATE {table} SET n = 2")
        read_now(capture)
    named, filled = log_rows(tmp_path, "public.named")[1], log_rows(tmp_path, "public.filled")[1]
    assert (named["big"], named["_unchanged"], named["n"]) == (None, ["big"], "2")
    assert (filled["big"], filled["_unchanged"]) == ("x" * 10000, None)
    assert (filled["_old_kind"], filled["_old"]["n"]) == ("f", "1")


def test_partitions_come_under_their_root_with_their_leaf(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10)")
    database.execute("CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20)")
    with CaptureProcess(spec(database, tmp_path, "public.parted")) as capture:
        capture.start()
        database.execute("INSERT INTO parted VALUES (1), (11), (2)")
        database.execute("TRUNCATE low")
        database.execute("TRUNCATE parted")
        read_now(capture)
    found = ChangeLog(tmp_path / "log").streams_with_changes(Lsn(0), Lsn(2**63))
    assert list(found) == [StreamId("public", "parted")]
    changes = found[StreamId("public", "parted")]
    assert {file.leaf for file in changes.files} == {"public.low", "public.high"}
    assert changes.leaf_truncates[0][2] == "public.low"
    assert len(changes.leaf_truncates) == 3
    assert len(changes.truncates) == 1, "only the second truncate emptied the whole table"


def test_a_new_column_starts_a_new_schema_with_its_missing_value(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        orders.execute("INSERT INTO orders VALUES (1, 'a')")
        orders.execute("ALTER TABLE orders ADD COLUMN extra int DEFAULT 5")
        orders.execute("INSERT INTO orders VALUES (2, 'b', 6)")
        read_now(capture)
    log = ChangeLog(tmp_path / "log")
    files = log.files(StreamId("public", "orders"), Lsn(0), Lsn(2**63)).files
    before, after = (log.schema(file.schema_id) for file in files)
    assert (before.names, after.names) == (("id", "note"), ("id", "note", "extra"))
    assert after.column("extra").missing_value == "5"
    assert (after.column("extra").attribute_number, after.key) == (3, ("id",))


def test_a_column_renamed_since_is_described_by_the_log_itself(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        orders.execute("INSERT INTO orders VALUES (1, 'a')")
        orders.execute("ALTER TABLE orders RENAME note TO remark")
        orders.execute("INSERT INTO orders VALUES (2, 'b')")
        read_now(capture)
    log = ChangeLog(tmp_path / "log")
    files = log.files(StreamId("public", "orders"), Lsn(0), Lsn(2**63)).files
    before, after = (log.schema(file.schema_id) for file in files)
    note = before.column("note")
    assert (note.attribute_number, note.type_name) == (0, "text")
    assert after.column("remark").attribute_number == 2


def test_the_same_log_comes_out_whatever_the_servers_decoding_memory(
    orders: Database, tmp_path: Path
) -> None:
    logs = []
    captures = []
    for memory in ("64kB", "1GB"):
        wanted = spec(orders, tmp_path / memory, slot=f"slot_{memory.lower()}_{os.getpid()}")
        with CaptureProcess(wanted) as capture:
            capture.start()
        captures.append((memory, wanted))
    with orders.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO orders SELECT i, repeat('x', 100) FROM generate_series(1, 5000) AS i")
        with connection.transaction(force_rollback=True):
            connection.execute("INSERT INTO orders SELECT i FROM generate_series(6000, 9000) AS i")
        connection.execute("DELETE FROM orders WHERE id % 2 = 0")
    for memory, wanted in captures:
        orders.execute(f"ALTER DATABASE {orders.name} SET logical_decoding_work_mem = '{memory}'")
        with CaptureProcess(wanted) as capture:
            capture.start()
            read_now(capture)
        logs.append(log_rows(tmp_path / memory))
    assert len(logs[0]) == 7500
    assert logs[0] == logs[1]


def test_a_transaction_of_a_million_rows_stays_within_memory(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE big (id int PRIMARY KEY, a text, b text, c int)")
    wanted = spec(database, tmp_path, "public.big", step_bytes_max=1 << 20)
    with CaptureProcess(wanted) as capture:
        capture.start()
        database.execute(
            "INSERT INTO big SELECT i, md5(i::text), md5((i + 1)::text), i "
            "FROM generate_series(1, 1000000) AS i"
        )
        read_now(capture)
        peak = peak_memory_kib(capture.pid)
    manifests = [m for m in ChangeLog(tmp_path / "log").manifests() if m.tables]
    assert len(manifests) == 1, "one transaction is in one step"
    files = manifests[0].tables[0].files
    assert sum(file.rows for file in files) == 1_000_000
    assert files[0].first_tx == files[-1].last_tx
    assert peak < MEMORY_MAX_KIB


def peak_memory_kib(pid: int | None) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_steps_are_sealed_by_size_between_transactions(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path, step_bytes_max=1)) as capture:
        capture.start()
        for number in range(3):
            orders.execute(f"INSERT INTO orders VALUES ({number})")
            read_now(capture)
        orders.execute("INSERT INTO orders SELECT i FROM generate_series(10, 100000) AS i")
        read_now(capture)
    assert len(log_rows(tmp_path)) == 3 + 99991


@pytest.mark.parametrize("place", ["log.files_written", "log.manifest_written", "log.file_write"])
def test_nothing_is_lost_or_doubled_by_a_kill(
    place: str, orders: Database, tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        orders.execute("INSERT INTO orders SELECT i FROM generate_series(1, 10) AS i")
        read_now(capture)
    monkeypatch.setenv("PENSTOCK_FAILPOINT", f"{place}=kill")
    orders.execute("INSERT INTO orders SELECT i FROM generate_series(11, 20) AS i")
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        with pytest.raises(SourceError, match="ended by signal 9"):
            read_now(capture)
    assert report.read_text() == f"{place}=kill\n"
    monkeypatch.delenv("PENSTOCK_FAILPOINT")
    orders.execute("INSERT INTO orders SELECT i FROM generate_series(21, 30) AS i")
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        end = read_now(capture)
        assert capture.acknowledge("lake", end) == end
    assert [row["id"] for row in log_rows(tmp_path)] == [str(i) for i in range(1, 31)]
    named = {file.path for m in ChangeLog(tmp_path / "log").manifests() for t in m.tables for file in t.files}
    found = {str(path.relative_to(tmp_path / "log")) for path in (tmp_path / "log").rglob("*.parquet")}
    assert found == named


def test_an_idle_database_does_not_hang_a_bounded_read(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        started = capture.start()
        first = read_now(capture)
        second = read_now(capture)
    assert started.slot_position < first <= second
    assert ChangeLog(tmp_path / "log").end() == second


def test_an_acknowledged_keepalive_is_in_the_log_so_the_next_start_sees_no_gap(
    orders: Database, tmp_path: Path
) -> None:
    orders.execute("CREATE TABLE elsewhere (id int)")
    for round_number in range(2):
        with CaptureProcess(spec(orders, tmp_path)) as capture:
            started = capture.start()
            assert started.slot_created == (round_number == 0)
            orders.execute("INSERT INTO elsewhere SELECT generate_series(1, 1000)")
            end = read_now(capture)
            assert capture.acknowledge("lake", end) == end
    slot = orders.query("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE active_pid IS NULL")
    assert Lsn.parse(slot[0][0]) == ChangeLog(tmp_path / "log").end()


def test_the_slot_moves_only_as_far_as_the_slowest_lane(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path, lanes={"lake": None, "kafka": None})) as capture:
        started = capture.start()
        orders.execute("INSERT INTO orders VALUES (1)")
        middle = read_now(capture)
        orders.execute("INSERT INTO orders VALUES (2)")
        end = read_now(capture)
        assert capture.acknowledge("lake", end) == started.slot_position
        assert capture.acknowledge("kafka", middle) == middle
        assert capture.acknowledge("kafka", Lsn(end + 1_000_000)) == end


def test_a_slot_that_was_dropped_is_an_error_with_a_remedy(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        read_now(capture)
    orders.execute(f"SELECT pg_drop_replication_slot('slot_{orders.name}')")
    with CaptureProcess(spec(orders, tmp_path)) as capture, pytest.raises(PositionGoneError) as raised:
        capture.start()
    assert "resync" in raised.value.remedy
    assert orders.query("SELECT count(*) FROM pg_replication_slots WHERE database = %s", (orders.name,)) == [
        (0,)
    ]


def test_a_slot_ahead_of_the_log_is_a_gap_and_an_error(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        read_now(capture)
    orders.execute("INSERT INTO orders VALUES (1)")
    slot = f"slot_{orders.name}"
    orders.execute(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    with CaptureProcess(spec(orders, tmp_path)) as capture, pytest.raises(PositionGoneError, match="beyond"):
        capture.start()


@pytest.mark.usefixtures("impatient")
def test_no_term_begins_where_its_epoch_could_be_that_of_another(orders: Database, tmp_path: Path) -> None:
    """The insert position, which is good enough to be reached, stays where it is on an idle server."""
    role, url = orders.create_role("LOGIN REPLICATION")
    functions = orders.query(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'"
    )
    for (function,) in functions:
        orders.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    with closing(open_source(spec(orders, tmp_path, url=url))) as source:
        assert source.position_now() > Lsn(0)
        with pytest.raises(SourceError, match=f"{role} may not emit messages") as refused:
            source.new_epoch()
        assert "penstock check" in refused.value.remedy


def test_a_second_capture_is_told_who_holds_the_lock(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as first:
        first.start()
        with CaptureProcess(spec(orders, tmp_path)) as second, pytest.raises(SourceBusyError) as raised:
            second.start()
        assert "penstock-lock" in raised.value.message
        read_now(first)


@pytest.mark.usefixtures("impatient")
def test_a_slot_somebody_else_reads_is_told_with_the_pid(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
    slot = f"slot_{orders.name}"
    stream = ReplicationStream(connect(orders.url, replication=True), slot, "penstock", Lsn(0))
    try:
        rows = orders.query("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (slot,))
        with CaptureProcess(spec(orders, tmp_path)) as capture, pytest.raises(SourceBusyError) as raised:
            capture.start()
        assert str(rows[0][0]) in raised.value.message
    finally:
        stream.close()


def test_a_log_of_another_server_is_refused(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        read_now(capture)
    _change_newest(tmp_path / "log", system_id="12345")
    with CaptureProcess(spec(orders, tmp_path)) as capture, pytest.raises(StateError, match="another"):
        capture.start()
    _change_newest(tmp_path / "log", system_id=None, timeline=9)
    with CaptureProcess(spec(orders, tmp_path)) as capture, pytest.raises(StateError, match="timeline"):
        capture.start()


def _change_newest(log: Path, *, system_id: str | None, timeline: int = 1) -> None:
    newest = ChangeLog(log).newest()
    assert isinstance(newest, Manifest)
    fields = newest.to_json()
    original = fields.setdefault("original_system_id", fields["system_id"])
    kept = log.parent / "system_id"
    if not kept.exists():
        kept.write_text(original)
    fields |= {"system_id": system_id or kept.read_text(), "timeline": timeline}
    manifest_path(log, newest.seq).write_text(json.dumps(fields))


def test_a_full_disk_stops_with_a_clear_error_and_the_next_run_goes_on(
    orders: Database, tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_FAILPOINT", "log.file_write=enospc")
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        started = capture.start()
        orders.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(StorageError, match="disk is full"):
            read_now(capture)
        with pytest.raises(StorageError):
            capture.acknowledge("lake", Lsn(2**40))
    assert report.read_text() == "log.file_write=enospc\n"
    monkeypatch.delenv("PENSTOCK_FAILPOINT")
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        assert capture.start().slot_position == started.slot_position
        read_now(capture)
    assert brief(log_rows(tmp_path), "id") == [("i", "1")]


def _count_under(database: Database, snapshot: str) -> int:
    with database.connect(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        row = connection.execute("SELECT count(*) FROM orders").fetchone()
        assert row is not None
        return int(row[0])


def test_a_snapshot_shows_exactly_what_committed_before_its_consistent_point(
    orders: Database, tmp_path: Path
) -> None:
    orders.execute("INSERT INTO orders VALUES (1)")
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        started = capture.start()
        orders.execute("INSERT INTO orders VALUES (2)")
        main = capture.snapshot()
        assert main.consistent_point == started.slot_position
        assert _count_under(orders, main.name) == 1
        temporary = capture.snapshot()
        orders.execute("INSERT INTO orders VALUES (3)")
        read_now(capture)
        assert _count_under(orders, temporary.name) == 2
        assert _count_under(orders, main.name) == 1, "reading goes on beside the snapshot"
        assert orders.query("SELECT pid FROM pg_stat_activity WHERE pid = %s", (main.held_by_pid,))
        before = [row["id"] for row in log_rows(tmp_path) if row["_tx"] < temporary.consistent_point]
        assert before == ["2"]
        capture.release_snapshot()
        with pytest.raises(psycopg.Error):
            _count_under(orders, temporary.name)


def test_a_plain_snapshot_needs_neither_slot_nor_publication(orders: Database, tmp_path: Path) -> None:
    orders.execute("INSERT INTO orders VALUES (1)")
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        snapshot = capture.plain_snapshot()
        orders.execute("INSERT INTO orders VALUES (2)")
        assert _count_under(orders, snapshot.name) == 1
        assert snapshot.consistent_point > 0
    assert orders.query("SELECT count(*) FROM pg_publication") == [(0,)]


def test_capture_ends_with_its_parent_and_leaves_ctrl_c_to_it(orders: Database, tmp_path: Path) -> None:
    capture = CaptureProcess(spec(orders, tmp_path))
    capture.start()
    assert capture.pid is not None
    process = psutil.Process(capture.pid)
    assert not any("postgresql://" in argument for argument in process.cmdline())
    process.send_signal(signal.SIGINT)
    read_now(capture)
    assert capture._process is not None
    assert capture._process.stdin is not None
    capture._process.stdin.close()
    capture._process.wait(WAIT_S)
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: orders.query(active, (f"slot_{orders.name}",)) == [(False,)], "the slot to be free")


def test_a_process_that_is_never_told_what_to_do_ends_when_it_is_given_up() -> None:
    with CaptureProcess() as capture:
        capture.begin()
        assert capture.pid is not None
        process = psutil.Process(capture.pid)
    assert not process.is_running()


def test_a_process_gets_ready_before_it_is_told_what_to_do(orders: Database, tmp_path: Path) -> None:
    with CaptureProcess() as capture:
        capture.begin()
        assert capture.pid is not None
        loaded = Path("/proc") / str(capture.pid) / "maps"
        wait_until(lambda: "numba" in loaded.read_text(), "compiled code to be there")
        capture.use(spec(orders, tmp_path))
        capture.start()
        orders.execute("INSERT INTO orders VALUES (1)")
        read_now(capture)
        assert "pandas" not in loaded.read_text(), "nobody needs it here, and it takes its time"
    assert brief(log_rows(tmp_path), "id") == [("i", "1")]


def test_progress_is_told_while_reading(orders: Database, tmp_path: Path) -> None:
    told: list[CaptureProgress] = []
    with CaptureProcess(spec(orders, tmp_path), told.append) as capture:
        capture.start()
        orders.execute("INSERT INTO orders SELECT generate_series(1, 100)")
        end = read_now(capture)
        assert (told[-1].rows, told[-1].transactions, told[-1].log_end) == (100, 1, end)


def test_writers_during_a_read_are_all_captured_once(orders: Database, tmp_path: Path) -> None:
    def write() -> None:
        with orders.connect() as connection:
            for number in range(300):
                connection.execute("INSERT INTO orders VALUES (%s)", (number,))

    with CaptureProcess(spec(orders, tmp_path, step_bytes_max=1)) as capture:
        capture.start()
        writer = threading.Thread(target=write)
        writer.start()
        while writer.is_alive():
            read_now(capture)
        writer.join()
        read_now(capture)
    assert [row["id"] for row in log_rows(tmp_path)] == [str(number) for number in range(300)]


@pytest.mark.parametrize("kind", [FrameInbox, NativeInbox])
def test_both_ways_of_reading_give_the_same_messages(
    kind: type[FrameInbox] | type[NativeInbox], orders: Database, tmp_path: Path
) -> None:
    with CaptureProcess(spec(orders, tmp_path)) as capture:
        capture.start()
        orders.execute("INSERT INTO orders SELECT i, repeat('x', i) FROM generate_series(1, 3000) AS i")
        orders.execute("INSERT INTO orders VALUES (0, repeat('y', 3000000))")
        target = capture.note_target()
    connection = connect(orders.url, replication=True)
    stream = ReplicationStream(connection, f"slot_{orders.name}", "penstock", Lsn(0))
    stream.inbox = inbox = kind(connection.pgconn, 1 << 20, 500)
    letters: list[str] = []
    largest = 0

    def collected() -> bool:
        nonlocal largest
        stream.drain()
        if inbox.full or inbox.bytes:
            batch = inbox.take()
            assert len(batch) <= 500
            for message in range(len(batch)):
                payload = batch.payload(message)
                largest = max(largest, len(payload))
                letters.append(chr(payload[0]) if payload else "k")
        stream.send_status(Lsn(0), Lsn(0), reply=True)
        return letters.count("C") == 2

    wait_until(collected, f"two commits before {target}")
    stream.close()
    assert letters.count("I") == 3001
    assert largest > 3_000_000
