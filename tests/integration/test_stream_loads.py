"""Loads of stream lanes on a real source: rows and changes, each told once, whatever happens meanwhile.

The judge (`tests.stream_reader`) compares with the history that the source's own triggers keep, and with its
rows in the end.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import SourceError
from penstock.core.stream import StreamId
from penstock.streams.events import Batch
from penstock.streams.load_state import LoadState
from penstock.streams.loading import Loads
from penstock.streams.publisher import Standing, StoppedError
from tests.always import AlwaysOn, always_spec
from tests.conftest import Database, wait_until
from tests.memory_lane import KilledError, MemoryLane, MemoryPublisher, load_settings
from tests.oracle_history import audit_end, install_audit
from tests.stream_reader import assert_told
from tests.workload import APPEND, UPSERT, Workload

pytestmark = pytest.mark.integration

LANE = "kafka"
TABLES = (*UPSERT, *APPEND)
#: Writers empty the others, whose loads then begin anew: a slot would wait for the long transaction.
LASTING = tuple(table for table in TABLES if table not in ("public.scratch", "public.signals"))


@contextmanager
def capturing(database: Database, state: Path) -> Iterator[AlwaysOn]:
    """The log is kept for as long as somebody needs it, and no longer."""
    spec = always_spec(database, state, lanes={LANE: None}, log_retention_s=0.0)
    with AlwaysOn(spec, LANE) as always:
        yield always


def loaded(loads: Loads, _standing: Standing) -> bool:
    return not loads.is_active


def lane_of(database: Database, state: Path, seed: int = 0, **settings: Any) -> MemoryLane:
    return MemoryLane(database.url, state / "log", MemoryPublisher(seed), **settings)


def make_table(database: Database, name: str, rows: int) -> str:
    """A table whose changes the source writes down itself."""
    database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text, body text)")
    database.execute(f"ALTER TABLE {name} ALTER COLUMN body SET STORAGE EXTERNAL")
    install_audit(database.url, [f"public.{name}"])
    database.execute(
        f"INSERT INTO {name} SELECT n, 'note', repeat(md5(n::text), 100) FROM generate_series(1, {rows}) n"
    )
    return f"public.{name}"


def follow_to_the_end(lane: MemoryLane, always: AlwaysOn, *streams: str) -> None:
    """Everything that is committed now is at the target."""
    started = always.join(*streams)
    target = always.capture.note_target()
    lane.live(
        always.capture, started, streams, lambda loads, at: not loads.is_active and at.position >= target
    )


def test_rows_and_changes_are_told_once_under_eight_writers_and_long_transactions(
    database: Database, tmp_path: Path
) -> None:
    workload = Workload(database.url, pause_s=0.002).setup(1000, audited=TABLES)
    lane = lane_of(database, tmp_path)
    with capturing(database, tmp_path) as always, database.connect(autocommit=False) as long:
        started = always.join(*LASTING)
        batches = 0

        def on_batch(_batch: Batch) -> None:
            """A transaction that is open over many chunks, and one that is rolled back."""
            nonlocal batches
            batches += 1
            if batches == 2:
                long.execute("UPDATE orders SET note = 'long', version = -id WHERE id % 10 = 0")
            if batches == 30:
                long.commit()

        workload.start(8)
        try:
            lane.live(always.capture, started, LASTING, loaded, on_batch)
            since = audit_end(database.url)
        finally:
            workload.stop()
        long.commit()
        assert batches > 30, "the transaction was open over several chunks"
        follow_to_the_end(lane, always, *LASTING)
    told = lane.publisher.told()
    for table in LASTING:
        judged = assert_told(database.url, table, told, since=since, resumed=lane.read_anew > 0)
        assert judged.changes


@pytest.mark.slow
@pytest.mark.parametrize("method", ["key", "ctid"])
def test_killed_loads_go_on_and_tell_each_change_once(
    database: Database, tmp_path: Path, method: str
) -> None:
    workload = Workload(database.url, pause_s=0.01).setup(1000, audited=TABLES)
    lane = lane_of(database, tmp_path, workload.seed, method=method)
    draw = random.Random(workload.seed)
    lives = 0
    with capturing(database, tmp_path) as always:
        workload.start(8)
        try:
            while True:
                lives += 1
                lane.publisher.kill_at = draw.randrange(1, 30 * lives)
                try:
                    lane.live(always.capture, always.join(*LASTING), LASTING, loaded)
                    break
                # Measuring tables may be a deadlock with a TRUNCATE of two.
                except (KilledError, SourceError):
                    continue
            lane.publisher.kill_at = None
            since = audit_end(database.url)
        finally:
            workload.stop()
        follow_to_the_end(lane, always, *LASTING)
    assert lives > 2
    told = lane.publisher.told()
    for table in LASTING:
        assert_told(database.url, table, told, since=since, resumed=True, by_pages=method == "ctid")


def test_a_load_that_lost_its_snapshot_tells_the_changes_first_and_each_row_once(
    database: Database, tmp_path: Path
) -> None:
    table = make_table(database, "notes", 1000)
    lane = lane_of(database, tmp_path)
    with capturing(database, tmp_path) as always:
        lane.publisher.kill_at = 12
        with pytest.raises(KilledError):
            lane.live(always.capture, always.join(table), [table], loaded)
        state = LoadState.from_json(lane.publisher.standing.loads[table])
        assert state.next is not None
        assert state.next.low is not None, "some chunks are told, not all"
        database.execute("UPDATE notes SET note = 'new', body = id WHERE id % 7 = 0")
        database.execute("DELETE FROM notes WHERE id % 11 = 0")
        database.execute("INSERT INTO notes VALUES (-1, 'before', 'b'), (5000, 'behind', 'b')")
        database.execute("UPDATE notes SET id = 1 - id, body = 'moved' WHERE id IN (4, 996)")
        follow_to_the_end(lane, always, table)
        told = lane.publisher.told()
        assert_told(database.url, table, told, since=0 if lane.read_anew else None, resumed=True)
        rows = [each.key for each in told if each.op == "r"]
        assert len(rows) == len(set(rows)), "key ranges tell each row once"
        assert lane.read_anew == 0


def test_a_row_that_came_from_beyond_without_a_value_has_the_table_read_anew(
    database: Database, tmp_path: Path
) -> None:
    table = make_table(database, "notes", 1000)
    lane = lane_of(database, tmp_path)
    with capturing(database, tmp_path) as always:
        lane.publisher.kill_at = 12
        with pytest.raises(KilledError):
            lane.live(always.capture, always.join(table), [table], loaded)
        database.execute("UPDATE notes SET id = -id WHERE id = 999")
        # Killed again when the change is told and nothing else: the next life must know of it.
        lane.publisher.kill_at = 3
        with pytest.raises(KilledError):
            lane.live(always.capture, always.join(table), [table], loaded)
        follow_to_the_end(lane, always, table)
    assert lane.read_anew
    assert len(lane.publisher.chunks(table)) == 2, "rows say which load they are of"
    assert_told(database.url, table, lane.publisher.told(), resumed=True)


@pytest.mark.parametrize(
    "rewrite",
    [
        "VACUUM FULL notes",
        pytest.param("TRUNCATE notes", marks=pytest.mark.slow),
        pytest.param("ALTER TABLE notes ALTER id TYPE bigint", marks=pytest.mark.slow),
    ],
)
def test_a_table_that_is_rewritten_between_chunks_is_read_anew(
    database: Database, tmp_path: Path, rewrite: str
) -> None:
    table = make_table(database, "notes", 1000)
    lane = lane_of(database, tmp_path, connections=1, ahead_bytes=1)

    def rewrite_table() -> None:
        database.execute(rewrite)
        database.execute("INSERT INTO notes VALUES (-1, 'new', 'b')")

    def waits_for_lock() -> bool:
        waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'notes'::regclass"
        return bool(database.query(waiting))

    with capturing(database, tmp_path) as always:
        batches = 0

        def on_batch(_batch: Batch) -> None:
            nonlocal batches
            batches += 1
            if batches == 2:
                writer.start()
                wait_until(waits_for_lock, "the table to be locked behind its reader")

        # It waits for the chunk that is being read, and goes before the next one.
        writer = threading.Thread(target=rewrite_table)
        lane.live(always.capture, always.join(table), [table], loaded, on_batch)
        writer.join()
        follow_to_the_end(lane, always, table)
    assert lane.read_anew
    assert_told(database.url, table, lane.publisher.told(), resumed=True)


def test_a_table_is_added_while_others_are_followed(database: Database, tmp_path: Path) -> None:
    first = make_table(database, "first", 300)
    lane = lane_of(database, tmp_path)
    with capturing(database, tmp_path) as always:
        follow_to_the_end(lane, always, first)
        second = make_table(database, "second", 500)
        with database.connect(autocommit=False) as long:
            long.execute("INSERT INTO second VALUES (-1, 'long', 'b')")  # the slot waits for it
            database.execute("UPDATE first SET note = 'meanwhile' WHERE id = 1")
            target = always.read_now()
            started = always.join(first, second)
            lane.live(always.capture, started, [first, second], lambda _loads, at: at.position >= target)
            told = lane.publisher.told()
            assert [each.op for each in told if each.table == first and each.op != "r"] == ["u"]
            assert not any(each.table == second for each in told), "its rows wait for the transaction"
            long.commit()
        database.execute("UPDATE second SET note = 'after' WHERE id < 10")
        follow_to_the_end(lane, always, first, second)
    told = lane.publisher.told()
    assert_told(database.url, first, told, since=audit_end(database.url) - 9)
    assert_told(database.url, second, told)
    assert [each.key for each in told if each.op == "r" and each.table == first].count(("1",)) == 1
    assert LoadState.from_json(lane.publisher.standing.loads[second]).is_loading is False


def test_the_state_is_at_the_target_before_rows_of_an_added_table_are(
    database: Database, tmp_path: Path
) -> None:
    first, second = make_table(database, "first", 10), make_table(database, "second", 500)
    lane = lane_of(database, tmp_path)
    with capturing(database, tmp_path) as always:
        follow_to_the_end(lane, always, first)
        seen: list[bool] = []

        def on_batch(batch: Batch) -> None:
            if len(batch):
                seen.append(second in lane.publisher.standing.loads)

        lane.live(always.capture, always.join(first, second), [first, second], loaded, on_batch)
    assert seen
    assert all(seen)


def test_values_are_loaded_as_changes_tell_them(database: Database, tmp_path: Path) -> None:
    values = (
        "(1, true, 'a'::char(5), '10.0.0.1'::inet, 'NaN'::numeric, 'infinity'::timestamptz, "
        "'{\"a\": 1}'::jsonb, '\\xdead'::bytea, ARRAY[1, NULL], interval '1 day 2 hours', NULL)"
    )
    database.execute(
        "CREATE TABLE all_kinds (id int PRIMARY KEY, b bool, c char(5), i inet, n numeric, t timestamptz, "
        "j jsonb, x bytea, a int[], v interval, empty text, g text GENERATED ALWAYS AS (id || '!') STORED)"
    )
    database.execute(f"INSERT INTO all_kinds VALUES {values}")
    table = "public.all_kinds"
    lane = lane_of(database, tmp_path)
    with capturing(database, tmp_path) as always:
        lane.live(always.capture, always.join(table), [table], loaded)
        database.execute(f"INSERT INTO all_kinds VALUES {values.replace('(1,', '(2,')}")
        follow_to_the_end(lane, always, table)
    row, change = lane.publisher.told()
    assert (row.op, change.op) == ("r", "c")
    assert dict(row.after or {}, id=None, g=None) == dict(change.after or {}, id=None, g=None)
    assert [each["g"] for each in (row.after or {}, change.after or {})] == ["1!", "2!"]


def test_the_end_may_be_asked_for_while_the_source_makes_a_snapshot(
    database: Database, tmp_path: Path
) -> None:
    table = make_table(database, "notes", 10)
    with capturing(database, tmp_path) as always:
        always.join(table)
        always.join(table)  # the main slot's own snapshot is let go
        stop = threading.Event()
        with database.connect(autocommit=False) as long:
            long.execute("INSERT INTO notes VALUES (-1)")  # the slot waits for it
            settings = load_settings(database.url)
            loads = Loads(always.capture, tmp_path / "log", settings, {}, lambda _changes: ())
            stop.set()
            with pytest.raises(StoppedError):
                loads.begin([StreamId.parse(table)], {}, None, stop)
            loads.close()
        always.read_now()  # capture lives
