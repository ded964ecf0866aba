"""Checkpoints of terms, and names that were found: what one term leaves, the next one knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import StaleTermError, StateError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.events import CREATE, Events
from penstock.streams.kinesis.bounds import BEGINNING, Bound
from penstock.streams.kinesis.checkpoints import Checkpoint, Checkpoints
from penstock.streams.kinesis.found import Found
from penstock.streams.kinesis.records import Name
from penstock.streams.kinesis.tail import LateCount
from penstock.streams.publisher import Standing

_GROUP = ("public.t", "r", "")


def _checkpoint(position: int) -> Checkpoint:
    standing = Standing(Lsn(position), Lsn(1), "system", 1, {"public.t": {"next": 3}})
    return Checkpoint(standing, {"a": Bound(5), "b": Bound(moment=2.5), "c": BEGINNING}, 1.0)


def _name(tx: int, op: int, epoch: int = 1, chunk: str = "") -> Name:
    return Name((*_GROUP[:2], chunk), (tx, op << 1), Lsn(epoch))


def _events(names: list[tuple[int, int]]) -> Events:
    tx, op = (np.array([name[part] for name in names], np.int64) for part in (0, 1))
    nulls = pa.nulls(len(names), pa.binary())
    kinds = np.full(len(names), CREATE, np.uint8)
    return Events(StreamId("public", "t"), "r", tx, op, kinds, op, nulls, nulls)


def test_the_newest_term_is_read_and_earlier_ones_are_shut_out(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "shop", "stream/1", "7")
    assert checkpoints.newest(Lsn(1), Found()) is None
    checkpoints.write(_checkpoint(10), Lsn(1))
    checkpoints.write(_checkpoint(20), Lsn(2))
    assert checkpoints.newest(Lsn(3), Found()) == _checkpoint(20)
    with pytest.raises(StaleTermError):
        checkpoints.newest(Lsn(1), Found())
    with pytest.raises(StaleTermError):
        checkpoints.write(_checkpoint(15), Lsn(1))
    assert checkpoints.newest(Lsn(2), Found()) == _checkpoint(20)
    assert Checkpoints(tmp_path, "shop", "another", "7").newest(Lsn(3), Found()) is None
    assert Checkpoints(tmp_path, "another", "stream/1", "7").newest(Lsn(3), Found()) is None


def test_terms_of_another_source_shut_nobody_out(tmp_path: Path) -> None:
    former, new = (Checkpoints(tmp_path, "shop", "s", system_id) for system_id in ("7", "8"))
    found = Found()
    found.add([_name(1, 1)])
    former.write_found(found, Lsn(900))
    former.write(replace(_checkpoint(950), has_found=True), Lsn(900))
    taken_over = Found()
    assert new.newest(Lsn(5), taken_over) == replace(_checkpoint(950), has_found=True)
    assert len(taken_over) == 0, "what was found is of the other source"
    new.write(_checkpoint(10), Lsn(5))
    new.forget_before(Lsn(5))
    assert new.newest(Lsn(6), Found()) == _checkpoint(10)


def test_a_late_write_of_an_earlier_term_changes_nothing(tmp_path: Path) -> None:
    earlier, later = (Checkpoints(tmp_path, "shop", "s", "7") for _ in range(2))
    later.write(_checkpoint(20), Lsn(2))
    later.forget_before(Lsn(2))
    (tmp_path / "kinesis" / "shop" / "s" / "7-0000000000000001.json").write_bytes(b"{}")
    assert earlier.newest(Lsn(2), Found()) == _checkpoint(20)


def test_a_damaged_checkpoint_is_no_new_lane(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "shop", "s", "7")
    checkpoints.write(_checkpoint(20), Lsn(2))
    (tmp_path / "kinesis" / "shop" / "s" / "7-0000000000000002.json").write_bytes(b'{"format":')
    with pytest.raises(StateError):
        checkpoints.newest(Lsn(2), Found())


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20),
)
def test_names_are_found_by_who_reads_them_back_and_by_the_next_term(
    names: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    found, carried = Found(), Found()
    found.add(_name(*name) for name in names)
    found.add([_name(9, 9, chunk="load")])
    carried.read_json(found.to_json())
    for each in (found, carried):
        assert each.holds(_events(asked)).tolist() == [name in names for name in asked]
        assert each.newest_change() == max((tx for tx, _ in names), default=0)
        assert len(each) == len(set(names)) + 1


def test_names_that_are_found_time_and_again_take_no_more_room() -> None:
    """While one call is lost after the other, the same tail is read again, and most of it asked for never."""
    found, names = Found(), [_name(tx, op) for tx in range(100) for op in range(100)]
    sizes = []
    for _ in range(50):
        found.add(names)
        sizes.append(_bytes_of(found))
    assert len(found) == len(names)
    assert max(sizes) <= 3 * 16 * len(names)


def _bytes_of(found: Found) -> int:
    groups = found._groups.values()
    return sum(each._sorted.nbytes + each._unsorted.itemsize * len(each._unsorted) for each in groups)


@given(st.lists(st.integers(1, 4), max_size=12), st.integers(1, 4))
def test_records_behind_those_of_a_later_term_are_late(epochs: list[int], at_once: int) -> None:
    names = [_name(number, 0, epoch) for number, epoch in enumerate(epochs)]
    late = sum(any(earlier > epoch for earlier in epochs[:at]) for at, epoch in enumerate(epochs))
    counting = LateCount()
    answers = [names[at : at + at_once] for at in range(0, len(names), at_once)]
    told = [name for answer in answers for name in counting.counted(answer)]
    assert (told, counting.count) == (names, late)
