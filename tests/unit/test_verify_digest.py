"""Canonical forms and digests: equal exactly for equal rows, however they are cut, ordered or laid out."""

from __future__ import annotations

import decimal
import struct
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.verify.canonical import RowHashes, hash_rows, hash_values
from penstock.verify.digest import BUCKETS_MAX, BUCKETS_MIN, Digest, buckets_for

SECRET = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
_DECIMAL = decimal.Context(prec=40)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "decimal": (
        pa.decimal128(12, 2),
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda number: _DECIMAL.scaleb(number, -2)),
    ),
    "long decimal": (
        pa.decimal128(38, 6),
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda number: _DECIMAL.scaleb(number, -6)),
    ),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "instant": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "text": (pa.string(), st.text()),
    "bytes": (pa.binary(), st.binary()),
    "list": (pa.list_(pa.string()), st.lists(st.none() | st.text(), max_size=4)),
    "list of lists": (pa.list_(pa.list_(pa.int32())), st.lists(st.lists(st.integers(-5, 5)), max_size=3)),
}


def spelled(value: Any) -> Any:
    """What makes two values the same here: Python takes 0.0 and -0.0 for equal, and True for 1."""
    return struct.pack("<d", value) if isinstance(value, float) else repr(value)


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_values_hash_alike_exactly_if_they_are_the_same(name: str, data: st.DataObject) -> None:
    kind, values = TYPES[name]
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=12))
    found = hash_values(pa.array(rows, kind), SECRET)
    for i, left in enumerate(rows):
        for j, right in enumerate(rows):
            assert (found[i] == found[j]) == (spelled(left) == spelled(right)), (left, right)


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_a_hash_does_not_depend_on_where_in_an_array_the_value_lies(name: str, data: st.DataObject) -> None:
    kind, values = TYPES[name]
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=12))
    start = data.draw(st.integers(0, len(rows) - 1))
    whole = pa.array(rows, kind)
    alone = pa.array(rows[start:], kind)
    assert hash_values(whole.slice(start), SECRET).tolist() == hash_values(alone, SECRET).tolist()


def test_every_nan_is_the_same() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001], np.uint64)
    assert len(set(hash_values(pa.array(bits.view(np.float64)), SECRET).tolist())) == 1


def row_hashes(*columns: pa.Array, key: int = 1) -> RowHashes:
    return hash_rows(columns, key, SECRET)


def test_text_cannot_move_from_one_column_to_the_next() -> None:
    left = row_hashes(pa.array([1]), pa.array(["ab"]), pa.array(["c"]))
    right = row_hashes(pa.array([1]), pa.array(["a"]), pa.array(["bc"]))
    assert left.key_high == right.key_high
    assert left.row_high != right.row_high


@given(
    st.lists(st.tuples(st.integers(0, 50), st.none() | st.text(max_size=3)), min_size=1, max_size=40),
    st.randoms(),
)
def test_digests_are_equal_for_the_same_rows_in_any_order_and_any_parts(
    rows: list[tuple[int, str | None]], random: Any
) -> None:
    def digest(parts: list[list[tuple[int, str | None]]]) -> Digest:
        whole = Digest.empty(64)
        for part in parts:
            of_part = Digest.empty(64)
            ids, texts = pa.array([row[0] for row in part], pa.int64()), pa.array([row[1] for row in part])
            of_part.add(row_hashes(ids, texts.cast(pa.string())))
            whole.merge(of_part)
        return whole

    shuffled = random.sample(rows, len(rows))
    cut = random.randint(0, len(rows))
    one = digest([rows])
    assert one.total == len(rows)
    assert not one.differing(digest([shuffled[:cut], shuffled[cut:]])).size
    # A row more, even a second copy, and a row less show; so does one that another took the place of.
    assert one.differing(digest([rows, [rows[0]]])).size == 1
    assert one.differing(digest([rows[1:]])).size == 1
    other = (rows[0][0], f"{rows[0][1]}!")
    assert one.differing(digest([[other, *rows[1:]]])).size == 1


def test_a_swapped_pair_differs_in_both_rows() -> None:
    ids = pa.array(range(1000), pa.int64())
    texts = [f"v{i}" for i in range(1000)]
    swapped = [*texts]
    swapped[10], swapped[500] = swapped[500], swapped[10]
    left, right = (row_hashes(ids, pa.array(each)) for each in (texts, swapped))
    assert np.flatnonzero(left.row_high != right.row_high).tolist() == [10, 500]
    digests = Digest.empty(1024), Digest.empty(1024)
    for digest, hashes in zip(digests, (left, right), strict=True):
        digest.add(hashes)
    assert digests[0].differing(digests[1]).size == 2


@given(st.integers(0, 2**40))
def test_a_longer_table_has_no_longer_digest_than_the_longest(rows: int) -> None:
    buckets = buckets_for(rows)
    assert BUCKETS_MIN <= buckets <= BUCKETS_MAX
    assert buckets & (buckets - 1) == 0


def test_a_shifted_instant_is_another_value() -> None:
    at = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    column = pa.array([at, at + timedelta(hours=1)], pa.timestamp("us", "UTC"))
    assert len(set(hash_values(column, SECRET).tolist())) == 2
    assert hash_values(pa.array([date(2026, 1, 1)]), SECRET).size == 1
    assert hash_values(pa.array([time(1)]), SECRET).size == 1
