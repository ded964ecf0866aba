"""What lies beside an Iceberg table goes when nobody can need it any more, and not before."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.iceberg_own_directory import ABANDONED_AFTER_S, OwnDirectory
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
