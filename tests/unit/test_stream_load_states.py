"""What the target is told of a stream, from its first chunk until it follows with the lane."""

from __future__ import annotations

import pytest

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.load_state import BEGINNING, LoadState, Place
from penstock.streams.load_states import LoadStates

pytestmark = pytest.mark.unit

ITEMS, OTHERS = StreamId("public", "items"), StreamId("public", "others")


def loading(point: int, lane: int) -> LoadStates:
    states = LoadStates([ITEMS], lane=Lsn(lane))
    states.begin(ITEMS, LoadState(Lsn(point), name="load", next=BEGINNING, since=Lsn(point)))
    return states


def test_a_stream_that_the_target_does_not_know_loads_before_its_point_is_known() -> None:
    states = LoadStates([ITEMS], lane=Lsn(5))

    assert states.is_loading(ITEMS)
    assert states.new == states.unknown == frozenset({ITEMS})
    assert states.wanting == [ITEMS]
    assert states.to_json() == {}


def test_a_stream_whose_rows_are_told_is_behind_until_its_changes_have_come_to_the_lane() -> None:
    states = loading(point=10, lane=30)
    states.rows_told(ITEMS, 4)
    states.chunk_told(ITEMS, Place("public.items", "(9,0)"))
    assert (states[ITEMS].rows, states.behind, states.is_loading(ITEMS)) == (4, [], True)

    states.chunk_told(ITEMS, None)
    assert (states.behind, states.points, states.meet_lane(ITEMS)) == ([ITEMS], [10], False)

    states.changes_told(ITEMS, Lsn(30))
    assert states.meet_lane(ITEMS)
    assert (states.behind, states.is_loading(ITEMS), states.is_level) == ([], False, True)


def test_a_stream_that_is_ahead_of_the_lane_follows_at_once_and_is_level_when_the_lane_comes() -> None:
    states = loading(point=50, lane=30)
    states.chunk_told(ITEMS, None)

    assert states.meet_lane(ITEMS)

    found = []
    for lane in (Lsn(30), Lsn(50)):
        states.lane = lane
        found.append((states.is_level, states.to_json()[str(ITEMS)].get("point")))
    assert found == [(False, str(Lsn(50))), (True, None)]


def test_what_was_written_down_is_taken_up_where_it_was() -> None:
    states = loading(point=10, lane=30)
    states.rows_told(ITEMS, 4)
    states.chunk_told(ITEMS, Place("public.items", "(9,0)"))

    again = LoadStates([ITEMS], (), states.to_json(), Lsn(30))

    assert again[ITEMS] == states[ITEMS]
    assert (again.new, again.wanting) == (frozenset(), [ITEMS])


def test_streams_without_rows_say_since_when_they_are_followed_and_only_the_first_time() -> None:
    first = LoadStates([], [ITEMS], {}, Lsn(5))
    first.begin_following()
    later = LoadStates([], [ITEMS], first.to_json(), Lsn(9))
    later.begin_following()

    assert (first[ITEMS].since, later[ITEMS].since) == (Lsn(5), Lsn(5))
    assert not later.is_loading(ITEMS)


def test_a_stream_whose_changes_are_missing_stands_still_and_the_others_do_not() -> None:
    states = LoadStates([], [ITEMS, OTHERS], {}, Lsn(5))

    assert states.stop({ITEMS: [7]}, Lsn(12))
    assert not states.stop({ITEMS: [9]}, Lsn(20))

    assert (states.gaps, states.points, states.lane) == ([ITEMS], [8], Lsn(12))
    assert (states.behind, states.is_loading(OTHERS)) == ([], False)


def test_rows_that_are_wanted_of_a_stream_that_was_followed_without_are_loaded() -> None:
    held = LoadStates([], [ITEMS], {}, Lsn(5)).to_json()

    assert LoadStates([ITEMS], (), held, Lsn(9)).wanting == [ITEMS]
