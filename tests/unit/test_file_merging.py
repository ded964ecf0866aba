"""However many rounds add rows, a table of files that are replaced has few small ones, and each row once."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.parquet import ParquetDestination, ParquetTable
from penstock.destinations.parquet_files import new_file_name
from penstock.destinations.records import DataFile, Marker, TableRecord
from penstock.lake import file_merging
from penstock.lake.apply import Outcome, StreamWork
from penstock.lake.file_merging import SMALL_FILES_MAX, merge_files, merge_small_files, small_files
from penstock.lake.light import Stages
from penstock.lake.table_output import TableOutput
from penstock.lake.target import Target

pytestmark = pytest.mark.unit

STREAM = StreamId("public", "events")
SCHEMA = TableSchema(
    STREAM, (SourceColumn("id", 20, -1, "int8", "bigint"), SourceColumn("v", 25, -1, "text", "text")), ("id",)
)
EPOCH = Lsn(1000)


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def no_spark() -> Any:
    raise AssertionError("so little is merged without Spark")


class Rounds:
    """A table that gets rows, a few in each round."""

    def __init__(self, directory: Path, write: Any) -> None:
        self.target = Target(SCHEMA, write)
        self.table: ParquetTable = ParquetDestination(directory).table(STREAM)
        self.at = 100
        self.table.begin_load("l1", EPOCH, SCHEMA, write)
        self.table.commit_chunks("l1", EPOCH, ["chunk"], self.write([0]))
        self.table.swap("l1", EPOCH, "g", Lsn(self.at))
        self.ids = [0]

    @property
    def record(self) -> TableRecord:
        record = self.table.record()
        assert record is not None
        return record

    @property
    def files(self) -> int:
        return len(self.record.files)

    def write(self, ids: Sequence[int]) -> list[DataFile]:
        names = self.target.arrow_schema().names
        marks = {"_op": "i", "_tx": self.at, "_op_index": 0, "_commit_ts": None, "_unchanged": None}
        rows = [{"id": each, "v": f"value {each}", **marks} for each in ids]
        with TableOutput(self.table.files_directory / new_file_name("changes"), self.target) as output:
            output.write_table(pa.table({name: [row[name] for row in rows] for name in names}))
        return list(output.files)

    def work(self, files: Sequence[DataFile] | None = None) -> StreamWork:
        return StreamWork(
            stream=STREAM,
            table=self.table,
            target=self.target,
            files=self.record.files if files is None else tuple(files),
            changes=(),
            truncates=(),
            after=Lsn(self.at),
            to=Lsn(self.at + 10),
            columns={},
            rewrite=None,
        )

    def round(self, ids: Sequence[int], removed: Sequence[str] = ()) -> Outcome:
        work, outcome = self.work(), Outcome(added=self.write(ids), removed=set(removed))
        merge_small_files(Stages(no_spark), [work], {STREAM: outcome})
        marker = Marker("g", EPOCH, Lsn(self.at), Lsn(self.at + 10), (f"cdc-{self.at}",))
        work.commit(outcome, marker, expected_to=Lsn(self.at))
        self.ids += ids
        self.at += 10
        return outcome

    def assert_same(self) -> None:
        version = self.table.version_path()
        assert version is not None
        shown = pq.read_table(version)
        assert sorted(shown.column("id").to_pylist()) == sorted(self.ids)
        assert shown.column("v").to_pylist() == [f"value {each}" for each in shown.column("id").to_pylist()]
        assert self.record.rows == len(self.ids)


@pytest.mark.parametrize("write", ["upsert", "append"])
def test_rows_in_every_round_are_in_few_files_and_each_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    monkeypatch.setattr(file_merging, "SMALL_FILES_MAX", 8)
    rounds = Rounds(tmp_path, write)
    for number in range(1, 150):
        rounds.round([2 * number, 2 * number + 1])
        assert len(rounds.record.files) <= 8 + 2
        if number % 20 == 0:
            rounds.assert_same()
    rounds.assert_same()
    for file in rounds.record.files:
        held = pq.read_table(rounds.table.path(file)).column("id").to_pylist()
        assert (file.rows, file.key_min, file.key_max) == (len(held), min(held), max(held))


def test_each_row_is_written_again_a_few_times_and_not_with_every_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_merging, "SMALL_FILES_MAX", 4)
    rounds, written = Rounds(tmp_path, "append"), 0
    for number in range(100):
        ids = range(1 + 500 * number, 1 + 500 * (number + 1))
        outcome = rounds.round(ids)
        written += sum(file.rows for file in outcome.added) - len(ids)
    assert 0 < written < 8 * len(rounds.ids)
    rounds.assert_same()


def test_files_that_the_round_replaces_or_that_are_large_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_merging, "SMALL_FILES_MAX", 3)
    rounds = Rounds(tmp_path, "upsert")
    for number in range(1, 4):
        rounds.round([number])
    large = rounds.write(range(10, 5000))
    work = rounds.work([*rounds.record.files, *large])
    monkeypatch.setattr(file_merging, "SMALL_BYTES", large[0].bytes)
    assert small_files(work, Outcome()) == list(rounds.record.files)
    touched = {rounds.record.files[0].name}
    assert small_files(work, Outcome(removed=touched)) == []


def test_what_one_round_merges_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(tmp_path, "append")
    files = [DataFile(f"{number}.parquet", 1, 10) for number in range(1000)]
    assert len(small_files(rounds.work(files), Outcome())) == file_merging.FILES_MAX
    assert small_files(rounds.work(files[:SMALL_FILES_MAX]), Outcome()) == []
    monkeypatch.setattr(file_merging, "BYTES_MAX", 700)
    assert sum(file.bytes for file in small_files(rounds.work(files), Outcome())) == 700


def test_many_tables_with_one_file_too_many_need_no_spark(tmp_path: Path) -> None:
    tables = [Rounds(tmp_path / str(number), "append") for number in range(2)]
    works = [
        replace(each.work([*each.write([1]), *each.record.files] * (SMALL_FILES_MAX // 2 + 1)), stream=stream)
        for each, stream in zip(tables, (STREAM, StreamId("public", "others")), strict=True)
    ]
    outcomes = {work.stream: Outcome() for work in works}
    merge_small_files(Stages(no_spark), works, outcomes)
    assert [file.rows for each in outcomes.values() for file in each.added] == [SMALL_FILES_MAX + 2] * 2


def test_rows_keep_their_order(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, "append")
    paths = [rounds.table.path(file) for ids in ([5, 3], [4], [9, 1]) for file in rounds.write(ids)]
    task = file_merging.FileMerge(
        rounds.target, tuple(paths), rounds.table.files_directory / "merged.parquet"
    )
    merged = merge_files(task)
    assert merged is not None
    assert pq.read_table(rounds.table.path(merged[0])).column("id").to_pylist() == [5, 3, 4, 9, 1]


@pytest.mark.parametrize("damage", ["cut off", "overwritten"])
def test_a_file_that_cannot_be_read_is_left_alone_and_the_others_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    rounds = Rounds(tmp_path, "append")
    for number in range(1, 8):
        rounds.round([number])
    before = rounds.record.files
    damaged = before[3]
    path = rounds.table.path(damaged)
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] if damage == "cut off" else bytes(half) + content[half:])
    monkeypatch.setattr(file_merging, "SMALL_FILES_MAX", 3)
    with capture_logs() as logs:
        outcome = rounds.round([8])
    assert outcome.removed == {file.name for file in before} - {damaged.name}
    assert [file.rows for file in outcome.added] == [1, len(before) - 1]
    assert [(each["stream"], each["file"]) for each in logs] == [(str(STREAM), damaged.name)]
    for number in range(9, 20):
        rounds.round([number])
        assert rounds.files <= 5
    assert damaged in rounds.record.files
    path.write_bytes(content)
    rounds.round([20])
    rounds.assert_same()


def test_a_small_file_that_cannot_be_read_does_not_keep_larger_ones_from_being_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_merging, "SMALL_FILES_MAX", 3)
    rounds = Rounds(tmp_path, "append")
    sizes = (1, 5, 100, 100, 100)
    files = [replace(rounds.write([number])[0], bytes=size) for number, size in enumerate(sizes)]
    rounds.table.path(files[0]).unlink()
    outcome = Outcome()
    assert small_files(rounds.work(files), outcome) == files[:2], "a third is larger than both"
    merge_small_files(Stages(no_spark), [rounds.work(files)], {STREAM: outcome})
    assert outcome.removed == {file.name for file in files[1:]}


def test_a_merge_that_fails_though_every_file_can_be_read_is_left_to_a_later_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_merging, "SMALL_FILES_MAX", 3)
    rounds = Rounds(tmp_path, "append")
    for number in range(1, 4):
        rounds.round([number])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(TableOutput, "write_table", full)
        outcome = Outcome()
        merge_small_files(Stages(no_spark), [rounds.work()], {STREAM: outcome})
    assert not outcome.removed
    rounds.round([4])
    assert rounds.files == 2
    rounds.assert_same()
