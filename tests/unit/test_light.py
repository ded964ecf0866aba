"""What runs in the driver instead of on Spark is bounded, whatever a round has."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.errors import StorageError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.lake import light
from penstock.lake.delete_task import DeleteTask, HeldFile
from penstock.lake.fold_task import FoldTask, Staged
from penstock.lake.key_index import KeyForm
from penstock.lake.light import deletes_are_light, folds_are_light, run_light
from penstock.lake.target import Target
from penstock.log.reader import LogFile

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
    file = HeldFile("a", "a", HERE / "a", 10**9, index, (), (), HERE / "deletes", None)
    return DeleteTask(TARGET, (file,), (Staged(keys),), KeyForm(b""), (), (HERE,))


def test_rows_are_looked_up_here_however_many_the_table_has(lookup: DeleteTask) -> None:
    assert deletes_are_light([lookup])


def test_rows_are_not_looked_up_here_if_the_table_has_to_be_read(lookup: DeleteTask, tmp_path: Path) -> None:
    [file] = lookup.files
    rewritten = replace(lookup, files=(replace(file, successor=HERE / "b"),))
    pending = replace(lookup, staged=(Staged(lookup.staged[0].keys, HERE / "pending"),))
    without_index = replace(lookup, files=(replace(file, index=tmp_path / "none"),))
    many = replace(lookup, files=(file,) * (light.TABLE_FILES_MAX + 1))
    assert not any(map(deletes_are_light, ([each] for each in (rewritten, pending, without_index, many))))


def test_rows_are_not_looked_up_here_if_the_keys_are_many(
    lookup: DeleteTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light, "KEY_BYTES_MAX", 0)
    assert not deletes_are_light([lookup])


def test_tasks_run_at_once_and_come_back_in_their_order() -> None:
    both = threading.Barrier(2, timeout=30)

    def meet(number: int) -> int:
        both.wait()
        return number

    assert run_light(meet, [1, 2]) == [1, 2]


def test_an_error_of_a_task_is_itself() -> None:
    def fail(number: int) -> None:
        raise StorageError(f"{number} is full.", remedy="None.")

    with pytest.raises(StorageError, match="1 is full"):
        run_light(fail, [1, 2])
