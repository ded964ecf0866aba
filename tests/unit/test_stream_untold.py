"""A stream of which changes are missing in the log: what is before them is told, and nothing from there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.capture.tail_items import Transactions
from penstock.capture.tail_reader import LogReader
from penstock.capture.transactions import ChangeRows, MessageConverter
from penstock.core.position import Lsn
from penstock.log.reader import ChangeLog
from penstock.log.writer import LogWriter
from penstock.streams.load_changes import ChangesAgain, changes_again
from penstock.streams.load_state import BEGINNING, LoadState
from penstock.streams.loading import Loads
from penstock.streams.tail_feed import joined
from penstock.streams.undecided import FindUndecided, Undecided
from tests.logged_changes import TABLE, Logged, item, piece

pytestmark = pytest.mark.unit


class _Items:
    """A `TailReader` that has these."""

    def __init__(self, *items: Transactions) -> None:
        self._items = items

    def follow(self, after: Lsn) -> Iterator[Transactions]:
        yield from (each for each in self._items if each.end > after)


def _inserts(*transactions: int) -> list[Logged]:
    return [Logged(tx, 0, "i", {"id": str(tx)}) for tx in transactions]


def _again(
    reader: _Items, point: int, to: int, undecided: FindUndecided = lambda _: ()
) -> tuple[list[int], list[ChangesAgain]]:
    told: list[int] = []

    def encode(changes: ChangeRows) -> list[object]:
        told.extend(changes.tx.tolist())
        return []

    parts = changes_again(
        reader,  # type: ignore[arg-type]
        encode,  # type: ignore[arg-type]
        Lsn(point),
        Lsn(to),
        by_pages=False,
        undecided=undecided,
    )
    return told, [part for part in parts if part is not None]


def test_changes_that_are_read_again_end_before_the_first_that_is_missing() -> None:
    untold = replace(item(40, piece(_inserts(20, 25, 30, 35))), untold={TABLE: (30,)})
    reader = _Items(item(20, piece(_inserts(10))), untold, item(60, piece(_inserts(50))))
    told, parts = _again(reader, 5, 60)
    assert told == [10, 20, 25]
    assert [(part.untold, part.is_whole) for part in parts] == [(30, True)]
    told, parts = _again(reader, 31, 60)
    assert told == [35, 50], "behind it they go on, once somebody has decided"
    assert [(part.untold, part.point) for part in parts] == [(None, 60)]


def _finds(*transactions: int) -> FindUndecided:
    return lambda changes: tuple(tx for tx in transactions if tx in changes.tx)


def test_changes_that_are_read_again_end_before_the_first_that_a_filter_cannot_decide() -> None:
    reader = _Items(item(40, piece(_inserts(20, 25, 30, 35))), item(60, piece(_inserts(50))))
    told, parts = _again(reader, 5, 60, _finds(25))
    assert told == [20]
    assert [(part.untold, part.is_whole) for part in parts] == [(25, True)]
    told, parts = _again(reader, 26, 60, _finds(25))
    assert told == [30, 35, 50]
    assert [(part.untold, part.point) for part in parts] == [(None, 60)]


def test_what_a_filter_cannot_decide_is_missing_up_to_the_end_of_its_item() -> None:
    rows = _inserts(*range(10, 40))
    fragments = list(MessageConverter(1).fragments(item(40, *(piece([each]) for each in rows))))
    assert len(fragments) > 2
    undecided = Undecided(_finds(20, 25))
    noted = [undecided.noted(each) for each in fragments]
    assert {each.untold.get(TABLE, ()) for each in noted} == {(), (20,), (20, 25)}
    assert noted[-1].untold == {TABLE: (20, 25)}
    following = _following(5)
    kept = [following.keep(changes, each.untold.get(TABLE, ())) for each in noted for changes in each.changes]
    assert [tx for each in kept if each is not None for tx in each.tx.tolist()] == [*range(10, 20)]
    assert following.stop(noted[-1].untold, Lsn(40))
    assert following.points() == [21]
    [after] = MessageConverter().fragments(item(60, piece(_inserts(50))))
    assert undecided.noted(after) == after


@pytest.mark.parametrize("is_loading", [False, True])
def test_a_stream_that_stops_is_kept_behind_the_transaction_that_is_not_told(is_loading: bool) -> None:
    state = LoadState(Lsn(10), name="a load", next=BEGINNING if is_loading else None)
    stopped = state.stopped_behind(30)
    assert (stopped.point, stopped.has_gap, stopped.is_loading) == (31, True, True)
    assert stopped.next == state.next
    assert LoadState.from_json(stopped.to_json(Lsn(50))) == stopped


def test_changes_that_are_read_again_behind_one_that_is_missing_end_before_the_next() -> None:
    missing = replace(item(40, piece(_inserts(10, 20, 25, 30, 35))), untold={TABLE: (10, 30)})
    told, parts = _again(_Items(missing), 11, 40)
    assert told == [20, 25]
    assert [part.untold for part in parts] == [30]


def _following(point: int) -> Loads:
    """Of a lane that follows, in which the stream is told from there on."""
    nothing: Any = None
    loads = Loads(nothing, Path(), nothing, {}, nothing)
    loads.begin((), {str(TABLE): {"point": str(Lsn(point))}}, Lsn(1), without_rows=(TABLE,))
    return loads


@pytest.mark.parametrize(("point", "told", "stands"), [(5, [], 11), (11, [20, 25], 31), (31, [35], None)])
def test_a_stream_that_has_passed_one_that_is_missing_stops_at_the_next_of_the_same_item(
    point: int, told: list[int], stands: int | None
) -> None:
    missing = replace(item(40, piece(_inserts(10, 20, 25, 30, 35))), untold={TABLE: (10, 30)})
    [fragment] = MessageConverter().fragments(missing)
    [changes] = fragment.changes
    loads = _following(point)
    kept = loads.keep(changes, fragment.untold[TABLE])
    assert ([] if kept is None else kept.tx.tolist()) == told
    assert loads.stop(fragment.untold, Lsn(40)) is (stands is not None)
    assert loads.gaps == ([] if stands is None else [TABLE])
    assert loads.points() == ([] if stands is None else [stands])


def test_fragments_that_become_one_say_all_that_is_missing() -> None:
    items = [
        item(20, piece(_inserts(10))),
        replace(item(40), untold={TABLE: (30,)}),
        replace(item(60, piece(_inserts(50))), untold={TABLE: (50, 55)}),
    ]
    converter = MessageConverter()
    fragments = [fragment for each in items for fragment in converter.fragments(each)]
    assert joined(fragments).untold == {TABLE: (30, 50, 55)}


def test_the_log_says_in_which_ranges_changes_are_missing(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, system_id="s", timeline=1, epoch=Lsn(1), end=Lsn(10))
    writer.alter(TABLE, 12, 2)
    writer.alter(TABLE, 15, 0, is_untold=True)
    writer.alter(TABLE, 17, 4, is_untold=True)
    writer.seal(Lsn(20))
    writer.alter(TABLE, 25, 0)
    writer.seal(Lsn(30))
    log = ChangeLog(tmp_path)
    assert log.files(TABLE, Lsn(10), Lsn(30)).altered == ((12, 2), (15, 0), (17, 4), (25, 0))
    assert [log.untold(Lsn(after), Lsn(30)) for after in (10, 16, 18)] == [
        {TABLE: (15, 17)},
        {TABLE: (17,)},
        {},
    ]
    assert log.untold(Lsn(10), Lsn(15)) == {}
    reader = LogReader(tmp_path, frozenset({TABLE}))
    assert [each.untold for each in reader.read(Lsn(10), Lsn(30))] == [{TABLE: (15, 17)}]
    assert [each.untold for each in LogReader(tmp_path, frozenset()).read(Lsn(10), Lsn(30))] == [{}]
