"""However many rounds bring dead letters, they are in few files, and say what they said before."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.console.table_letters import parquet_letters
from penstock.core.errors import CommitConflictError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.parquet import ParquetDestination, ParquetTable
from penstock.destinations.parquet_files import new_file_name
from penstock.destinations.records import DataFile, Marker, MergedLetters, TableRecord
from penstock.lake import letter_merging
from penstock.lake.apply import Outcome, StreamWork
from penstock.lake.dead_letters import (
    DEAD_LETTERS,
    SETTLED_KEYS,
    letter_batches,
    open_letters,
    read_dead_letters,
)
from penstock.lake.letter_merging import FILES_MAX, merge_letters, plan_merge
from penstock.lake.light import Stages
from penstock.lake.output import OutputFile
from penstock.lake.target import Target
from penstock.pipeline import DeadLetterTable

pytestmark = pytest.mark.unit

STREAM = StreamId("public", "offers")
SCHEMA = TableSchema(STREAM, (SourceColumn("id", 25, -1, "text", "text"),), ("id",))
EPOCH = Lsn(1000)
HISTORY_MAX = 20  # files of which each is larger than all that come after it


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def no_spark() -> Any:
    raise AssertionError("so few letters are merged without Spark")


class Rounds:
    """A table that gets letters, and a model of them: all that came, and the newest event of each key."""

    def __init__(self, directory: Path, write: Any = "upsert") -> None:
        self.directory = directory
        self.target = Target(SCHEMA, write)
        self.at = 100
        self.came: list[tuple[str, int]] = []
        self.newest: dict[str, bool] = {}
        table = self.table
        table.begin_load("l1", EPOCH, SCHEMA, write)
        table.commit_chunks("l1", EPOCH, ["chunk"], [])
        with OutputFile(
            table.files_directory / "part.parquet", self.target.arrow_schema(), even_if_empty=True
        ) as file:
            pass
        assert file.data_file is not None
        table.commit_chunks("l1", EPOCH, ["chunk 2"], [file.data_file])
        table.swap("l1", EPOCH, "g", Lsn(self.at))

    @property
    def destination(self) -> ParquetDestination:
        return ParquetDestination(self.directory)

    @property
    def table(self) -> ParquetTable:
        return self.destination.table(STREAM)

    @property
    def record(self) -> TableRecord:
        record = self.table.record()
        assert record is not None
        return record

    def write(self, label: str, keys: Sequence[str]) -> list[DataFile]:
        schema = SETTLED_KEYS if label == "settled" else DEAD_LETTERS
        rows = [
            {"_op": "u", "_tx": self.at, "_op_index": 0, "_key": [key], "_row": [("id", key)]} for key in keys
        ]
        with OutputFile(self.table.dead_letters_directory / new_file_name(label), schema) as output:
            output.write_table(pa.Table.from_pylist(rows, schema))
        return [] if output.data_file is None else [output.data_file]

    def work(self) -> StreamWork:
        record = self.record
        return StreamWork(
            stream=STREAM,
            table=self.table,
            target=self.target,
            files=record.files,
            changes=(),
            truncates=(),
            after=Lsn(self.at),
            to=Lsn(self.at + 10),
            columns={},
            rewrite=None,
            letters=record.dead_letters,
        )

    def write_round(
        self, letters: Sequence[str] = (), settled: Sequence[str] = ()
    ) -> tuple[StreamWork, Outcome]:
        work, outcome = self.work(), Outcome()
        outcome.dead_letters += self.write("changes", letters)
        outcome.settled += self.write("settled", settled)
        merge_letters(Stages(no_spark), [work], {STREAM: outcome})
        return work, outcome

    def round(self, letters: Sequence[str] = (), settled: Sequence[str] = ()) -> None:
        work, outcome = self.write_round(letters, settled)
        marker = Marker("g", EPOCH, Lsn(self.at), Lsn(self.at + 10), (f"cdc-{self.at}",))
        work.commit(outcome, marker, expected_to=Lsn(self.at))
        self.came += [(key, self.at) for key in letters]
        self.newest |= dict.fromkeys(letters, True) | dict.fromkeys(settled, False)
        self.at += 10

    def assert_same(self) -> None:
        letters = DeadLetterTable(STREAM, self.destination)
        shown = [(row["_key"][0], row["_tx"]) for row in letters.to_arrow().to_pylist()]
        assert shown == self.came
        assert self.record.dead_letters.count == len(self.came)
        if self.came:
            given = pq.read_table(letters.path).select(["_key", "_tx"]).to_pylist()
            assert sorted((row["_key"][0], row["_tx"]) for row in given) == sorted(self.came)
        if self.target.write == "upsert":
            is_open = sorted(key for (key,) in letters.open_keys().column("_key").to_pylist())
            assert is_open == sorted(key for key, open_ in self.newest.items() if open_)


def test_letters_in_every_round_are_in_few_files_and_say_what_they_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_merging, "FILES_MAX", 8)
    rounds, chance = Rounds(tmp_path), random.Random(1)
    for number in range(120):
        settled = [key for key, is_open in rounds.newest.items() if is_open and chance.random() < 0.2]
        keys = {"hot", f"k{chance.randrange(40)}"}.difference(settled)
        rounds.round(sorted(keys), settled)
        names = rounds.record.dead_letters.names
        assert len(names) <= 8 + HISTORY_MAX
        if number % 20 == 0:
            rounds.assert_same()
    rounds.assert_same()
    read = [path for path in rounds.table.dead_letter_paths() if not path.name.startswith("history-")]
    assert sum(pq.read_metadata(path).num_rows for path in read) < len(rounds.came) / 4
    [first, *_] = parquet_letters(tmp_path, STREAM, values=True)["shown"]
    assert first["offset"] == f"{rounds.came[-1][1]}_0"


def test_each_letter_is_written_again_a_few_times_and_not_with_every_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, written = Rounds(tmp_path), []
    whole = letter_batches

    def counted(path: Path) -> Any:
        for batch in whole(path):
            written.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(letter_merging, "letter_batches", counted)
    monkeypatch.setattr(letter_merging, "FILES_MAX", 2)
    chance = random.Random(1)
    for _ in range(60):
        rounds.round([chance.randbytes(200).hex() for _ in range(60)])
    assert sum(written) < 8 * len(rounds.came)
    rounds.assert_same()


def test_settled_keys_alone_are_merged_too(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    keys = [f"k{number}" for number in range(100)]
    rounds.round(keys)
    for key in keys[:80]:
        rounds.round(settled=[key])
        assert len(rounds.record.dead_letters.names) <= FILES_MAX + 3
    rounds.assert_same()


def test_where_there_is_more_than_a_round_takes_on_nothing_is_settled_too_early_or_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, chance = Rounds(tmp_path), random.Random(2)
    for _ in range(30):
        keys = {f"k{chance.randrange(6)}" for _ in range(2)}
        settled = {f"k{chance.randrange(6)}"} & {key for key, is_open in rounds.newest.items() if is_open}
        rounds.round(sorted(keys - settled), sorted(settled))
    monkeypatch.setattr(letter_merging, "FILES_MAX", 4)
    monkeypatch.setattr(letter_merging, "FILES_AT_ONCE", 3)
    for _ in range(20):
        rounds.round()
        rounds.assert_same()
    assert len(rounds.record.dead_letters.files) <= 4 + HISTORY_MAX
    assert plan_merge(rounds.work()) is None


def test_letters_of_an_append_table_are_merged_and_none_is_open(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, "append")
    for _ in range(80):
        rounds.round(["hot"])
    rounds.assert_same()
    letters = rounds.record.dead_letters
    assert len(letters.files) <= FILES_MAX + HISTORY_MAX
    assert not letters.open
    assert not letters.settled


def test_a_merge_whose_commit_never_came_changes_nothing_and_is_made_again(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    for number in range(FILES_MAX + 1):
        rounds.round([f"k{number % 3}"])
    before = rounds.record
    _, outcome = rounds.write_round(["k1"])
    assert outcome.merged_letters is not None
    assert rounds.record == before
    rounds.assert_same()
    rounds.round(["k1"])
    rounds.assert_same()
    assert len(rounds.record.dead_letters.files) == 2


def test_letters_that_are_not_those_that_were_merged_are_refused(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    for number in range(FILES_MAX + 1):
        rounds.round([f"k{number}"])
    work, outcome = rounds.write_round()
    assert outcome.merged_letters is not None
    others = replace(outcome.merged_letters.before, files=outcome.merged_letters.before.files[1:])
    outcome.merged_letters = MergedLetters(others, outcome.merged_letters.after)
    marker = Marker("g", EPOCH, Lsn(rounds.at), Lsn(rounds.at + 10), ("cdc",))
    with pytest.raises(CommitConflictError, match="dead letters"):
        work.commit(outcome, marker, expected_to=Lsn(rounds.at))
    rounds.assert_same()


def test_files_that_were_merged_stay_for_the_grace_and_go_then(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    for number in range(FILES_MAX + 1):
        rounds.round([f"k{number}"])
    paths, shown = rounds.table.dead_letter_paths(), DeadLetterTable(STREAM, rounds.destination).path
    rounds.round(["k1"])
    rounds.table.sweep(grace_s=3600, abandoned_after_s=0)
    assert read_dead_letters(paths).num_rows == pq.read_table(shown).num_rows == FILES_MAX + 1
    assert open_letters(paths, 1).num_rows == FILES_MAX + 1
    for path in rounds.table.layout.commits.iterdir():
        an_hour_ago = time.time() - 7200
        os.utime(path, (an_hour_ago, an_hour_ago))
    rounds.table.sweep(grace_s=3600, abandoned_after_s=0)
    assert not any(path.exists() for path in paths)
    left = {path.name for path in rounds.table.dead_letters_directory.iterdir()}
    assert left == set(rounds.record.dead_letters.names)
    rounds.assert_same()


def test_letters_of_the_first_format_are_merged(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    for number in range(FILES_MAX + 1):
        rounds.round([f"k{number}"])
    old = pa.table({"id": ["7"], "_op": ["u"], "_tx": [5], "_op_index": [2], "_bad_columns": [["id"]]})
    first = rounds.table.dead_letters_directory / rounds.record.dead_letters.files[0]
    first.unlink()
    pq.write_table(old, first)
    rounds.round()
    [letter, *others] = DeadLetterTable(STREAM, rounds.destination).to_arrow().to_pylist()
    assert (letter["_tx"], letter["_row"]) == (5, [{"column": "id", "value": "7"}])
    assert len(others) == FILES_MAX


@pytest.mark.parametrize("is_there", [True, False], ids=["damaged", "missing"])
def test_letters_that_cannot_be_read_are_not_merged_and_no_round_fails_for_them(
    tmp_path: Path, is_there: bool
) -> None:
    rounds = Rounds(tmp_path)
    for number in range(FILES_MAX + 1):
        rounds.round([f"k{number}"])
    before = rounds.record.dead_letters
    path = rounds.table.dead_letters_directory / before.files[3]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    if not is_there:
        path.unlink()
    _, outcome = rounds.write_round(["k1"])
    assert outcome.merged_letters is None
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    rounds.round(["k1"])
    assert len(rounds.record.dead_letters.files) == 2
    rounds.assert_same()
