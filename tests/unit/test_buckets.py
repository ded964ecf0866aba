"""Folding bucket by bucket gives what folding the whole gives."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.buckets import WHOLE, Bucket, IndivisibleError
from penstock.lake.change_set import Changes
from penstock.lake.fold import Folded, fold

KEYS = st.tuples(st.sampled_from(["1", "2", "12", "3"]), st.sampled_from(["a", "", "2a"]))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Any, Any]]:
    """(operation, old key, new key), as a source with one row per key sends them."""
    present: set[Any] = set(draw(st.sets(KEYS, max_size=4)))
    events: list[tuple[str, Any, Any]] = []
    for _ in range(draw(st.integers(0, 25))):
        key = draw(KEYS)
        if draw(st.integers(0, 30)) == 0:
            events.append(("t", None, None))
            present.clear()
        elif key not in present:
            events.append(("i", None, key))
            present.add(key)
        elif draw(st.booleans()):
            moved = draw(KEYS)
            moved = key if moved in present else moved
            events.append(("u", key if moved != key else None, moved))
            present.remove(key)
            present.add(moved)
        else:
            events.append(("d", key, None))
            present.remove(key)
    return events


def columns(keys: list[Any]) -> pa.Table:
    return pa.table(
        {
            "a": pa.array([None if key is None else key[0] for key in keys], pa.string()),
            "b": pa.array([None if key is None else key[1] for key in keys], pa.string()),
        }
    )


def changes_of(
    events: list[tuple[str, Any, Any]], missing: bool = False
) -> tuple[pa.Table, pa.Table, Changes]:
    new, old = columns([event[2] for event in events]), columns([event[1] for event in events])
    version = pa.array([f"v{index}" for index in range(len(events))])
    unchanged = pa.array(
        [["v"] if missing and event[0] == "u" else None for event in events], pa.list_(pa.string())
    )
    size = len(events)
    changes = Changes(
        rows=new.append_column("v", version),
        old_key=old,
        op=np.frombuffer("".join(event[0] for event in events).encode(), np.uint8),
        tx=np.arange(size, dtype=np.int64),
        op_index=np.zeros(size, np.int64),
        unchanged=unchanged if missing else None,
    )
    return new, old, changes


def fold_bucket(bucket: Bucket, new: pa.Table, old: pa.Table, changes: Changes) -> Folded:
    here = bucket.membership(new, old, ["a", "b"], changes.op)
    return fold(here.halve_moves(changes.filter(here.any)), ["a", "b"], False)


@given(histories(), st.integers(2, 5))
def test_buckets_together_fold_to_the_same_rows_and_keys(events: list[Any], count: int) -> None:
    new, old, changes = changes_of(events)
    whole = fold(changes, ["a", "b"], False)
    parts = [fold_bucket(Bucket(index, count), new, old, changes) for index in range(count)]
    assert any(part.truncated for part in parts) == whole.truncated
    rows = [tuple(row.values()) for part in parts for row in part.rows.to_pylist()]
    assert Counter(rows) == Counter(tuple(row.values()) for row in whole.rows.to_pylist())
    keys = {tuple(row.values()) for part in parts for row in part.keys.to_pylist()}
    assert keys == {tuple(row.values()) for row in whole.keys.to_pylist()}


@given(histories())
def test_every_change_is_seen_by_the_bucket_of_its_key_and_no_other(events: list[Any]) -> None:
    new, old, changes = changes_of(events)
    seen = sum(
        Bucket(index, 3).membership(new, old, ["a", "b"], changes.op).any.astype(int) for index in range(3)
    )
    moves = changes.op == ord("u")
    assert np.all(np.asarray(seen)[~moves & (changes.op != ord("t"))] == 1)
    assert WHOLE.membership(new, old, ["a", "b"], changes.op).any.all()


def test_a_move_that_lacks_values_makes_the_range_indivisible() -> None:
    new, old, changes = changes_of([("u", ("1", "a"), ("3", "2a"))], missing=True)
    buckets = [Bucket(index, 64).membership(new, old, ["a", "b"], changes.op) for index in range(64)]
    apart = [here for here in buckets if here.any.any()]
    assert len(apart) == 2, "the two keys fall into different buckets"
    for here in apart:
        with pytest.raises(IndivisibleError):
            here.halve_moves(changes.filter(here.any))


@pytest.mark.parametrize("count", [2, 3, 7, 64])
def test_the_two_zeros_of_a_float_are_one_key_and_fall_into_one_bucket(count: int) -> None:
    text = pa.table({"a": pa.array(["0", "-0"]), "b": pa.array(["x", "x"])})
    operations = np.full(2, ord("i"), np.uint8)
    held = [Bucket(index, count).membership(text, text, ["a", "b"], operations).new for index in range(count)]
    assert all(each[0] == each[1] for each in held)
