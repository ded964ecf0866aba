"""Iceberg tables on a real catalog: what is committed is what Spark and PyIceberg read."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import durable
from penstock.core.errors import CommitConflictError, DestinationError, StaleLookupError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.iceberg import IcebergDestination, IcebergTable
from penstock.destinations.iceberg_java import iceberg_errors
from penstock.destinations.iceberg_schema import assign_ids, ids_of, schema_json, with_field_ids
from penstock.destinations.records import DataFile, Marker, PositionDeletes, TableRecord
from tests.iceberg import rewrite_all, session, sqlite_destination

STREAM = StreamId("public", "orders")
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string()), pa.field("small", pa.int16())])
SCHEMA = TableSchema(
    STREAM,
    (
        SourceColumn("id", 20, -1, "int8", "bigint", 1),
        SourceColumn("v", 25, -1, "text", "text", 2),
        SourceColumn("small", 21, -1, "int2", "smallint", 3),
    ),
    key=("id",),
)


@pytest.fixture
def destination(tmp_path: Path) -> IcebergDestination:
    return sqlite_destination(tmp_path)


def write(table: IcebergTable, columns: pa.Schema, ids: list[int], value: str) -> DataFile:
    rows = pa.table([pa.array(ids), pa.array([value] * len(ids)), pa.array(ids).cast(pa.int16())], columns)
    path = table.files_directory / f"{secrets.token_hex(8)}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
    return DataFile(path.name, len(ids), path.stat().st_size)


def write_deletes(table: IcebergTable, of: DataFile, positions: list[int]) -> PositionDeletes:
    schema = with_field_ids(
        pa.schema(
            [pa.field("file_path", pa.string(), nullable=False), pa.field("pos", pa.int64(), nullable=False)]
        ),
        {"file_path": 2147483546, "pos": 2147483545},
    )
    location = table.file_location(of.name)
    rows = pa.table([pa.array([location] * len(positions)), pa.array(np.array(positions))], schema)
    path = table.files_directory / f"{secrets.token_hex(8)}-deletes.parquet"
    pq.write_table(rows, path)
    return PositionDeletes(DataFile(path.name, len(positions), path.stat().st_size), of.name)


def rows_in_spark(table: IcebergTable, directory: Path) -> list[tuple[int, str, int]]:
    table.handle.table.refresh()
    metadata = table.handle.table.operations().current().metadataFileLocation()
    frame = session(directory).read.format("iceberg").load(metadata)
    return sorted((row["id"], row["v"], row["small"]) for row in frame.collect())


def begun(table: IcebergTable, load_id: str = "load1") -> pa.Schema:
    """Open a load; the columns with the ids that its files carry."""
    load = table.begin_load(load_id, Lsn(1), SCHEMA, "upsert", COLUMNS).load
    assert load is not None
    assert load.columns is not None
    return load.columns


def loaded(table: IcebergTable, ids: list[int], to: int = 100) -> tuple[pa.Schema, DataFile]:
    columns = begun(table)
    file = write(table, columns, ids, "loaded")
    table.commit_chunks("load1", Lsn(1), ["chunk1"], [file])
    table.swap("load1", Lsn(1), "g1", Lsn(to))
    return columns, file


def marker(start: int, to: int, epoch: int = 1, generation: str = "g1") -> Marker:
    return Marker(generation, Lsn(epoch), Lsn(start), Lsn(to), (f"t{start}",))


def change(
    table: IcebergTable,
    at: int,
    *,
    columns: pa.Schema,
    added: Sequence[DataFile] = (),
    removed: Sequence[str] = (),
    deletes: Sequence[PositionDeletes] = (),
    read_from: int | None = None,
) -> TableRecord:
    """A batch of the next hundred positions on top of a table that is at `at`."""
    return table.commit_changes(
        Lsn(at),
        marker(at, at + 100),
        SCHEMA,
        added=added,
        removed=removed,
        deletes=deletes,
        columns=columns,
        read_from=read_from,
    )


def test_a_load_is_seen_by_nobody_before_the_swap_and_then_whole(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table = destination.table(STREAM)
    assert table.record() is None
    columns = begun(table)
    for number in range(2):
        file = write(table, columns, [2 * number, 2 * number + 1], "a")
        table.commit_chunks("load1", Lsn(1), [f"chunk{number}"], [file])
        table.commit_chunks("load1", Lsn(1), [f"chunk{number}"], [file])
        assert table.is_thread_committed(f"chunk{number}")
    assert rows_in_spark(table, tmp_path) == []
    swapped = table.swap("load1", Lsn(1), "g1", Lsn(100))
    assert table.swap("load1", Lsn(1), "g1", Lsn(100)) == swapped
    assert swapped.marker == Marker("g1", Lsn(1), None, Lsn(100), ("chunk0", "chunk1"))
    assert swapped.load is None
    assert swapped.rows == 4
    assert rows_in_spark(table, tmp_path) == [(i, "a", i) for i in range(4)]


def test_rows_are_replaced_and_added_in_one_commit_with_the_marker(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table = destination.table(STREAM)
    columns, file = loaded(table, [1, 2, 3])
    record = table.record()
    assert record is not None
    assert record.columns is not None
    assert record.columns.equals(columns)
    after = change(
        table,
        100,
        added=[write(table, columns, [2, 9], "new")],
        deletes=[write_deletes(table, file, [1])],
        columns=columns,
        read_from=record.snapshot_id,
    )
    assert rows_in_spark(table, tmp_path) == [
        (1, "loaded", 1),
        (2, "new", 2),
        (3, "loaded", 3),
        (9, "new", 9),
    ]
    assert after.rows == 4
    fresh = sqlite_destination(tmp_path).table(STREAM)
    again = fresh.record()
    assert again == after
    assert again is not None
    assert sorted(fresh.files(again), key=str) == sorted(table.files(after), key=str)
    assert fresh.is_thread_committed("t100")
    with pytest.raises(CommitConflictError):
        change(fresh, 100, columns=columns, read_from=after.snapshot_id)


def test_an_older_leader_is_refused_from_the_fence_on_and_before_any_other_commit(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table, other = destination.table(STREAM), sqlite_destination(tmp_path).table(STREAM)
    table.fence(Lsn(2))
    assert table.record() is None, "there is nothing to fence"
    columns = begun(table)
    other.fence(Lsn(2))  # a load that is under way
    file = write(table, columns, [1], "loaded")
    with pytest.raises(CommitConflictError, match="newer leader"):
        table.commit_chunks("load1", Lsn(1), ["chunk1"], [file])
    other.commit_chunks("load1", Lsn(2), ["chunk1"], [file])
    other.swap("load1", Lsn(2), "g1", Lsn(100))
    before = other.record()
    assert before is not None
    other.fence(Lsn(3))  # a table
    fenced = other.record()
    assert fenced is not None
    assert (fenced.epoch, fenced.marker, fenced.rows) == (Lsn(3), before.marker, 1)
    other.fence(Lsn(3))
    assert other.record() == fenced, "once is enough"
    with pytest.raises(CommitConflictError, match="newer leader"):
        other.commit_changes(
            Lsn(100), marker(100, 200, epoch=2), SCHEMA, added=[], removed=[], columns=columns
        )
    with pytest.raises(CommitConflictError, match="newer leader"):
        other.fence(Lsn(2))
    assert rows_in_spark(table, tmp_path) == [(1, "loaded", 1)]


def test_a_leader_that_slept_between_check_and_commit_lands_nowhere(
    destination: IcebergDestination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1])
    other = sqlite_destination(tmp_path).table(STREAM)

    def overtake(name: str) -> None:
        if name == "iceberg.staged":
            monkeypatch.undo()
            other.commit_changes(
                Lsn(100), marker(100, 150, epoch=2), SCHEMA, added=[], removed=[], columns=columns
            )

    monkeypatch.setattr("penstock.failpoints.reach", overtake)
    with pytest.raises(CommitConflictError, match="newer leader"):
        change(table, 100, added=[write(table, columns, [5], "late")], columns=columns)
    assert rows_in_spark(table, tmp_path) == [(1, "loaded", 1)]
    record = table.record()
    assert record is not None
    assert record.marker is not None
    assert record.marker.to == Lsn(150)


def test_a_foreign_commit_in_between_loses_nothing(
    destination: IcebergDestination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An insert lands on top of foreign rows; a delete that was looked up before them is looked up again."""
    table = destination.table(STREAM)
    columns, file = loaded(table, [1, 2])
    foreign = sqlite_destination(tmp_path).table(STREAM)
    read_from = table.record().snapshot_id  # type: ignore[union-attr]

    def append_rows() -> None:
        update = foreign.handle.table.newAppend()
        update.appendFile(foreign.handle.files.data_file(write(foreign, columns, [7], "foreign")))
        update.commit()

    def meddle(name: str) -> None:
        if name == "iceberg.staged":
            monkeypatch.undo()
            append_rows()

    monkeypatch.setattr("penstock.failpoints.reach", meddle)
    with pytest.raises(StaleLookupError):
        change(table, 100, deletes=[write_deletes(table, file, [0])], columns=columns, read_from=read_from)
    record = table.record()
    assert record is not None
    change(
        table, 100, deletes=[write_deletes(table, file, [0])], columns=columns, read_from=record.snapshot_id
    )
    assert rows_in_spark(table, tmp_path) == [(2, "loaded", 2), (7, "foreign", 7)]


def test_a_rolled_back_commit_counts_as_not_committed(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1])
    before = table.record()
    assert before is not None
    for _ in range(2):
        change(
            table, 100, added=[write(table, columns, [5], "x")], columns=columns, read_from=before.snapshot_id
        )
        assert table.is_thread_committed("t100")
        table.handle.table.refresh()
        table.handle.table.manageSnapshots().rollbackTo(before.snapshot_id).commit()
        assert not table.is_thread_committed("t100")
        assert table.record().marker == before.marker  # type: ignore[union-attr]
    assert rows_in_spark(table, tmp_path) == [(1, "loaded", 1)]


def test_the_marker_survives_compaction_and_expiry_by_others(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1])
    record = change(table, 100, added=[write(table, columns, [5], "x")], columns=columns)
    foreign = table.handle.table
    for _ in range(3):
        foreign.refresh()
        foreign.newAppend().commit()
        if "penstock_fence" in foreign.refs():
            foreign.manageSnapshots().removeTag("penstock_fence").commit()  # as expiry does after a day
        foreign.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    assert foreign.snapshot(record.snapshot_id) is None
    after = sqlite_destination(tmp_path).table(STREAM).record()
    assert after is not None
    assert after.marker == record.marker
    assert table.is_thread_committed("t100")


def test_old_metadata_files_go_beyond_those_that_are_kept(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1])
    java = table.handle.table
    java.refresh()
    assert java.properties().get("write.metadata.previous-versions-max") == "100"
    java.updateProperties().set("write.metadata.previous-versions-max", "2").commit()
    for start in range(100, 600, 100):
        change(table, start, added=[write(table, columns, [start], "x")], columns=columns)
    assert len(list(tmp_path.rglob("*.metadata.json"))) == 3


def test_a_resumed_load_waits_on_its_branch_until_the_log_has_passed_it(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1, 2])
    assert begun(table, "load2").equals(columns)
    table.commit_chunks("load2", Lsn(1), ["c2"], [write(table, columns, [8, 9], "again")])
    waiting = table.swap("load2", Lsn(1), "g2", Lsn(300), Lsn(500))
    assert waiting.readable_from == Lsn(500)
    assert rows_in_spark(table, tmp_path) == [(1, "loaded", 1), (2, "loaded", 2)]
    table.commit_changes(
        Lsn(300),
        marker(300, 400, generation="g2"),
        SCHEMA,
        added=[write(table, columns, [10], "new")],
        removed=[],
        columns=columns,
    )
    assert rows_in_spark(table, tmp_path) == [(1, "loaded", 1), (2, "loaded", 2)]
    shown = table.publish(Lsn(1), Lsn(500))
    assert shown.readable_from is None
    assert rows_in_spark(table, tmp_path) == [(8, "again", 8), (9, "again", 9), (10, "new", 10)]


def test_a_load_that_keeps_history_adds_its_rows(destination: IcebergDestination, tmp_path: Path) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1])
    table.begin_load("load2", Lsn(1), SCHEMA, "upsert", COLUMNS)
    table.commit_chunks("load2", Lsn(1), ["c2"], [write(table, columns, [2], "again")])
    table.swap("load2", Lsn(1), "g2", Lsn(300), keep_files=True)
    assert rows_in_spark(table, tmp_path) == [(1, "loaded", 1), (2, "again", 2)]


def test_the_old_table_goes_on_while_a_load_is_pending(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1])
    table.begin_load("load2", Lsn(1), SCHEMA, "upsert", COLUMNS)
    table.commit_chunks("load2", Lsn(1), ["c2"], [write(table, columns, [2], "again")])
    change(table, 100, added=[write(table, columns, [3], "x")], columns=columns)
    assert rows_in_spark(table, tmp_path) == [(1, "loaded", 1), (3, "x", 3)]
    table.commit_chunks("load2", Lsn(1), ["c3"], [write(table, columns, [4], "again")])
    table.swap("load2", Lsn(1), "g2", Lsn(300))
    assert rows_in_spark(table, tmp_path) == [(2, "again", 2), (4, "again", 4)]


def test_files_that_somebody_compacted_while_rows_were_only_added_are_not_looked_for_again(
    destination: IcebergDestination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inserts land on top of a compaction; what is known of the files must then be read anew."""
    table = destination.table(STREAM)
    columns, file = loaded(table, [1, 2])
    record = table.record()
    assert record is not None
    assert [held.name for held in table.files(record)] == [file.name]
    other = sqlite_destination(tmp_path).table(STREAM)
    successor = write(other, columns, [1, 2], "loaded")

    def compact(name: str) -> None:
        if name == "iceberg.staged":
            monkeypatch.undo()
            files = other.handle.files
            rewrite = other.handle.table.newRewrite()
            rewrite.deleteFile(files.data_file(file)).addFile(files.data_file(successor)).commit()

    monkeypatch.setattr("penstock.failpoints.reach", compact)
    added = write(table, columns, [3], "new")
    after = change(table, 100, added=[added], columns=columns, read_from=record.snapshot_id)
    assert {held.name for held in table.files(after)} == {successor.name, added.name}


def test_a_table_that_somebody_else_made_is_left_alone(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table = destination.table(STREAM)
    loaded(table, [1])
    update = table.handle.table.updateProperties()
    for name in ("penstock.epoch", "penstock.commits"):
        update.remove(name)
    update.commit()
    foreign = sqlite_destination(tmp_path).table(STREAM)
    assert foreign.record() is None
    with pytest.raises(DestinationError, match="did not write"):
        foreign.begin_load("load9", Lsn(9), SCHEMA, "upsert", COLUMNS)
    assert rows_in_spark(table, tmp_path) == [(1, "loaded", 1)]


def test_ids_are_given_out_once_while_a_resumed_load_waits_to_be_shown(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    """Iceberg's own count knows only the ids of columns that are shown."""
    table = destination.table(STREAM)
    columns = begun(table)
    table.commit_chunks("load1", Lsn(1), ["c1"], [write(table, columns, [1], "a")])
    waiting = table.swap("load1", Lsn(1), "g1", Lsn(100), Lsn(500))
    assert waiting.columns is not None
    wider = COLUMNS.append(pa.field("more", pa.string()))
    held = ids_of(waiting.columns)
    columns = with_field_ids(wider, assign_ids(wider, held, waiting.last_field_id))
    assert ids_of(columns)["more"] not in held.values()
    assert table.handle.table.schema().highestFieldId() < ids_of(columns)["more"]
    changes = marker(100, 600)
    with pytest.raises(AssertionError):
        assign_ids(wider, {**held, "more": max(held.values())}, 0)
    shown = table.commit_changes(Lsn(100), changes, SCHEMA, added=[], removed=[], columns=columns)
    assert shown.readable_from is None
    assert rows_in_spark(table, tmp_path) == [(1, "a", 1)]
    again = table.begin_load("load2", Lsn(1), SCHEMA, "upsert", wider.append(pa.field("last", pa.string())))
    assert again.load is not None
    assert again.load.columns is not None
    assert ids_of(again.load.columns)["last"] > max(ids_of(columns).values())
    assert again.last_field_id == ids_of(again.load.columns)["last"]


def test_columns_with_ids_that_a_pending_load_has_taken_are_refused(destination: IcebergDestination) -> None:
    table = destination.table(STREAM)
    loaded(table, [1])
    record = table.record()
    assert record is not None
    assert record.columns is not None
    wider = COLUMNS.append(pa.field("more", pa.string()))
    columns = with_field_ids(wider, assign_ids(wider, ids_of(record.columns), record.last_field_id))
    other = COLUMNS.append(pa.field("other", pa.int64()))
    table.begin_load("load2", Lsn(1), SCHEMA, "upsert", other)
    with pytest.raises(StaleLookupError):
        change(table, 100, columns=columns)


def partition_by_small(table: IcebergTable) -> None:
    table.handle.table.updateSpec().addField("small").commit()


def test_a_table_that_somebody_partitioned_is_written_on_and_read_whole(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    """Ours go under the spec without partitions; deletes where the file is that they concern."""
    table = destination.table(STREAM)
    columns, file = loaded(table, [1, 2, 3])
    partition_by_small(table)
    record = table.record()
    assert record is not None
    change(
        table,
        100,
        added=[write(table, columns, [2, 9], "new")],
        deletes=[write_deletes(table, file, [1])],
        columns=columns,
        read_from=record.snapshot_id,
    )
    expected = [(1, "loaded", 1), (2, "new", 2), (3, "loaded", 3), (9, "new", 9)]
    assert rows_in_spark(table, tmp_path) == expected
    in_one = session(tmp_path).read.format("iceberg").load(table.metadata_location()).where("small = 9")
    assert [row["v"] for row in in_one.collect()] == ["new"]

    assert rewrite_all(table) > 0
    record = table.record()
    assert record is not None
    files = table.files(record)
    assert len(files) == 4
    by_id = {pq.ParquetFile(table.path(file)).read().column("id")[0].as_py(): file for file in files}
    after = change(
        table,
        200,
        added=[write(table, columns, [9], "newer")],
        deletes=[write_deletes(table, by_id[9], [0])],
        columns=columns,
        read_from=record.snapshot_id,
    )
    assert rows_in_spark(table, tmp_path) == [*expected[:3], (9, "newer", 9)]
    change(table, 300, removed=[by_id[1].name], columns=columns, read_from=after.snapshot_id)
    assert rows_in_spark(table, tmp_path) == [*expected[1:3], (9, "newer", 9)]


def test_a_table_that_was_made_with_partitions_is_written_by_them_or_refused_with_a_remedy(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table = destination.table(STREAM)
    catalog = destination.catalog
    schema = catalog.java.iceberg("SchemaParser").fromJson(schema_json(COLUMNS, assign_ids(COLUMNS, {}, 0)))
    spec = catalog.java.iceberg("PartitionSpec").builderFor(schema).identity("small").build()
    catalog._catalog.createNamespace(catalog._identifier(STREAM).namespace())
    catalog._catalog.buildTable(catalog._identifier(STREAM), schema).withPartitionSpec(spec).create()
    columns = begun(table)
    file = write(table, columns, [1], "a")
    with pytest.raises(DestinationError, match="no partition spec without") as refused:
        table.commit_chunks("load1", Lsn(1), ["c1"], [file])
    assert refused.value.remedy
    record = table.record()
    assert record is not None
    [small] = record.layout.partitions
    placed = replace(file, spec_id=record.layout.spec_id, partition=f'{{"{small.field_id}": 1}}')
    table.commit_chunks("load1", Lsn(1), ["c1"], [placed])
    table.swap("load1", Lsn(1), "g1", Lsn(100))
    assert rows_in_spark(table, tmp_path) == [(1, "a", 1)]


@pytest.mark.parametrize("at", ["chunk", "swap", "moved"])
def test_a_load_whose_branch_somebody_removed_is_refused(
    destination: IcebergDestination, tmp_path: Path, at: str
) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1])
    table.begin_load("load2", Lsn(1), SCHEMA, "upsert", COLUMNS)
    table.commit_chunks("load2", Lsn(1), ["c2"], [write(table, columns, [2], "again")])
    references = table.handle.table.manageSnapshots()
    if at == "moved":
        references.replaceBranch("penstock_load", "main").commit()
    else:
        references.removeBranch("penstock_load").commit()
    file = write(table, columns, [3], "again")

    def go_on() -> None:
        if at == "chunk":
            table.commit_chunks("load2", Lsn(1), ["c3"], [file])
        else:
            table.swap("load2", Lsn(1), "g2", Lsn(300), keep_files=at == "moved")

    with pytest.raises(CommitConflictError, match="penstock_load") as refused:
        go_on()
    assert "resync" in str(refused.value.remedy)
    table.begin_load("load3", Lsn(1), SCHEMA, "upsert", COLUMNS)
    table.commit_chunks("load3", Lsn(1), ["c4"], [write(table, columns, [4], "anew")])
    table.swap("load3", Lsn(1), "g3", Lsn(300))
    assert rows_in_spark(table, tmp_path) == [(4, "anew", 4)]


def test_the_branch_of_a_load_may_be_compacted(destination: IcebergDestination, tmp_path: Path) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1])
    table.begin_load("load2", Lsn(1), SCHEMA, "upsert", COLUMNS)
    table.commit_chunks("load2", Lsn(1), ["c2"], [write(table, columns, [2], "again")])
    foreign = table.handle.table.newAppend()
    foreign.toBranch("penstock_load").commit()
    table.commit_chunks("load2", Lsn(1), ["c3"], [write(table, columns, [3], "again")])
    table.swap("load2", Lsn(1), "g2", Lsn(300))
    assert rows_in_spark(table, tmp_path) == [(2, "again", 2), (3, "again", 3)]


def test_a_load_begun_before_its_table_was_shown_holds_its_own_rows_alone(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    """Without a table to branch from there is no branch yet when the first table is shown."""
    table = destination.table(STREAM)
    columns = begun(table)
    table.commit_chunks("load1", Lsn(1), ["c1"], [write(table, columns, [1], "a")])
    table.swap("load1", Lsn(1), "g1", Lsn(100), Lsn(500))
    columns = begun(table, "load2")
    table.publish(Lsn(1), Lsn(500))
    assert rows_in_spark(table, tmp_path) == [(1, "a", 1)]
    table.commit_chunks("load2", Lsn(1), ["c2"], [write(table, columns, [2], "b")])
    table.swap("load2", Lsn(1), "g2", Lsn(600))
    assert rows_in_spark(table, tmp_path) == [(2, "b", 2)]


def test_equality_deletes_of_others_are_refused_with_a_remedy(destination: IcebergDestination) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1, 2])
    path = table.files_directory / "equality.parquet"
    pq.write_table(pa.table([pa.array([1])], pa.schema([columns.field("id")])), path)
    java, opened = destination.catalog.java, table.handle.table
    [number] = [number for name, number in ids_of(columns).items() if name == "id"]
    field_ids = java.gateway.new_array(java.jvm.int, 1)
    field_ids[0] = number
    builder = java.iceberg("FileMetadata").deleteFileBuilder(opened.spec()).ofEqualityDeletes(field_ids)
    builder.withPath(str(path)).withFileSizeInBytes(path.stat().st_size).withFormat("PARQUET")
    opened.newRowDelta().addDeletes(builder.withRecordCount(1).build()).commit()
    record = table.record()
    assert record is not None
    with pytest.raises(DestinationError, match="equality deletes") as refused:
        table.files(record)
    assert "Compact" in str(refused.value.remedy)


def test_indexes_of_files_of_one_name_are_kept_apart(destination: IcebergDestination) -> None:
    table = destination.table(STREAM)
    loaded(table, [1])
    names = ["a.parquet", "/lake/x/a.parquet", "/lake/y/a.parquet"]
    assert len({table.index_path(DataFile(name, 1, 1)) for name in names}) == 3


def test_deletes_go_with_the_files_they_concern_and_rows_are_counted_right(
    destination: IcebergDestination, tmp_path: Path
) -> None:
    table = destination.table(STREAM)
    columns, file = loaded(table, [1, 2, 3])
    record = table.record()
    assert record is not None
    other = write(table, columns, [7, 8], "other")
    record = change(
        table,
        100,
        added=[other],
        deletes=[write_deletes(table, file, [1])],
        columns=columns,
        read_from=record.snapshot_id,
    )
    record = change(
        table, 200, deletes=[write_deletes(table, other, [0])], columns=columns, read_from=record.snapshot_id
    )
    assert record.rows == 3
    after = change(
        table,
        300,
        added=[write(table, columns, [1, 3], "rewritten")],
        removed=[file.name],
        columns=columns,
        read_from=record.snapshot_id,
    )
    assert rows_in_spark(table, tmp_path) == [(1, "rewritten", 1), (3, "rewritten", 3), (8, "other", 8)]
    assert (after.rows, after.file_count) == (3, 2)


@pytest.mark.slow
def test_deletes_that_take_the_place_of_others_are_refused_if_somebody_merged_those_meanwhile(
    destination: IcebergDestination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = destination.table(STREAM)
    columns, file = loaded(table, list(range(10)))
    record = table.record()
    for round_ in range(3):
        assert record is not None
        deletes = [write_deletes(table, file, [round_])]
        record = change(
            table, 100 * (round_ + 1), deletes=deletes, columns=columns, read_from=record.snapshot_id
        )
    assert record is not None
    other = sqlite_destination(tmp_path).table(STREAM)

    def merged(by: IcebergTable, read: TableRecord, positions: list[int]) -> PositionDeletes:
        [held] = by.files(read)
        return replace(write_deletes(by, file, positions), replaces=held.deletes)

    def merge(name: str) -> None:
        if name == "iceberg.staged":
            monkeypatch.undo()
            read = other.record()
            assert read is not None
            theirs, files = merged(other, read, [0, 1, 2]), other.handle.files
            rewrite = other.handle.table.newRewrite()
            for replaced in files.replaced(theirs):
                rewrite.deleteFile(replaced)
            rewrite.addFile(files.delete_file(theirs)).commit()

    monkeypatch.setattr("penstock.failpoints.reach", merge)
    deletes = [merged(table, record, [0, 1, 2, 3])]
    with pytest.raises(StaleLookupError):
        change(table, 400, deletes=deletes, columns=columns, read_from=record.snapshot_id)
    record = table.record()
    assert record is not None
    deletes = [merged(table, record, [0, 1, 2, 3])]
    record = change(table, 400, deletes=deletes, columns=columns, read_from=record.snapshot_id)
    [held] = table.files(record)
    assert [each.rows for each in held.deletes] == [4]
    [read_anew] = sqlite_destination(tmp_path).table(STREAM).files(record)
    assert read_anew.deletes == held.deletes
    assert record.rows == 6
    assert rows_in_spark(table, tmp_path) == [(i, "loaded", i) for i in range(4, 10)]


@pytest.mark.slow
def test_what_a_commit_is_made_of_is_on_disk_before_it_is_told(
    destination: IcebergDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = destination.table(STREAM)
    columns, _ = loaded(table, [1])
    file = write(table, columns, [2], "new")
    directory = table.directory / "metadata"
    before, synced, seen = set(directory.iterdir()), set[Path](), list[str]()
    sync = durable.sync_file

    def sync_file(path: Path) -> None:
        synced.add(path)
        sync(path)

    def look(name: str) -> None:
        new = set(directory.iterdir()) - before
        assert new <= synced, name
        assert {directory, table.files_directory, table.directory, destination.settings.warehouse} <= synced
        seen.append(f"{name}: {len(new)}")

    monkeypatch.setattr(durable, "sync_file", sync_file)
    monkeypatch.setattr("penstock.failpoints.reach", look)
    change(table, 100, added=[file], columns=columns)
    assert seen == ["iceberg.staged: 4", "iceberg.committed: 6"]  # with a checksum of each


def test_an_error_of_iceberg_is_one_that_people_can_act_on(destination: IcebergDestination) -> None:
    """Iceberg takes the name of the second column for what is inside of the first."""
    columns = pa.schema([("a", pa.list_(pa.field("element", pa.int64()))), ("a.element", pa.int64())])
    with pytest.raises(DestinationError, match="creating the table") as refused:
        destination.table(STREAM).begin_load("load1", Lsn(1), SCHEMA, "upsert", columns)
    assert refused.value.remedy


def test_what_pyspark_makes_of_an_exception_is_an_error_of_ours_too(destination: IcebergDestination) -> None:
    table = destination.table(STREAM)
    loaded(table, [1])
    with pytest.raises(DestinationError) as refused, iceberg_errors("looking", STREAM):
        table.handle.table.manageSnapshots().removeBranch("nowhere").commit()
    assert "IllegalArgumentException" in refused.value.detail
    assert "nowhere" not in str(refused.value)
    assert refused.value.__cause__ is not None
