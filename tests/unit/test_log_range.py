"""Places in the log, and how a range is cut."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigError
from penstock.core.position import Lsn
from penstock.lake.log_range import Place, option_place, parts
from penstock.lake.log_rows import between
from penstock.log.reader import LogFile

OFFSETS = st.tuples(st.integers(0, 50), st.integers(0, 10))


def text(offset: tuple[int, int]) -> str:
    return f"{offset[0]}_{offset[1]}"


@given(OFFSETS, OFFSETS)
def test_a_place_lies_before_its_change_or_behind_it(at: tuple[int, int], change: tuple[int, int]) -> None:
    assert (change >= Place.parse(text(at), behind=False)) == (change >= at)
    assert (change >= Place.parse(text(at), behind=True)) == (change > at)


@given(st.lists(OFFSETS, unique=True), OFFSETS, OFFSETS, OFFSETS)
def test_ranges_that_follow_each_other_hold_each_change_once(
    changes: list[tuple[int, int]], low: tuple[int, int], middle: tuple[int, int], high: tuple[int, int]
) -> None:
    low, middle, high = sorted((low, middle, high))
    table = pa.table(
        {
            "_tx": pa.array([tx for tx, _ in changes], pa.int64()),
            "_op_index": pa.array([op for _, op in changes], pa.int64()),
        }
    )
    whole = between(table, low, high).to_pylist()
    assert between(table, low, middle).num_rows + between(table, middle, high).num_rows == len(whole)
    assert [(row["_tx"], row["_op_index"]) for row in whole] == [c for c in changes if low <= c < high]


@given(OFFSETS)
def test_no_change_before_a_place_lies_outside_of_its_transactions(change: tuple[int, int]) -> None:
    behind = Place.parse(text(change), behind=True)
    assert behind.first_transaction <= change[0] < behind.transactions_end
    before = Place.parse(text(change), behind=False)
    assert before.transactions_end == change[0] + (change[1] > 0)


@given(OFFSETS)
def test_a_place_survives_being_written_down(change: tuple[int, int]) -> None:
    place = Place.parse(text(change), behind=True)
    assert Place.parse(str(place), behind=False) == place
    assert Place.parse(str(Place(Lsn(change[0]))), behind=False) == (change[0], 0)


def test_the_offsets_that_stand_for_more_than_one_change() -> None:
    assert Place.parse("-1", behind=True) == (0, 0)
    assert Place.parse("7_inf", behind=True) == (8, 0)
    assert Place.parse("0/10", behind=True) == Place.parse("0/10", behind=False) == (16, 0)


def test_what_is_no_place_is_said_by_the_options_name() -> None:
    with pytest.raises(ConfigError, match="`to` is not an offset"):
        option_place("to", "now", behind=True)


def log_file(number: int, size: int) -> LogFile:
    return LogFile(Path(f"{number}.parquet"), "s", "public.t", 1, size, {}, number, number)


@given(st.lists(st.integers(0, 400), max_size=30))
def test_every_row_group_of_every_file_is_in_one_part(sizes: list[int]) -> None:
    files = [log_file(number, size) for number, size in enumerate(sizes)]
    found = parts(files, bytes_max=100)
    for file in files:
        shares = [part.share for part in found if file in part.files]
        assert [share for share, _ in shares] == list(range(shares[0][1]))
    for part in found:
        assert len(part.files) == 1 or sum(file.bytes for file in part.files) <= 100
