"""Steps, manifests, ranges and retention of the change log, on a real file system without a server."""

from __future__ import annotations

import errno
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import durable
from penstock.capture.acknowledgement import NOTHING, AcknowledgementTracker
from penstock.core.errors import LogGoneError, SourceBusyError, StateError, StorageError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log.columns import lacking, log_schema, source_column, source_name, stored_name
from penstock.log.manifest import Manifest, manifest_path, read_manifest
from penstock.log.reader import ChangeLog, LogFile, read_rows
from penstock.log.retention import apply_retention, bound, sweep
from penstock.log.writer import LogWriter
from tests.logged_rows import with_entries_beneath_a_null

pytestmark = pytest.mark.unit

ORDERS, EVENTS = StreamId("public", "orders"), StreamId("public", "events")


def schema(stream: StreamId = ORDERS, *names: str) -> TableSchema:
    columns = tuple(SourceColumn(name, 25, -1, "text", "text") for name in names or ("id", "_note"))
    return TableSchema(stream, columns, key=("id",))


def rows(table: TableSchema, *offsets: tuple[int, int], leaf: StreamId | None = None) -> pa.RecordBatch:
    arrow_schema = log_schema(table, str(leaf or table.stream))
    own = {"_op": "i", "_xid": 7, "_commit_ts": 0, "_old_kind": "n"}
    records = [{"id": f"{tx}.{op}", "_tx": tx, "_op_index": op, **own} for tx, op in offsets]
    return pa.RecordBatch.from_pylist(records, arrow_schema)


def writer(directory: Path, *, end: int = 100, last_seq: int = 0, **limits: Any) -> LogWriter:
    return LogWriter(
        directory, system_id="7", timeline=1, epoch=Lsn(1), end=Lsn(end), last_seq=last_seq, **limits
    )


def write(
    log: LogWriter, table: TableSchema, *offsets: tuple[int, int], leaf: StreamId | None = None
) -> None:
    log.write(table, leaf or table.stream, rows(table, *offsets, leaf=leaf), {"i": len(offsets)})


def ids(files: tuple[LogFile, ...], after: int, to: int) -> list[str]:
    return [i for part in read_rows(files, Lsn(after), Lsn(to)) for i in part.column("id").to_pylist()]


def three_steps(directory: Path) -> ChangeLog:
    log = writer(directory)
    for step in range(3):
        start = 100 * (step + 1)
        write(log, schema(), (start, 0), (start + 50, 0))
        assert log.seal(Lsn(start + 100)) is not None
    return ChangeLog(directory)


def test_nothing_is_visible_before_the_step_is_sealed(tmp_path: Path) -> None:
    log = writer(tmp_path)
    write(log, schema(), (100, 0))
    assert ChangeLog(tmp_path).manifests() == []
    log.seal(Lsn(150))
    (manifest,) = ChangeLog(tmp_path).manifests()
    assert (manifest.start, manifest.end, manifest.seq) == (100, 150, 1)
    assert manifest.tables[0].files[0].operations == {"i": 1}


def test_a_range_holds_exactly_the_transactions_that_begin_inside_it(tmp_path: Path) -> None:
    log = three_steps(tmp_path)
    assert ids(log.files(ORDERS, Lsn(100), Lsn(400)).files, 100, 400) == [
        "100.0", "150.0", "200.0", "250.0", "300.0", "350.0",
    ]  # fmt: skip
    assert ids(log.files(ORDERS, Lsn(150), Lsn(250)).files, 150, 250) == ["150.0", "200.0"]
    assert not log.files(EVENTS, Lsn(100), Lsn(400))
    assert (log.start(), log.end()) == (100, 400)


def test_a_range_that_retention_has_begun_to_take_is_an_error_and_not_a_shorter_one(tmp_path: Path) -> None:
    log = three_steps(tmp_path)
    assert log.files(ORDERS, Lsn(100), Lsn(400)).rows == 6
    apply_retention(tmp_path, Lsn(200))
    for after, to in ((100, 400), (199, 201), (100, 150)):
        with pytest.raises(LogGoneError, match="begins at 0/C8"):
            log.files(ORDERS, Lsn(after), Lsn(to))
    assert log.files(ORDERS, Lsn(200), Lsn(400)).rows == 4
    assert log.files(ORDERS, Lsn(0), Lsn(400)).rows == 4  # wherever it begins
    assert not log.files(ORDERS, Lsn(150), Lsn(150))  # nothing is asked for


def test_rows_can_be_read_by_column_without_losing_the_range(tmp_path: Path) -> None:
    log = three_steps(tmp_path)
    parts = list(read_rows(log.files(ORDERS, Lsn(150), Lsn(250)).files, Lsn(150), Lsn(250), ["id"]))
    assert [part.column_names for part in parts] == [["id"], ["id"]]
    assert [row["id"] for part in parts for row in part.to_pylist()] == ["150.0", "200.0"]


def test_boundaries_cut_at_step_ends_by_size(tmp_path: Path) -> None:
    log = three_steps(tmp_path)
    assert log.boundaries(Lsn(100), Lsn(400), 1) == [200, 300, 400]
    assert log.boundaries(Lsn(100), Lsn(400), 1 << 30) == [400]
    assert log.boundaries(Lsn(100), Lsn(399), 1 << 30) == [300]
    assert log.boundaries(Lsn(400), Lsn(400), 1) == []


def test_an_empty_step_moves_the_logs_end(tmp_path: Path) -> None:
    log = writer(tmp_path)
    assert log.seal(Lsn(170)) is not None
    assert ChangeLog(tmp_path).end() == 170
    assert log.seal(Lsn(170)) is None, "there is nothing new to say"


def test_a_schema_change_starts_a_new_file_and_keeps_the_order(tmp_path: Path) -> None:
    log = writer(tmp_path)
    wider = schema(ORDERS, "id", "_note", "more")
    write(log, schema(), (100, 0))
    write(log, wider, (100, 2))
    write(log, schema(), (100, 4))
    log.seal(Lsn(150))
    found = ChangeLog(tmp_path)
    files = found.files(ORDERS, Lsn(100), Lsn(150)).files
    assert [file.schema_id for file in files] == [schema().id, wider.id, schema().id]
    assert ids(files, 100, 150) == ["100.0", "100.2", "100.4"]
    assert found.schema(wider.id) == wider


def test_few_open_files_do_not_change_what_is_read(tmp_path: Path) -> None:
    log = writer(tmp_path, open_files_max=2, pending_bytes_max=1)
    streams = [StreamId("public", f"t{number}") for number in range(5)]
    for op in range(4):
        for stream in streams:
            write(log, schema(stream), (100, op))
    log.seal(Lsn(150))
    for stream in streams:
        files = ChangeLog(tmp_path).files(stream, Lsn(100), Lsn(150)).files
        assert ids(files, 100, 150) == [f"100.{op}" for op in range(4)]


def test_leaves_are_listed_under_their_root(tmp_path: Path) -> None:
    log = writer(tmp_path)
    leaf = StreamId("public", "orders_2026")
    write(log, schema(), (100, 0), leaf=leaf)
    log.truncate_leaf(ORDERS, leaf, 120, 2)
    log.truncate(ORDERS, 130, 0)
    log.seal(Lsn(150))
    found = ChangeLog(tmp_path).files(ORDERS, Lsn(100), Lsn(150))
    assert [file.leaf for file in found.files] == [str(leaf)]
    assert found.truncates == ((130, 0),)
    assert found.leaf_truncates == ((120, 2, str(leaf)),)
    assert not ChangeLog(tmp_path).files(ORDERS, Lsn(100), Lsn(125)).truncates


def test_of_two_writers_only_one_commits_a_step(tmp_path: Path) -> None:
    first, second = writer(tmp_path), writer(tmp_path)
    for log in (first, second):
        write(log, schema(), (100, 0))
    first.seal(Lsn(150))
    with pytest.raises(SourceBusyError, match="Another process"):
        second.seal(Lsn(150))
    assert ids(ChangeLog(tmp_path).files(ORDERS, Lsn(100), Lsn(150)).files, 100, 150) == ["100.0"]


def test_a_step_that_may_be_committed_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(tmp_path)
    write(log, schema(), (100, 0))
    sync = durable.sync_directory

    def fail(directory: Path) -> None:
        if manifest_path(tmp_path, 1).exists():
            raise OSError("the manifest is there, and whether it stays nobody can tell")
        sync(directory)

    monkeypatch.setattr(durable, "sync_directory", fail)
    with pytest.raises((StorageError, OSError)):
        log.seal(Lsn(150))
    log.abandon()
    assert ids(ChangeLog(tmp_path).files(ORDERS, Lsn(100), Lsn(150)).files, 100, 150) == ["100.0"]


def test_a_writer_that_slept_until_its_number_was_removed_again_leaves_nothing(tmp_path: Path) -> None:
    late = writer(tmp_path)
    write(late, schema(), (100, 0))
    three_steps(tmp_path)
    for seq in (1, 2):
        manifest_path(tmp_path, seq).unlink()
    with pytest.raises(SourceBusyError, match="Another process"):
        late.seal(Lsn(150))
    assert [manifest.seq for manifest in ChangeLog(tmp_path).manifests()] == [3]


def test_a_missing_step_is_an_error_and_not_a_silent_gap(tmp_path: Path) -> None:
    three_steps(tmp_path)
    manifest_path(tmp_path, 2).unlink()
    with pytest.raises(StateError, match="gap"):
        ChangeLog(tmp_path).manifests()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format_version": 1}'])
def test_a_manifest_that_cannot_be_read_is_an_error(tmp_path: Path, content: str) -> None:
    three_steps(tmp_path)
    manifest_path(tmp_path, 2).write_text(content)
    with pytest.raises(StateError, match="cannot be read"):
        ChangeLog(tmp_path).manifests()


def test_a_full_disk_is_a_clear_error_and_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(tmp_path)
    write(log, schema(), (100, 0))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _no_space)
        with pytest.raises(StorageError, match="disk is full"):
            log.seal(Lsn(150))
    assert ChangeLog(tmp_path).manifests() == []
    log.abandon()
    assert list((tmp_path / "data").iterdir()) == []


def _no_space(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_retention_removes_what_every_lane_has_and_keeps_the_newest_step(tmp_path: Path) -> None:
    log = three_steps(tmp_path)
    assert apply_retention(tmp_path, Lsn(199)) == 0
    assert apply_retention(tmp_path, Lsn(250)) == 1
    assert [manifest.seq for manifest in log.manifests()] == [2, 3]
    assert apply_retention(tmp_path, Lsn(9999)) == 1
    assert [manifest.seq for manifest in log.manifests()] == [3]
    assert len(list((tmp_path / "data").iterdir())) == 1
    assert ids(log.files(ORDERS, Lsn(300), Lsn(400)).files, 300, 400) == ["300.0", "350.0"]


def test_what_was_sealed_lately_or_a_lane_lacks_is_kept(tmp_path: Path) -> None:
    times = [
        datetime.fromisoformat(manifest.sealed_at).timestamp()
        for manifest in three_steps(tmp_path).manifests()
    ]
    assert bound(tmp_path, Lsn(250), 60, times[2] + 100) == 250, "all are old: the lanes decide"
    assert bound(tmp_path, Lsn(9999), 60, times[2]) == 100, "all are young: the first one's start"
    assert bound(tmp_path, Lsn(9999), times[2] - times[1], times[2]) == 200, "the second one is young enough"
    assert bound(tmp_path / "none", Lsn(7), 60, times[2]) == 7


def test_many_small_pieces_are_kept_together_in_their_order(tmp_path: Path) -> None:
    log = writer(tmp_path)
    for number in range(2_000):
        write(log, schema(), (100, 2 * number))
    log.seal(Lsn(150))
    expected = [f"100.{2 * number}" for number in range(2_000)]
    assert ids(ChangeLog(tmp_path).files(ORDERS, Lsn(100), Lsn(150)).files, 100, 150) == expected


def test_what_a_crash_left_is_swept_but_not_a_step_that_is_being_written(tmp_path: Path) -> None:
    three_steps(tmp_path)
    left = tmp_path / "data" / f"{2:020d}-dead"
    left.mkdir()
    log = writer(tmp_path, end=400, last_seq=3)
    write(log, schema(), (400, 0))
    assert sweep(tmp_path) == 1
    assert not left.exists()
    log.seal(Lsn(450))
    assert ids(ChangeLog(tmp_path).files(ORDERS, Lsn(400), Lsn(450)).files, 400, 450) == ["400.0"]
    unsealed = tmp_path / "data" / f"{5:020d}-dead"
    unsealed.mkdir()
    assert sweep(tmp_path) == 0, "whoever writes there may yet take the number"
    later = writer(tmp_path, end=450, last_seq=4)
    write(later, schema(), (450, 0))
    later.seal(Lsn(500))
    assert not unsealed.exists()
    assert ids(ChangeLog(tmp_path).files(ORDERS, Lsn(450), Lsn(500)).files, 450, 500) == ["450.0"]


def test_source_names_cannot_clash_with_ours() -> None:
    assert stored_name("_tx") == "__tx"
    assert source_name(stored_name("_tx")) == "_tx"
    arrow_schema = log_schema(schema(ORDERS, "_tx", "id"), "public.orders")
    columns = [source_column(field) for field in arrow_schema]
    assert [column.name for column in columns if column] == ["_tx", "id"]


def test_only_the_least_position_of_all_lanes_is_acknowledged() -> None:
    tracker = AcknowledgementTracker({"lake": None, "kafka": Lsn(50)}, confirmed=Lsn(40), log_end=Lsn(100))
    assert tracker.acknowledged() == NOTHING, "a lane is not known yet"
    tracker.lane_flushed("lake", Lsn(90))
    assert tracker.acknowledged() == 50
    tracker.lane_flushed("kafka", Lsn(500))
    assert tracker.acknowledged() == 90
    tracker.lane_flushed("lake", Lsn(500))
    assert tracker.acknowledged() == 100, "never beyond the log's durable end"
    tracker.log_sealed(Lsn(300))
    tracker.limit(Lsn(200))
    assert tracker.acknowledged() == 200
    tracker.limit(Lsn(10))
    assert tracker.acknowledged() == 200, "never backwards"
    assert AcknowledgementTracker({}, Lsn(1), Lsn(2)).acknowledged() == NOTHING


def test_a_reader_that_stays_finds_new_steps_and_forgets_old_ones(tmp_path: Path) -> None:
    log = three_steps(tmp_path)
    assert [step.seq for step in log.after(Lsn(200))] == [2, 3]
    assert log.after(Lsn(400)) == []
    more = writer(tmp_path, end=400, last_seq=3)
    write(more, schema(), (400, 0))
    assert more.seal(Lsn(500)) is not None
    assert [step.seq for step in log.after(Lsn(250))] == [2, 3, 4]
    apply_retention(tmp_path, Lsn(300))
    assert log.start() == Lsn(300)
    assert [step.seq for step in log.after(Lsn(0))] == [3, 4]
    assert log.end() == Lsn(500)


def test_a_reader_that_stays_reads_no_more_of_a_long_log_than_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(tmp_path, end=0)
    for step in range(200):
        assert log.seal(Lsn(step + 1)) is not None
    read: list[int] = []

    def count(directory: Path, seq: int) -> Manifest:
        read.append(seq)
        return read_manifest(directory, seq)

    monkeypatch.setattr("penstock.log.reader.read_manifest", count)
    staying = ChangeLog(tmp_path)
    for _ in range(3):
        assert [step.seq for step in staying.after(Lsn(198))] == [199, 200]
    assert len(read) <= 12, "halving 200 steps takes 8 looks, and none is taken twice"


def test_entries_beneath_a_null_list_are_of_no_row() -> None:
    lists = with_entries_beneath_a_null(["a", "b", "b"])
    for unchanged in (lists, pa.chunked_array([lists])):
        assert np.flatnonzero(lacking(unchanged)).tolist() == [0, 2]
        assert np.flatnonzero(lacking(unchanged, ["b"])).tolist() == [2]
    assert np.flatnonzero(lacking(lists.slice(1), ["b"])).tolist() == [1]
