"""What runs in the driver instead of on Spark is bounded, whatever a round has."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.core.errors import StorageError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.records import DataFile
from penstock.lake import light
from penstock.lake.complete_task import CompleteTask
from penstock.lake.delete_task import DeleteTask, HeldFile
from penstock.lake.fold_task import FoldTask, Staged
from penstock.lake.key_index import KeyForm
from penstock.lake.light import (
    Stages,
    completing_is_light,
    deletes_are_light,
    folds_are_light,
    loads_are_light,
    rewriting_is_light,
    run_light,
)
from penstock.lake.target import Target
from penstock.log.reader import LogFile
from penstock.sources.tables import SourceLeaf, SourceTable

ID = SourceColumn(
    "id", attribute_number=1, type_oid=20, type_modifier=-1, type_name="int8", type_text="bigint"
)
TARGET = Target(TableSchema(StreamId("public", "t"), (ID,), ("id",)), "upsert")
HERE = Path("here")


def changes(rows: int, size: int = 1) -> FoldTask:
    file = LogFile(HERE / "log", "schema", "public.t", rows, size, {"u": rows}, 0, 1)
    return FoldTask(TARGET, (file,), Lsn(0), Lsn(1), {}, (), None, HERE, HERE, HERE)


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([changes(light.CHANGES_MAX)], True),
        ([changes(light.CHANGES_MAX + 1)], False),
        ([changes(light.CHANGES_MAX), changes(1)], False),
        ([changes(1, light.CHANGE_BYTES_MAX)], True),
        ([changes(1, light.CHANGE_BYTES_MAX + 1)], False),
        ([changes(1)] * light.TASKS_MAX, True),
        ([changes(1)] * (light.TASKS_MAX + 1), False),
    ],
)
def test_changes_are_folded_here_if_they_are_few_and_small(tasks: list[FoldTask], expected: bool) -> None:
    assert folds_are_light(tasks) is expected


@pytest.fixture
def lookup(tmp_path: Path) -> DeleteTask:
    keys, index = tmp_path / "keys", tmp_path / "index"
    keys.write_bytes(b"k")
    index.write_bytes(b"i")
    file = HeldFile("a", "a", index, 10**9, index, (), (), HERE / "deletes", None)
    return DeleteTask(TARGET, (file,), (Staged(keys),), KeyForm(b""), (), (HERE,))


def test_rows_are_looked_up_here_however_many_the_table_has(lookup: DeleteTask) -> None:
    assert deletes_are_light([lookup])


def test_rows_are_not_looked_up_here_if_much_of_the_table_has_to_be_read(
    lookup: DeleteTask, tmp_path: Path
) -> None:
    [file] = lookup.files
    rewritten = replace(lookup, files=(replace(file, successor=HERE / "b"),))
    pending = replace(lookup, staged=(Staged(lookup.staged[0].keys, HERE / "pending"),))
    without_index = replace(lookup, files=(replace(file, index=tmp_path / "none"),))
    many = replace(lookup, files=(file,) * (light.TABLE_FILES_MAX + 1))
    assert not any(map(deletes_are_light, ([each] for each in (rewritten, pending, without_index, many))))


def test_a_small_table_is_read_here_to_complete_rows_or_to_be_written_again(lookup: DeleteTask) -> None:
    file = replace(lookup.files[0], rows=light.ROWS_TO_READ_MAX)
    rewritten = replace(lookup, files=(replace(file, successor=HERE / "b"),))
    pending = replace(lookup, files=(file,), staged=(Staged(lookup.staged[0].keys, HERE / "pending"),))
    assert deletes_are_light([rewritten])
    assert deletes_are_light([pending])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([DataFile("a", light.ROWS_TO_READ_MAX, light.BYTES_TO_READ_MAX)], True),
        ([DataFile("a", light.ROWS_TO_READ_MAX, 1), DataFile("b", 1, 1)], False),
        ([DataFile("a", 1, light.BYTES_TO_READ_MAX), DataFile("b", 1, 1)], False),
        ([DataFile("a", 1, 1)] * light.TABLE_FILES_MAX, True),
        ([DataFile("a", 1, 1)] * (light.TABLE_FILES_MAX + 1), False),
    ],
)
def test_files_are_written_again_here_if_they_are_few_and_small(
    files: list[DataFile], expected: bool
) -> None:
    assert rewriting_is_light(files) is expected


def test_rows_are_completed_here_if_they_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pending, picked = tmp_path / "pending", tmp_path / "picked"
    pending.write_bytes(b"12")
    picked.write_bytes(b"3")
    tasks = [CompleteTask(TARGET, pending, (picked,), HERE, HERE, Lsn(1))]
    monkeypatch.setattr(light, "PENDING_BYTES_MAX", 3)
    assert completing_is_light(tasks)
    monkeypatch.setattr(light, "PENDING_BYTES_MAX", 2)
    assert not completing_is_light(tasks)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], True),
        ([light.TABLE_BYTES_TO_LOAD_MAX], True),
        ([light.TABLE_BYTES_TO_LOAD_MAX, 1], False),
    ],
)
def test_tables_are_loaded_here_if_they_are_small_together(sizes: list[int], expected: bool) -> None:
    schema = TARGET.schema
    leaves = [
        SourceLeaf(stream=schema.stream, oid=1, filenode=1, bytes=size, estimated_rows=1) for size in sizes
    ]
    tables = [
        SourceTable(
            stream=schema.stream, oid=1, kind="table", schema=schema, leaves=(leaf,), primary_key=("id",)
        )
        for leaf in leaves
    ]
    assert loads_are_light(tables) is expected


def test_no_more_tasks_run_at_once_than_the_source_is_to_bear() -> None:
    one = threading.Lock()

    def alone(number: int) -> int:
        assert one.acquire(blocking=False), "another one is at work"
        try:
            return number
        finally:
            one.release()

    assert run_light(alone, list(range(100)), at_once=1) == list(range(100))


def test_a_round_that_is_light_asks_for_no_session() -> None:
    def start() -> NoReturn:
        raise AssertionError("nobody needs it")

    stages = Stages(start)
    assert stages.run(len, ["a", "bc"], "count", light=True) == [1, 2]
    assert stages.run(len, [], "count", light=False) == []


def test_rows_are_not_looked_up_here_if_the_keys_are_many(
    lookup: DeleteTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light, "KEY_BYTES_MAX", 0)
    assert not deletes_are_light([lookup])


def test_tasks_run_at_once_and_come_back_in_their_order() -> None:
    both = threading.Barrier(2, timeout=120)

    def meet(number: int) -> int:
        both.wait()
        return number

    assert run_light(meet, [1, 2]) == [1, 2]


def test_an_error_of_a_task_is_itself() -> None:
    def fail(number: int) -> None:
        raise StorageError(f"{number} is full.", remedy="None.")

    with pytest.raises(StorageError, match="1 is full"):
        run_light(fail, [1, 2])
