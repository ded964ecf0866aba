"""Touched rows of a data file: found by key, without those that are deleted already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.deletion_vectors import read_vector
from penstock.destinations.records import HeldDeletes, PositionDeletes
from penstock.lake.delete_task import (
    DELETE_SCHEMA,
    MERGED_FROM,
    DeleteResult,
    DeleteTask,
    HeldFile,
    delete_rows,
)
from penstock.lake.fold_task import Staged
from penstock.lake.key_index import KeyForm
from penstock.lake.target import Target

ID = SourceColumn(
    "id", attribute_number=1, type_oid=20, type_modifier=-1, type_name="int8", type_text="bigint"
)
TARGET = Target(TableSchema(StreamId("public", "t"), (ID,), ("id",)), "upsert", field_ids={"id": 1})
ROWS = 10
LOCATION = "/lake/data/rows.parquet"


@pytest.fixture
def task(tmp_path: Path) -> DeleteTask:
    """Keys 13, 15, 17, 19 and one that is nowhere, of a file with 10 to 19; 12 and 13 are deleted already."""
    rows, earlier, keys = (tmp_path / name for name in ("rows.parquet", "earlier.parquet", "keys.arrow"))
    pq.write_table(pa.table({"id": range(10, 10 + ROWS)}, schema=TARGET.arrow_schema()), rows)
    deleted = {"file_path": [LOCATION] * 3 + ["another"], "pos": [2, 3, 3, 5]}
    pq.write_table(pa.table(deleted, schema=DELETE_SCHEMA), earlier)
    feather.write_feather(pa.table({"id": [19, 13, 99, 15, 17]}), str(keys), compression="uncompressed")
    held = HeldDeletes(str(earlier), 4, 1, is_shared=True)
    path, index = tmp_path / "new", tmp_path / "rows.keys"
    file = HeldFile("rows.parquet", LOCATION, rows, ROWS, index, (held,), (earlier,), path, None)
    form = KeyForm(b"x" * 16, types=("int64",))
    return DeleteTask(TARGET, (file,), (Staged(keys),), form, (), (tmp_path / "picked",))


def deletes_of(result: DeleteResult) -> PositionDeletes:
    [deletes] = result.deletes
    return deletes


def test_positions_that_are_deleted_already_are_not_deleted_again(task: DeleteTask) -> None:
    deletes = deletes_of(delete_rows(task))
    assert (deletes.of, deletes.file.rows) == ("rows.parquet", 3)
    written = pq.read_table(task.files[0].delete_path).to_pydict()
    assert written == {"file_path": [LOCATION] * 3, "pos": [5, 7, 9]}


@pytest.mark.parametrize("count", [MERGED_FROM - 1, MERGED_FROM], ids=["a few", "many"])
def test_many_files_of_deletes_become_one_and_those_of_other_data_files_stay(
    task: DeleteTask, tmp_path: Path, count: int
) -> None:
    """Every round that touches the data file opens each. No position counts twice: rows are counted."""
    [file] = task.files
    own = []
    for position in range(count):  # 0, 1, ..., of which 2 and 3 are in the shared one
        path = tmp_path / f"own{position}.parquet"
        pq.write_table(pa.table({"file_path": [LOCATION], "pos": [position]}, schema=DELETE_SCHEMA), path)
        own.append((HeldDeletes(str(path), 1, 1), path))
    held = replace(
        file,
        deletes=(*(each for each, _ in own), *file.deletes),
        delete_paths=(*(path for _, path in own), *file.delete_paths),
    )
    deletes = deletes_of(delete_rows(replace(task, files=(held,))))
    written = pq.read_table(file.delete_path).to_pydict()
    fresh = [position for position in (5, 7, 9) if position >= count]
    if count < MERGED_FROM:
        assert (written["pos"], deletes.replaces) == (fresh, ())
    else:
        assert written == {"file_path": [LOCATION] * (count + 1), "pos": [*range(count), *fresh]}
        assert deletes.replaces == tuple(each for each, _ in own), "but not the shared one"
    assert deletes.file.rows == len(written["pos"])


def test_a_vector_has_the_earlier_deletes_too(task: DeleteTask) -> None:
    deletes = deletes_of(delete_rows(replace(task, by_vector=True)))
    assert deletes.vector is not None
    assert read_vector(task.files[0].delete_path, deletes.vector).tolist() == [2, 3, 5, 7, 9]
    assert deletes.replaces == task.files[0].deletes


def test_a_successor_has_the_rows_that_are_left(task: DeleteTask, tmp_path: Path) -> None:
    rewritten = replace(task.files[0], successor=tmp_path / "successor.parquet")
    result = delete_rows(replace(task, files=(rewritten,)))
    [file] = result.replaced["rows.parquet"]
    assert pq.read_table(tmp_path / file.name).column("id").to_pylist() == [10, 11, 14, 16, 18]


def rewritten_in_place(task: DeleteTask, ids: list[int]) -> None:
    pq.write_table(pa.table({"id": ids}, schema=TARGET.arrow_schema()), task.files[0].path)


@pytest.mark.parametrize("ids", [[*range(10, 19), 8, 19], [*range(10, 20), 19]], ids=["more", "twice"])
@pytest.mark.parametrize("by_vector", [False, True], ids=["file", "vector"])
def test_rows_beyond_those_that_the_metadata_counts_are_found(
    task: DeleteTask, ids: list[int], by_vector: bool
) -> None:
    """Somebody wrote the file anew in its place."""
    rewritten_in_place(task, ids)
    deletes = deletes_of(delete_rows(replace(task, by_vector=by_vector)))
    fresh = [place for place, key in enumerate(ids) if key in (15, 17, 19)]
    if deletes.vector is None:
        assert pq.read_table(task.files[0].delete_path).column("pos").to_pylist() == fresh
    else:
        assert read_vector(task.files[0].delete_path, deletes.vector).tolist() == [2, 3, *fresh]


def test_many_files_of_deletes_become_one_that_has_rows_beyond_the_count_too(
    task: DeleteTask, tmp_path: Path
) -> None:
    rewritten_in_place(task, [*range(10, 20), 19])
    path = tmp_path / "own.parquet"
    pq.write_table(pa.table({"file_path": [LOCATION], "pos": [0]}, schema=DELETE_SCHEMA), path)
    own = HeldDeletes(str(path), 1, 1)
    held = replace(task.files[0], deletes=(own,) * MERGED_FROM, delete_paths=(path,) * MERGED_FROM)
    delete_rows(replace(task, files=(held,)))
    assert pq.read_table(held.delete_path).column("pos").to_pylist() == [0, 3, 5, 7, 9, 10]


@pytest.mark.parametrize("ids", [[*range(10, 20), 19, 8], [10, 11, 12]], ids=["more", "fewer"])
@pytest.mark.parametrize("indexed", [False, True], ids=["without an index", "by the index from before"])
def test_a_successor_of_a_file_that_was_rewritten_has_all_rows_that_are_left(
    task: DeleteTask, tmp_path: Path, ids: list[int], indexed: bool
) -> None:
    if indexed:
        delete_rows(task)
    rewritten_in_place(task, ids)
    rewritten = replace(task.files[0], successor=tmp_path / "successor.parquet")
    result = delete_rows(replace(task, files=(rewritten,), rewrites_all=True))
    [file] = result.replaced["rows.parquet"]
    left = pq.read_table(tmp_path / file.name).column("id").to_pylist()
    twice = [19] if indexed and len(ids) > ROWS else []  # nobody looked for it
    assert left == [key for key in (10, 11, 14, 16, 18) if key in ids] + twice + [8] * (8 in ids)


def test_deletes_of_rows_that_a_file_has_no_more_do_no_harm(task: DeleteTask, tmp_path: Path) -> None:
    path = tmp_path / "beyond.parquet"
    pq.write_table(pa.table({"file_path": [LOCATION], "pos": [ROWS + 3]}, schema=DELETE_SCHEMA), path)
    beyond = HeldDeletes(str(path), 1, 1)
    held = replace(
        task.files[0],
        deletes=(*task.files[0].deletes, beyond),
        delete_paths=(*task.files[0].delete_paths, path),
    )
    delete_rows(replace(task, files=(held,)))
    assert pq.read_table(held.delete_path).column("pos").to_pylist() == [5, 7, 9]


def test_a_file_without_a_touched_row_is_left_alone(task: DeleteTask, tmp_path: Path) -> None:
    path = str(tmp_path / "keys.arrow")
    for keys in ([99], [12, 13]):
        feather.write_feather(pa.table({"id": keys}), path, compression="uncompressed")
        result = delete_rows(task)
        assert (result.deletes, result.replaced) == ((), {})
