"""Parquet tables: commits, fences, crashes, readers, sweeping. Real directories throughout."""

from __future__ import annotations

import datetime
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import failpoints
from penstock.core.errors import CommitConflictError, DestinationError, StorageError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations import parquet_files
from penstock.destinations.base import Destination, DestinationTable
from penstock.destinations.parquet import ParquetDestination, ParquetTable
from penstock.destinations.parquet_files import DataFileWriter, new_file_name
from penstock.destinations.parquet_sweep import RECORDS_KEPT
from penstock.destinations.records import DataFile, Marker, TableRecord

STREAM = StreamId("public", "orders")
COLUMNS = (SourceColumn("id", 20, -1, "int8", "bigint"), SourceColumn("batch", 20, -1, "int8", "bigint"))
SCHEMA = TableSchema(STREAM, COLUMNS, ("id",))
ARROW = pa.schema([("id", pa.int64()), ("batch", pa.int64())])
EPOCH = Lsn(1000)


@pytest.fixture
def table(tmp_path: Path) -> ParquetTable:
    return ParquetDestination(tmp_path / "lake").table(STREAM)


def write(table: ParquetTable, ids: Sequence[int], batch: int = 0) -> DataFile:
    rows = pa.record_batch({"id": list(ids), "batch": [batch] * len(ids)}, schema=ARROW)
    with DataFileWriter(table.files_directory / new_file_name(), ARROW, "id") as writer:
        writer.write_batch(rows)
        return writer.close()


def load(table: ParquetTable, ids: Sequence[int], load_id: str = "l1", to: int | None = 100) -> TableRecord:
    table.begin_load(load_id, EPOCH, SCHEMA, "append")
    table.commit_chunks(load_id, EPOCH, [f"{load_id}-chunk"], [write(table, ids)])
    return table.swap(load_id, EPOCH, f"g-{load_id}", None if to is None else Lsn(to))


def marker(start: int, to: int, *, epoch: Lsn = EPOCH, generation: str = "g-l1") -> Marker:
    return Marker(generation, epoch, Lsn(start), Lsn(to), (f"cdc-{start}",))


def change(
    table: ParquetTable, start: int, to: int, added: Sequence[DataFile], removed: Sequence[str] = ()
) -> TableRecord:
    return table.commit_changes(Lsn(start), marker(start, to), SCHEMA, added=added, removed=removed)


def ids(table: ParquetTable) -> list[int]:
    rows = pq.read_table(table.current).column("id").to_pylist()
    return sorted(value for value in rows if value is not None)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def newest(table: ParquetTable) -> TableRecord:
    record = table.record()
    assert record is not None
    return record


def test_the_protocols_are_met(tmp_path: Path) -> None:
    destination: Destination = ParquetDestination(tmp_path)
    opened: DestinationTable = destination.table(STREAM)
    assert opened.record() is None
    assert not opened.is_thread_committed("anything")
    assert not any(tmp_path.iterdir()), "opening a table must make nothing"


# Loads


def test_a_table_takes_again_what_it_holds_under_a_new_generation_and_stays_where_it_is(
    table: ParquetTable,
) -> None:
    load(table, [1, 2, 3])
    before = change(table, 100, 200, [write(table, [4])])
    again = marker(100, 200, generation="g-2")
    kept: dict[str, Any] = {"added": [write(table, [4, 5], batch=1)], "removed": [before.files[-1].name]}
    with pytest.raises(CommitConflictError, match="loaded anew"):
        table.commit_changes(Lsn(200), again, SCHEMA, rewinds="g-other", **kept)
    with pytest.raises(CommitConflictError, match="is at 0/C8"):
        table.commit_changes(Lsn(150), again, SCHEMA, rewinds="g-l1", **kept)
    for other in (marker(100, 250, generation="g-2"), marker(200, 200, generation="g-2")):
        with pytest.raises(ValueError, match="ends where the table is"):
            table.commit_changes(Lsn(200), other, SCHEMA, rewinds="g-l1", **kept)
    with pytest.raises(CommitConflictError, match="loaded anew"):
        table.commit_changes(Lsn(200), again, SCHEMA, **kept)
    assert table.commit_changes(Lsn(200), again, SCHEMA, rewinds="g-l1", **kept).marker == again
    assert ids(table) == [1, 2, 3, 4, 5]
    with pytest.raises(CommitConflictError, match="loaded anew"):
        change(table, 200, 300, [])  # of the generation before
    table.commit_changes(Lsn(200), marker(200, 300, generation="g-2"), SCHEMA, added=[], removed=[])


def test_a_table_that_is_mended_is_what_the_load_would_make_of_it_once(table: ParquetTable) -> None:
    before = load(table, [1, 2, 3])
    assert before.marker is not None
    table.begin_load("given up", EPOCH, SCHEMA, "append")
    now = Marker("g-l2", EPOCH, None, Lsn(500), ("l2-chunk",))
    kept, gone = write(table, [1, 2, 4], batch=1), [before.files[0].name]
    other = replace(before.marker, to=Lsn(99))
    with pytest.raises(CommitConflictError, match="not the one that was compared"):
        table.mend("l2", other, now, SCHEMA, added=[kept], removed=gone)
    assert ids(table) == [1, 2, 3]
    mended = table.mend("l2", before.marker, now, SCHEMA, added=[kept], removed=gone)
    assert (ids(table), mended.marker, mended.load) == ([1, 2, 4], now, None)
    assert table.is_thread_committed("l2-chunk")
    again = table.mend("l2", before.marker, now, SCHEMA, added=[write(table, [5])], removed=gone)
    assert again == mended == table.swap("l2", EPOCH, "g-l2", Lsn(500)), "it was done before"
    nothing = replace(now, generation="g-l3", to=Lsn(600))
    table.mend("l3", now, nothing, SCHEMA, added=[], removed=[])
    assert (ids(table), newest(table).marker) == ([1, 2, 4], nothing)


def test_chunks_are_invisible_until_the_swap(table: ParquetTable) -> None:
    table.begin_load("l1", EPOCH, SCHEMA, "upsert")
    table.commit_chunks("l1", EPOCH, ["t1", "t2"], [write(table, [1]), write(table, [2])])
    table.commit_chunks("l1", EPOCH, ["t3"], [write(table, [3])])
    assert not table.current.exists()
    assert table.version_path() is None
    assert all(map(table.is_thread_committed, ["t1", "t2", "t3"]))
    record = table.swap("l1", EPOCH, "g", Lsn(100))
    assert ids(table) == [1, 2, 3]
    assert (record.rows, record.write, record.load, record.last_load_id) == (3, "upsert", None, "l1")
    assert table.version_path() == table.current.resolve()
    assert all(map(table.is_thread_committed, ["t1", "t2", "t3"])), "the state does not know of the swap yet"


def test_a_second_load_replaces_the_table_in_one_step_and_changes_go_on_until_then(
    table: ParquetTable,
) -> None:
    load(table, [1, 2])
    table.begin_load("l2", EPOCH, SCHEMA, "append")
    table.commit_chunks("l2", EPOCH, ["t"], [write(table, [7])])
    assert ids(table) == [1, 2]
    change(table, 100, 200, [write(table, [3])])
    assert ids(table) == [1, 2, 3]
    table.swap("l2", EPOCH, "g-l2", Lsn(150))
    assert ids(table) == [7]
    assert newest(table).marker == Marker("g-l2", EPOCH, None, Lsn(150), ("t",))


def test_repeating_a_step_of_a_load_changes_nothing(table: ParquetTable) -> None:
    table.begin_load("l1", EPOCH, SCHEMA, "append")
    again = table.begin_load("l1", EPOCH, SCHEMA, "append")
    assert again.version == 1
    table.commit_chunks("l1", EPOCH, ["t1"], [write(table, [1])])
    assert table.commit_chunks("l1", EPOCH, ["t1"], [write(table, [1])]).version == 2
    swapped = table.swap("l1", EPOCH, "g", Lsn(5))
    assert table.swap("l1", EPOCH, "g", Lsn(5)) == swapped
    assert table.begin_load("l1", EPOCH, SCHEMA, "append") == swapped
    assert ids(table) == [1]


def test_another_load_gives_up_the_pending_one(table: ParquetTable) -> None:
    table.begin_load("l1", EPOCH, SCHEMA, "append")
    table.commit_chunks("l1", EPOCH, ["t1"], [write(table, [1])])
    table.begin_load("l2", EPOCH, SCHEMA, "append")
    assert not table.is_thread_committed("t1")
    with pytest.raises(CommitConflictError, match="not the one that is open"):
        table.commit_chunks("l1", EPOCH, ["t2"], [write(table, [2])])
    with pytest.raises(CommitConflictError, match="not the one that is open"):
        table.swap("l1", EPOCH, "g", Lsn(1))


def test_a_chunk_is_not_taken_a_second_time_with_others(table: ParquetTable) -> None:
    table.begin_load("l1", EPOCH, SCHEMA, "append")
    table.commit_chunks("l1", EPOCH, ["t1"], [write(table, [1])])
    with pytest.raises(CommitConflictError, match="committed already"):
        table.commit_chunks("l1", EPOCH, ["t1", "t2"], [write(table, [1]), write(table, [2])])


def test_a_resumed_load_is_readable_once_the_log_has_passed_its_newest_point(table: ParquetTable) -> None:
    load(table, [1])
    table.begin_load("l2", EPOCH, SCHEMA, "upsert")
    table.commit_chunks("l2", EPOCH, ["t"], [write(table, [5])])
    table.swap("l2", EPOCH, "g2", Lsn(200), readable_from=Lsn(300))
    assert ids(table) == [1]
    table.commit_changes(
        Lsn(200), marker(200, 250, generation="g2"), SCHEMA, added=[write(table, [6])], removed=[]
    )
    assert ids(table) == [1]
    assert table.publish(EPOCH, Lsn(299)).kind == "changes"
    assert ids(table) == [1]
    table.publish(EPOCH, Lsn(300))
    assert ids(table) == [5, 6]
    assert table.publish(EPOCH, Lsn(400)).kind == "publish"


def test_changes_that_pass_the_newest_point_show_the_table(table: ParquetTable) -> None:
    table.begin_load("l1", EPOCH, SCHEMA, "upsert")
    table.commit_chunks("l1", EPOCH, ["t"], [write(table, [5])])
    table.swap("l1", EPOCH, "g-l1", Lsn(200), readable_from=Lsn(300))
    assert not table.current.exists()
    change(table, 200, 300, [write(table, [6])])
    assert ids(table) == [5, 6]


# Changes


def test_changes_add_and_remove_files(table: ParquetTable) -> None:
    first = load(table, [1, 2]).files[0]
    added = write(table, [2, 3])
    record = change(table, 100, 200, [added], [first.name])
    assert ids(table) == [2, 3]
    assert record.files == (added,)
    assert table.is_thread_committed("cdc-100")
    assert not table.is_thread_committed("cdc-200")
    assert record.marker is not None
    assert record.marker.to == 200


def test_a_quiet_table_takes_changes_from_a_later_start(table: ParquetTable) -> None:
    load(table, [1], to=100)
    record = table.commit_changes(Lsn(100), marker(500, 600), SCHEMA, added=[write(table, [2])], removed=[])
    assert record.marker is not None
    assert (record.marker.start, record.marker.to) == (500, 600)


def test_a_batch_that_changes_no_row_moves_the_marker_and_makes_no_version(table: ParquetTable) -> None:
    before = load(table, [1])
    after = change(table, 100, 200, [])
    assert after.directory == before.directory
    assert after.version == before.version + 1


@pytest.mark.parametrize(
    ("expected_to", "made", "reason"),
    [
        (Lsn(90), marker(100, 200), "the table is at"),
        (None, marker(100, 200), "the table is at"),
        (Lsn(100), marker(100, 200, generation="g-old"), "loaded anew"),
        (Lsn(100), marker(100, 200, epoch=Lsn(999)), "newer leader"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(
    table: ParquetTable, expected_to: Lsn | None, made: Marker, reason: str
) -> None:
    before = load(table, [1])
    with pytest.raises(CommitConflictError, match=reason):
        table.commit_changes(expected_to, made, SCHEMA, added=[write(table, [2])], removed=[])
    assert table.record() == before
    assert ids(table) == [1]


def test_an_older_leader_is_refused_from_the_fence_on_and_before_any_other_commit(
    table: ParquetTable,
) -> None:
    before = load(table, [1])
    newer = Lsn(EPOCH + 1)
    table.fence(newer)
    fenced = newest(table)
    assert (fenced.epoch, fenced.marker, fenced.directory) == (newer, before.marker, before.directory)
    table.fence(newer)
    assert newest(table) == fenced, "once is enough"
    with pytest.raises(CommitConflictError, match="newer leader"):
        change(table, 100, 200, [write(table, [2])])
    with pytest.raises(CommitConflictError, match="newer leader"):
        table.fence(EPOCH)
    assert ids(table) == [1]
    table.commit_changes(
        Lsn(100), marker(100, 200, epoch=newer), SCHEMA, added=[write(table, [2])], removed=[]
    )
    assert ids(table) == [1, 2]


def test_an_older_leaders_load_is_fenced_too_and_may_be_gone_on_with(table: ParquetTable) -> None:
    table.fence(EPOCH)
    assert table.record() is None, "there is nothing to fence"
    table.begin_load("l1", EPOCH, SCHEMA, "upsert")
    table.commit_chunks("l1", EPOCH, ["t1"], [write(table, [1])])
    newer = Lsn(EPOCH + 1)
    table.fence(newer)
    with pytest.raises(CommitConflictError, match="newer leader"):
        table.swap("l1", EPOCH, "g", Lsn(100))
    table.swap("l1", newer, "g", Lsn(100))
    assert ids(table) == [1]


def test_the_same_batch_is_not_taken_twice(table: ParquetTable) -> None:
    load(table, [1])
    change(table, 100, 200, [write(table, [2])])
    with pytest.raises(CommitConflictError):
        change(table, 100, 200, [write(table, [2])])
    assert ids(table) == [1, 2]


def test_a_batch_must_advance(table: ParquetTable) -> None:
    load(table, [1])
    with pytest.raises(ValueError, match="advances"):
        change(table, 100, 100, [])


def test_files_that_are_gone_cannot_be_replaced(table: ParquetTable) -> None:
    load(table, [1])
    with pytest.raises(CommitConflictError, match="not in the table"):
        change(table, 100, 200, [write(table, [2])], ["part-gone.parquet"])


def test_a_table_that_was_never_loaded_takes_no_changes(table: ParquetTable) -> None:
    with pytest.raises(CommitConflictError, match="never loaded"):
        change(table, 100, 200, [write(table, [2])])


def test_an_emptied_table_has_no_rows_and_still_its_columns(table: ParquetTable) -> None:
    first = load(table, [1, 2]).files[0]
    change(table, 100, 200, [], [first.name])
    assert pq.read_table(table.current).schema.names == ["id", "batch"]
    assert ids(table) == []
    assert duckdb.connect().execute(f"SELECT count(*) FROM '{table.current}/*.parquet'").fetchall() == [(0,)]
    change(table, 200, 300, [write(table, [9])])
    assert ids(table) == [9]
    assert len(newest(table).files) == 1, "the empty file is not needed any more"


def test_dead_letters_are_counted_and_kept(table: ParquetTable) -> None:
    load(table, [1])
    table.dead_letters_directory.mkdir()
    pq.write_table(pa.table({"row": ["x", "y"]}), table.dead_letters_directory / "d.parquet")
    file = DataFile("d.parquet", 2, 10)
    record = table.commit_changes(
        Lsn(100), marker(100, 200), SCHEMA, added=[], removed=[], dead_letter_files=[file]
    )
    assert (record.dead_letters.count, record.dead_letters.files) == (2, ("d.parquet",))
    table.sweep(grace_s=0, abandoned_after_s=0)
    assert names(table.dead_letters_directory) == {"d.parquet"}


def test_records_can_be_read_back(table: ParquetTable) -> None:
    record = load(table, [1])
    assert TableRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    pending = table.begin_load("l2", EPOCH, SCHEMA, "append")
    assert TableRecord.from_json(json.loads(json.dumps(pending.to_json()))) == pending


def test_a_corrupt_record_is_a_clear_error(table: ParquetTable) -> None:
    record = load(table, [1])
    table.layout.record_path(record.version).write_bytes(b"{")
    with pytest.raises(DestinationError, match="cannot be read") as caught:
        table.record()
    assert "resync" in caught.value.remedy


# Names and readers


@pytest.mark.parametrize("stream", [StreamId("public", "Weird Name"), StreamId("_a.b", "x.y/z'ü")])
def test_any_table_name_has_a_directory_of_its_own(tmp_path: Path, stream: StreamId) -> None:
    destination = ParquetDestination(tmp_path)
    opened = destination.table(stream)
    load(opened, [4, 5])
    assert destination.streams() == [stream]
    assert ids(opened) == [4, 5]
    opened.drop_all()
    assert destination.streams() == []
    assert opened.record() is None
    opened.drop_all()


def test_pyarrow_pandas_and_duckdb_read_the_current_version(table: ParquetTable) -> None:
    load(table, range(5))
    change(table, 100, 200, [write(table, range(5, 8))])
    assert sorted(pd.read_parquet(table.current)["id"]) == list(range(8))
    assert pq.read_table(table.current).num_rows == 8
    query = f"SELECT count(*), sum(id) FROM read_parquet('{table.current}/*.parquet')"
    assert duckdb.connect().execute(query).fetchall() == [(8, 28)]


def test_a_reader_never_sees_a_mixture_or_a_part_of_a_version(table: ParquetTable) -> None:
    """Every version keeps one file and replaces two: a mixture has two numbers, a part has fewer rows."""
    record = load(table, [0])
    kept = record.files[0].name
    stop = threading.Event()
    seen: dict[str, set[int | None]] = {"link": set(), "resolved": set()}
    wrong: list[object] = []

    def read(way: str) -> None:
        while not stop.is_set():
            try:
                rows = pq.read_table(table.current if way == "link" else table.current.resolve())
            except FileNotFoundError as error:
                if way == "resolved":
                    wrong.append(error)
                continue
            if way == "link" and not rows.schema.names:
                continue  # every file was gone when pyarrow looked at it: nothing is found
            found = set(rows.column("batch").to_pylist()) - {0}
            if len(found) > 1 or rows.num_rows != 1 + 2 * len(found):
                wrong.append(rows.to_pylist())
            seen[way] |= found

    readers = [threading.Thread(target=read, args=(way,)) for way in seen]
    for reader in readers:
        reader.start()
    for batch in range(1, 31):
        added = [write(table, [1], batch), write(table, [2], batch)]
        removed = [file.name for file in record.files if file.name != kept]
        record = change(table, 100 * batch, 100 * batch + 100, added, removed)
        table.sweep(grace_s=60)
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert all(len(versions) > 2 for versions in seen.values())


def test_no_two_versions_have_a_file_name_in_common(table: ParquetTable) -> None:
    """Readers that pass over vanished names would else see a part of a version across a switch."""
    first = load(table, [1])
    second = change(table, 100, 200, [write(table, [2])])
    assert first.directory is not None
    assert second.directory is not None
    assert first.files[0] in second.files
    shown = [names(table.layout.directory / directory) for directory in (first.directory, second.directory)]
    assert [len(version) for version in shown] == [1, 2]
    assert not shown[0] & shown[1]


# Fences


def test_of_two_writers_on_the_same_record_one_commits(table: ParquetTable) -> None:
    load(table, [1])
    files = [write(table, [number]) for number in range(10, 18)]
    barrier, winners = threading.Barrier(len(files)), []

    def commit(file: DataFile) -> None:
        own = ParquetTable(table.layout.root, STREAM)
        barrier.wait()
        try:
            change(own, 100, 200, [file])
            winners.append(file)
        except CommitConflictError:
            pass

    threads = [threading.Thread(target=commit, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert set(newest(table).files) >= set(winners)
    assert len(ids(table)) == 2
    assert len(table.layout.version_directories()) == 2, "losers leave no version behind"


def test_a_writer_paused_between_check_and_commit_lands_nowhere(
    table: ParquetTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table, [1])
    mine, theirs = write(table, [2]), write(table, [3])

    def overtaken(name: str) -> None:
        monkeypatch.setattr(failpoints, "reach", lambda name: None)
        newer = marker(100, 300, epoch=Lsn(2000))
        ParquetTable(table.layout.root, STREAM).commit_changes(
            Lsn(100), newer, SCHEMA, added=[theirs], removed=[]
        )

    monkeypatch.setattr(failpoints, "reach", overtaken)
    with pytest.raises(CommitConflictError, match="another writer"):
        change(table, 100, 200, [mine])
    assert ids(table) == [1, 3]
    with pytest.raises(CommitConflictError, match="newer leader"):
        change(table, 300, 400, [mine])


def test_a_writer_that_slept_past_the_pruning_of_its_number_is_refused(
    table: ParquetTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table, [1])
    asleep = write(table, [2])

    def overtaken(name: str) -> None:
        monkeypatch.setattr(failpoints, "reach", lambda name: None)
        other = ParquetTable(table.layout.root, STREAM)
        for number in range(RECORDS_KEPT + 5):
            change(other, 100 + number, 101 + number, [])
        other.sweep(grace_s=3600)

    before = newest(table).version
    monkeypatch.setattr(failpoints, "reach", overtaken)
    with pytest.raises(CommitConflictError, match="another writer"):
        change(table, 100, 200, [asleep])
    assert not table.layout.record_path(before + 1).exists()
    assert ids(table) == [1]
    assert newest(table).version == before + RECORDS_KEPT + 5


def test_a_slow_writer_does_not_turn_current_back(
    table: ParquetTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table, [1])
    mine, theirs = write(table, [2]), write(table, [3])

    def overtaken(name: str) -> None:
        if name == "destination.recorded":
            monkeypatch.setattr(failpoints, "reach", lambda name: None)
            change(ParquetTable(table.layout.root, STREAM), 200, 300, [theirs])

    monkeypatch.setattr(failpoints, "reach", overtaken)
    change(table, 100, 200, [mine])
    assert ids(table) == [1, 2, 3]


# Crashes

KILLED_COMMIT = """
import sys
from pathlib import Path
from tests.unit.test_parquet_table import STREAM, ParquetTable, change, load, write
table = ParquetTable(Path(sys.argv[1]), STREAM)
if sys.argv[2] == "swap":
    load(table, [5, 6], "l2", 300)
else:
    change(table, 100, 200, [write(table, [3])])
"""


@pytest.mark.parametrize("operation", ["swap", "changes"])
@pytest.mark.parametrize(
    ("place", "is_committed"),
    [
        ("destination.file_write", False),
        ("destination.version_built", False),
        ("destination.recorded", True),
        ("destination.switched", True),
    ],
)
def test_a_kill_leaves_the_table_before_or_after_the_commit(
    table: ParquetTable, tmp_path: Path, operation: str, place: str, is_committed: bool
) -> None:
    before = load(table, [1])
    report = tmp_path / "report"
    environment = {
        **os.environ,
        "PENSTOCK_FAILPOINT": f"{place}=kill",
        "PENSTOCK_FAILPOINT_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-c", KILLED_COMMIT, str(table.layout.root), operation]
    ended = subprocess.run(command, env=environment, check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL
    assert report.read_text() == f"{place}=kill\n"
    if place != "destination.switched":
        assert ids(table) == [1], "readers saw the version before at the moment of the crash"
    reopened = ParquetTable(table.layout.root, STREAM)
    after = {"swap": [5, 6], "changes": [1, 3]}[operation]
    thread_id = {"swap": "l2-chunk", "changes": "cdc-100"}[operation]
    assert ids(reopened) == (after if is_committed else [1])
    if operation == "changes":
        assert reopened.is_thread_committed(thread_id) == is_committed
    if not is_committed:  # the work is repeated, and what the first attempt left is swept
        if operation == "swap":
            load(reopened, [5, 6], "l3", 300)
        else:
            change(reopened, 100, 200, [write(reopened, [3])])
        assert ids(reopened) == after
    reopened.sweep(grace_s=0, abandoned_after_s=0)
    assert ids(reopened) == after
    named = {file.name for file in newest(reopened).files}
    assert names(reopened.files_directory) == named
    assert list(reopened.layout.version_directories()) == [newest(reopened).directory]
    assert before.directory not in names(reopened.layout.directory)


def test_a_full_disk_leaves_the_table_as_it_was(table: ParquetTable, monkeypatch: pytest.MonkeyPatch) -> None:
    load(table, [1])
    monkeypatch.setattr(failpoints, "_reached", {})
    monkeypatch.setenv("PENSTOCK_FAILPOINT", "destination.file_write=enospc")
    before = names(table.files_directory)
    with pytest.raises(StorageError, match="disk is full") as caught:
        write(table, [2])
    assert "Free disk space" in caught.value.remedy
    assert names(table.files_directory) == before
    assert ids(table) == [1]


def test_links_that_are_impossible_are_copies(table: ParquetTable, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def link(source: Path, target: Path) -> None:
        if target.suffix == ".parquet":
            raise OSError(errno.EPERM, "no links here")
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    load(table, [1])
    assert ids(table) == [1]


# Sweeping


def make_older(table: ParquetTable, seconds: float) -> None:
    for path in [*table.layout.directory.rglob("*"), *table.layout.directory.iterdir()]:
        if not path.is_symlink():
            moment = path.stat().st_mtime - seconds
            os.utime(path, (moment, moment))


def test_a_version_stays_for_the_grace_after_it_was_superseded(table: ParquetTable) -> None:
    first = load(table, [1])
    make_older(table, 10_000)  # long ago it was made, but only now it is superseded
    change(table, 100, 200, [write(table, [2])], [first.files[0].name])
    assert first.directory is not None
    superseded = table.layout.directory / first.directory
    table.sweep(grace_s=600)
    assert pq.read_table(superseded).column("id").to_pylist() == [1]
    assert first.files[0].name in names(table.files_directory), "a task may still be reading it"
    make_older(table, 700)
    swept = table.sweep(grace_s=600)
    assert swept.versions == 1
    assert not superseded.exists()
    assert ids(table) == [2]


def test_the_grace_counts_from_the_last_record_that_showed_the_version(table: ParquetTable) -> None:
    first = load(table, [1])
    change(table, 100, 200, [])  # the same version under a newer record
    make_older(table, 10_000)
    change(table, 200, 300, [write(table, [2])])
    assert table.sweep(grace_s=600).versions == 0
    assert first.directory in names(table.layout.directory)


def test_the_current_version_is_never_swept_however_old(table: ParquetTable) -> None:
    load(table, [1])
    make_older(table, 10**7)
    table.sweep(grace_s=0, abandoned_after_s=0)
    assert ids(table) == [1]
    assert len(newest(table).files) == len(names(table.files_directory))


def test_files_about_to_be_committed_and_those_of_a_pending_load_are_not_swept(table: ParquetTable) -> None:
    load(table, [1])
    table.begin_load("l2", EPOCH, SCHEMA, "append")
    table.commit_chunks("l2", EPOCH, ["t"], [write(table, [5])])
    make_older(table, 10_000)
    abandoned = write(table, [8])
    moment = time.time() - 10_000
    os.utime(table.files_directory / abandoned.name, (moment, moment))
    fresh = write(table, [9])
    assert table.sweep(grace_s=600, abandoned_after_s=3600).files == 1
    assert fresh.name in names(table.files_directory)
    table.swap("l2", EPOCH, "g", Lsn(100))
    assert ids(table) == [5]


def test_files_that_no_record_names_stay_for_a_grace_that_is_longer_than_an_hour(table: ParquetTable) -> None:
    """A comparison reads what it applied to a table for itself, and no commit names that."""
    load(table, [1])
    view = write(table, [2])
    make_older(table, 5_000)
    assert table.sweep(grace_s=6 * 3600).files == 0
    assert view.name in names(table.files_directory)
    make_older(table, 6 * 3600)
    assert table.sweep(grace_s=6 * 3600).files == 1
    assert view.name not in names(table.files_directory)
    fresh = write(table, [3])
    make_older(table, 3_000)
    assert table.sweep(grace_s=60).files == 0, "a writer may be about to commit it"
    make_older(table, 1_000)
    assert table.sweep(grace_s=60).files == 1
    assert fresh.name not in names(table.files_directory)


def test_the_newest_records_are_kept(table: ParquetTable) -> None:
    load(table, [1])
    for number in range(RECORDS_KEPT + 3):
        change(table, 100 + number, 101 + number, [])
    newest_before = newest(table)
    swept = table.sweep(grace_s=3600)
    assert swept.records == 6
    assert len(table.layout.versions()) == RECORDS_KEPT
    assert newest(table) == newest_before


# Data files


def written(tmp_path: Path, values: Any, key: str | None = "k") -> DataFile:
    rows = pa.table({"k": values, "s": pa.array([None] * len(values), pa.struct([("k", pa.int64())]))})
    with DataFileWriter(tmp_path / new_file_name(), rows.schema, key) as writer:
        writer.write_table(rows)
        return writer.close()


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        (pa.array([5, -3, 2**62]), (-3, 2**62)),
        (pa.array(["b", "aé", "ab"]), ("ab", "b")),
        (pa.array([datetime.date(2026, 1, 2), datetime.date(999, 1, 1)]), ("0999-01-01", "2026-01-02")),
        (
            pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5)], pa.timestamp("us")),
            ("2026-01-02T03:04:05.000000", "2026-01-02T03:04:05.000000"),
        ),
        (pa.array([1.5, float("nan")]), (None, None)),
        (pa.array([True, False]), (None, None)),
        (pa.array([Decimal("1.5")]), (None, None)),
        (pa.array([b"a"]), (None, None)),
        (pa.array([1, None]), (None, None)),
        (pa.array([], pa.int64()), (None, None)),
        (pa.array([10**7], pa.int32()).cast(pa.date32()), (None, None)),
    ],
)
def test_key_bounds_are_those_of_the_rows_or_unknown(
    tmp_path: Path, values: Any, bounds: tuple[object, object]
) -> None:
    file = written(tmp_path, values)
    assert (file.key_min, file.key_max) == bounds
    assert DataFile.from_json(json.loads(json.dumps(file.to_json()))) == file


def test_key_bounds_span_all_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "ROW_GROUP_ROWS_MAX", 10)
    file = written(tmp_path, pa.array(range(35)))
    assert (file.rows, file.key_min, file.key_max) == (35, 0, 34)
    metadata = pq.read_metadata(tmp_path / file.name)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [10, 10, 10, 5]


def test_small_batches_are_gathered_into_row_groups(tmp_path: Path) -> None:
    path = tmp_path / new_file_name()
    with DataFileWriter(path, ARROW, "id") as writer:
        for number in range(100):
            writer.write_batch(pa.record_batch({"id": [number], "batch": [0]}, schema=ARROW))
        file = writer.close()
    assert pq.read_metadata(path).num_row_groups == 1
    assert (file.rows, file.bytes) == (100, path.stat().st_size)


def test_a_name_is_used_once(tmp_path: Path) -> None:
    path = tmp_path / new_file_name()
    with DataFileWriter(path, ARROW):
        pass
    with pytest.raises(FileExistsError):
        DataFileWriter(path, ARROW)
    assert new_file_name() != new_file_name()


def test_a_file_that_was_not_finished_is_removed(tmp_path: Path) -> None:
    path = tmp_path / new_file_name()
    with pytest.raises(RuntimeError, match="task failed"), DataFileWriter(path, ARROW):
        raise RuntimeError("task failed")
    assert not path.exists()


def test_a_load_without_rows_gives_a_table_without_rows(table: ParquetTable) -> None:
    table.begin_load("l1", EPOCH, SCHEMA, "append")
    table.commit_chunks("l1", EPOCH, ["t"], [write(table, []), write(table, [])])
    record = table.swap("l1", EPOCH, "g", Lsn(1))
    assert len(record.files) == 1
    assert pq.read_table(table.current).schema.names == ["id", "batch"]
    assert replace(record, files=()).rows == 0


# Tables that are read by a cursor


def test_a_batch_from_a_stale_cursor_is_refused(table: ParquetTable) -> None:
    table.begin_load("l1", EPOCH, SCHEMA, "upsert")
    table.commit_chunks("l1", EPOCH, ["t1"], [write(table, [1])])
    table.swap("l1", EPOCH, "g", None, cursor={"n": 100})

    def commit(start: int, to: int, thread_id: str, added: Sequence[DataFile]) -> TableRecord:
        after = Marker("g", EPOCH, None, None, (thread_id,), {"n": to})
        return table.commit_changes(
            None, after, SCHEMA, added=added, removed=(), expected_cursor={"n": start}
        )

    commit(100, 150, "from 100", [write(table, [2])])
    with pytest.raises(CommitConflictError, match="another cursor"):
        commit(100, 160, "from 100 again", [write(table, [3])])
    with pytest.raises(CommitConflictError, match="another cursor"):
        table.commit_changes(
            None, marker(1, 2, generation="g"), SCHEMA, added=[write(table, [3])], removed=()
        )
    commit(150, 150, "from 100", [write(table, [4])])  # late rows: the marker stays
    assert ids(table) == [1, 2, 4]
    assert table.is_thread_committed("from 100")
    assert newest(table).marker == Marker("g", EPOCH, None, None, ("from 100",), {"n": 150})
