"""A key is found exactly if it is there, for every type a key may have."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lake.keys import KeySet, distinct

INTEGERS = st.sampled_from([0, 1, -1, 2, 3, 100, -(2**63), 2**63 - 1, 2**40, 2**40 + 1])
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), INTEGERS | st.integers(-(2**63), 2**63 - 1)),
    "int16": (pa.int16(), st.integers(-40, 40)),
    "bool": (pa.bool_(), st.booleans()),
    "float64": (pa.float64(), st.floats()),
    "float32": (pa.float32(), st.floats(width=32)),
    "string": (pa.string(), st.text(max_size=2)),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.integers(-(2**55), 2**55)),
    "decimal": (
        pa.decimal128(18, 2),
        st.integers(-(10**16), 10**16 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    ),
    "wide decimal": (pa.decimal128(38, 0), st.integers(-(10**27), 10**27).map(Decimal)),
}


def identity(key: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What Postgres holds to be the same key."""
    if any(part is None for part in key):
        return None
    return tuple(
        "NaN"
        if isinstance(part, float) and math.isnan(part)
        else part + 0
        if isinstance(part, float)
        else part
        for part in key
    )


def table_of(columns: list[pa.DataType], keys: list[tuple[Any, ...]]) -> pa.Table:
    arrays = [pa.array([key[n] for key in keys], kind) for n, kind in enumerate(columns)]
    return pa.table(arrays, names=[f"c{n}" for n in range(len(columns))])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_key_is_found_where_it_first_stands_and_nowhere_else(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    kinds = [VALUES[name][0] for name in names]
    key = st.tuples(*[VALUES[name][1] | st.none() for name in names])
    pool = data.draw(st.lists(key, min_size=1, max_size=12))
    keys = data.draw(st.lists(st.sampled_from(pool), max_size=12))
    asked = data.draw(st.lists(st.sampled_from(pool) | key, max_size=12))
    stored, questions = table_of(kinds, keys), table_of(kinds, asked)
    first: dict[Any, int] = {}
    for position, each in enumerate(stored.to_pylist()):
        same = identity(tuple(each.values()))
        if same is not None:
            first.setdefault(same, position)
    expected = [first.get(identity(tuple(each.values())), -1) for each in questions.to_pylist()]
    known = KeySet(stored)
    assert known.index(questions).tolist() == expected
    assert known.contains(questions).tolist() == [position >= 0 for position in expected]
    assert distinct(stored).num_rows == len(first)


@pytest.mark.parametrize("spread", [1, 3, 2**41])
def test_close_and_far_numbers_are_found_alike(spread: int) -> None:
    keys = np.arange(-5000, 5000) * spread
    known = KeySet(pa.table({"id": keys}))
    asked = pa.table({"id": np.arange(-6000, 6000) * spread})
    assert known.index(asked).tolist() == [n if 0 <= n < 10_000 else -1 for n in range(-1000, 11_000)]


def test_a_table_in_pieces_or_of_a_wider_type_is_looked_up_like_any_other() -> None:
    known = KeySet(pa.table({"id": pa.chunked_array([["a"], ["b", "c"]])}))
    asked = pa.table(
        {
            "id": pa.chunked_array(
                [pa.array(["c", "x"], pa.large_string()), pa.array(["a"], pa.large_string())]
            )
        }
    )
    assert known.index(asked).tolist() == [2, -1, 0]
    assert KeySet(pa.table({"id": pa.array([], pa.int64())})).index(pa.table({"id": [1]})).tolist() == [-1]
