"""What lies beside an Iceberg table goes when nobody can need it any more, and not before."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.iceberg_own_directory import ABANDONED_AFTER_S, OwnDirectory
from penstock.destinations.iceberg_record import letter_names
from penstock.destinations.records import DeadLetters, TableRecord

pytestmark = pytest.mark.unit

LETTERS = DeadLetters(2, ("a.parquet", "b.parquet"), ("settled-a.parquet",))
RECORD = TableRecord(
    1, "changes", "", Lsn(1), "upsert", TableSchema(StreamId("public", "items"), ()), dead_letters=LETTERS
)


@pytest.fixture
def own(tmp_path: Path) -> OwnDirectory:
    return OwnDirectory(tmp_path / "_penstock" / "public" / "items")


def aged(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def index(own: OwnDirectory, location: str, age_s: float) -> Path:
    path = own.index_path(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(location)
    return aged(path, age_s)


def test_files_of_one_name_in_several_directories_have_indexes_of_their_own(own: OwnDirectory) -> None:
    assert own.index_path("file:/one/a.parquet") != own.index_path("file:/two/a.parquet")


def test_what_a_round_that_was_cut_short_left_goes_and_that_of_one_under_way_stays(own: OwnDirectory) -> None:
    left, under_way = own.new_staging(), own.new_staging()
    aged(left, ABANDONED_AFTER_S + 60)

    own.sweep(RECORD, list, 0)

    assert (left.exists(), under_way.exists()) == (False, True)


def test_an_index_goes_when_its_data_file_is_gone_and_no_round_can_still_want_it(own: OwnDirectory) -> None:
    old = ABANDONED_AFTER_S + 60
    live, gone, young = index(own, "live", old), index(own, "gone", old), index(own, "young", 0)

    own.sweep(RECORD, lambda: [live], 0)

    assert [path.exists() for path in (live, gone, young)] == [True, False, True]


def test_the_tables_files_are_not_listed_while_no_index_is_old(own: OwnDirectory) -> None:
    index(own, "young", 0)

    def listed() -> list[Path]:
        raise AssertionError("nothing may go")

    own.sweep(RECORD, listed, 0)


def test_readers_are_given_dead_letters_and_not_settled_keys(own: OwnDirectory) -> None:
    own.dead_letters.mkdir(parents=True)
    for path in own.letter_paths(RECORD):
        path.write_text(path.name)

    shown = own.letters_for_readers(RECORD)

    assert shown is not None
    assert sorted(path.name for path in shown.iterdir()) == ["a.parquet", "b.parquet"]
    assert [path.name for path in own.letter_paths(RECORD)] == [*LETTERS.files, *LETTERS.settled]
    assert own.letters_for_readers(None) is None


def test_letters_that_no_commit_names_go_when_they_are_old(own: OwnDirectory) -> None:
    merged = replace(LETTERS, files=("history-a.parquet",), settled=(), open=("open-a.parquet",))
    metadata = {
        "snapshots": [
            {"summary": {"penstock": commit(LETTERS)}},
            {"summary": {"operation": "replace"}},
            {"summary": {"penstock": commit(merged)}},
        ],
        "properties": {
            "penstock.commits": json.dumps({"7": commit(DeadLetters(1, ("of a late one.parquet",)))}),
            "penstock.cut_off.8": commit(DeadLetters(1, ("cut off.parquet",))),
            "penstock.cut_off.9": "null",
            "penstock.load": commit(DeadLetters(1, ("loaded.parquet",))),
        },
    }
    others = ("of a late one.parquet", "cut off.parquet", "loaded.parquet")
    named = {*LETTERS.names, *merged.names, *others}
    own.dead_letters.mkdir(parents=True)
    for name in (*named, "orphan.parquet"):
        (own.dead_letters / name).write_text(name)
        aged(own.dead_letters / name, 100)
    (own.dead_letters / "of a round under way.parquet").write_text("young")

    removed = own.sweep_letters(letter_names(metadata), time.time() - 50)

    assert removed == 1
    left = {path.name for path in own.dead_letters.iterdir()}
    assert left == {*named, "of a round under way.parquet"}


def commit(letters: DeadLetters) -> str:
    return json.dumps({"kind": "changes", "dead_letters": letters.to_json()})


def test_readers_are_given_merged_letters_and_not_the_places_of_open_ones(own: OwnDirectory) -> None:
    letters = DeadLetters(2, ("history-a.parquet", "b.parquet"), ("settled-a.parquet",), ("open-a.parquet",))
    record = replace(RECORD, dead_letters=letters)
    own.dead_letters.mkdir(parents=True)
    for path in own.letter_paths(record):
        path.write_text(path.name)

    shown = own.letters_for_readers(record)

    assert shown is not None
    assert sorted(path.name for path in shown.iterdir()) == ["b.parquet", "history-a.parquet"]
    assert [path.name for path in own.letter_paths(record)] == [
        *letters.files,
        *letters.open,
        *letters.settled,
    ]
    assert DeadLetters.from_json(json.loads(json.dumps(letters.to_json()))) == letters
