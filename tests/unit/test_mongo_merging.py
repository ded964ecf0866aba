"""Change streams of single collections as one: in the order of times, and no transaction whole too soon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import bson
import pytest
from bson import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.mongodb.merging import MergedStreams, in_order
from penstock.capture.mongodb.selection import Selection
from penstock.capture.mongodb.stream import complete_below
from penstock.core.stream import StreamId
from penstock.sources.mongodb.change_stream import ChangeBatch, ChangeStream, Place
from penstock.sources.mongodb.documents import parse
from penstock.sources.mongodb.events import Events, read_events
from penstock.sources.mongodb.rights import Rights, Scope

SECOND = 1_700_000_000
Told = tuple[int, str, int]  # time, collection, ordinal of the event in its collection
MARK, EVENT = "2B0229296E04", "2B042C0100296E"


def mark(time: int) -> str:
    return f"82{SECOND << 32 | time:016X}{MARK}"


def token_of(told: Told) -> str:
    time, collection, number = told
    return f"82{SECOND << 32 | time:016X}{EVENT}{number:04X}{collection.encode().hex().upper()}"


def placed(data: str) -> Place:
    return Place(bson.encode({"_data": data}))


BEGIN = placed(mark(0))


def events(told: Sequence[Told]) -> Events:
    return read_events(
        parse(
            b"".join(
                bson.encode(
                    {
                        "_id": {"_data": token_of((time, collection, number))},
                        "operationType": "insert",
                        "clusterTime": Timestamp(SECOND, time),
                        "ns": {"db": "shop", "coll": collection},
                        "documentKey": {"_id": number},
                        "fullDocument": {"_id": number, "text": "x" * (number % 7)},
                    }
                )
                for time, collection, number in told
            )
        )
    )


def told_by(found: Events) -> list[Told]:
    numbers, names = found.namespaces
    keys = found.keys.to_pylist()
    times = [int(time) & 0xFFFFFFFF for time in found.times]
    return [(times[row], names[numbers[row]][1], int(keys[row])) for row in range(found.rows)]


class Scripted:
    """Brings its events in replies of a few, and says where it is as a server does."""

    def __init__(self, told: Sequence[Told], sizes: Sequence[int], end: int, place: Place = BEGIN) -> None:
        behind = bson.decode(place.token or b"")["_data"]
        self.left = deque(each for each in told if token_of(each) > behind)
        self.time = self._time_of(behind, told)
        self.sizes = deque(sizes)
        self.end = end
        self.place = place
        self.opened = self.closed = False
        self.waits: list[int] = []

    @staticmethod
    def _time_of(behind: str, told: Sequence[Told]) -> int | None:
        """Of the event that it goes on behind, if it is one."""
        return next((each[0] for each in told if token_of(each) == behind), None)

    def open(self) -> None:
        self.opened = True

    def read(self, wait_ms: int) -> ChangeBatch:
        self.waits.append(wait_ms)
        size = self.sizes.popleft() if self.sizes else 3
        if self.left and self.left[0][0] == self.time:
            size = max(size, 1)  # it rests between entries of the log, and those of one time are one
        some = [self.left.popleft() for _ in range(min(size, len(self.left)))]
        self.time = some[-1][0] if some else None
        upcoming = self.left[0][0] if self.left else self.end
        self.place = placed(token_of(some[-1]) if some else mark(upcoming))
        return ChangeBatch([events(some)] if some else [], self.place)

    def close(self) -> None:
        self.closed = True


def making(scripted: Sequence[Scripted]) -> dict[StreamId, Callable[[Place], ChangeStream]]:
    def make(each: Scripted, place: Place) -> ChangeStream:
        return cast("ChangeStream", each)

    return {StreamId("shop", f"c{number}"): partial(make, each) for number, each in enumerate(scripted)}


def merged(scripted: Sequence[Scripted]) -> MergedStreams:
    return MergedStreams(making(scripted), BEGIN, rests_between=True)


@settings(max_examples=80, deadline=None)
@given(
    times=st.lists(st.lists(st.integers(1, 20), max_size=12).map(sorted), min_size=1, max_size=4),
    sizes=st.lists(st.integers(0, 4), max_size=30),
    reopened=st.sets(st.integers(0, 25)),
)
def test_events_come_once_in_the_order_of_times_and_below_complete_nothing_follows(
    times: list[list[int]], sizes: list[int], reopened: set[int]
) -> None:
    """However often streams are opened anew, behind the tokens that they came to."""
    of = [
        [(time, f"c{stream}", number) for number, time in enumerate(each)]
        for stream, each in enumerate(times)
    ]
    made: list[Scripted] = []

    def make(stream: int, place: Place) -> ChangeStream:
        made.append(Scripted(of[stream], sizes[stream::4], 100, place))
        return cast("ChangeStream", made[-1])

    every = {StreamId("shop", f"c{number}"): partial(make, number) for number in range(len(of))}
    cursor = MergedStreams(every, BEGIN, rests_between=True)
    cursor.open()
    found: list[Told] = []
    complete = turn = 0
    while complete < 100:
        turn += 1
        if turn in reopened:
            cursor.close()
            cursor = MergedStreams(every, BEGIN, cursor, rests_between=True)
            cursor.open()
        batch = cursor.read(200)
        some = [told for part in batch.parts for told in told_by(part)]
        assert all(time >= complete for time, _, _ in some), "it was said to have come as a whole"
        found += some
        complete = int(complete_below(batch, rests_between=True)) & 0xFFFFFFFF
        assert batch.place == cursor.place
        came = {told for told in found if told[0] < complete}
        assert came == {told for each in of for told in each if told[0] < complete}
    assert [time for time, _, _ in found] == sorted(time for each in times for time in each)
    for stream, each in enumerate(of):
        assert [told for told in found if told[1] == f"c{stream}"] == each
    cursor.close()
    assert all(each.opened and each.closed for each in made)


def test_a_stream_that_is_added_begins_at_the_frontier_and_brings_no_earlier_time() -> None:
    first = Scripted([(5, "c0", 1), (5, "c0", 2), (5, "c0", 3)], [2], 100)
    cursor = merged([first])
    assert [told for part in cursor.read().parts for told in told_by(part)] == [(5, "c0", 1), (5, "c0", 2)]
    assert cursor.place == placed(mark(5))
    places: list[Place] = []

    def added(place: Place) -> ChangeStream:
        places.append(place)
        return cast("ChangeStream", Scripted([(4, "c1", 1), (5, "c1", 2)], [], 100, place))

    both = MergedStreams(
        {**making([first]), StreamId("shop", "c1"): added}, BEGIN, cursor, rests_between=True
    )
    found: list[Told] = []
    while len(found) < 2:
        found += [told for part in both.read().parts for told in told_by(part)]
    assert places == [placed(mark(5))]
    assert sorted(found) == [(5, "c0", 3), (5, "c1", 2)]


def test_only_the_stream_that_holds_the_others_back_is_read() -> None:
    """So that of each at most one reply waits, however far one is ahead of another."""
    ahead = Scripted([(time, "a", time) for time in range(50, 90)], [2] * 20, 100)
    behind = Scripted([(time, "b", time) for time in range(1, 41)], [2] * 20, 45)
    cursor = merged([ahead, behind])
    found: list[Told] = []
    while len(found) < 40:
        found += [told for part in cursor.read(200).parts for told in told_by(part)]
        assert len(ahead.left) >= 38
    assert {name for _, name, _ in found} == {"b"}
    assert len(ahead.waits) <= 2


def test_a_round_of_idle_streams_takes_as_long_as_one_would() -> None:
    scripted = [Scripted([], [], time) for time in (5, 6, 7, 8)]
    cursor = merged(scripted)
    for _ in range(8):
        cursor.read(200)
    waits = [wait for each in scripted for wait in each.waits]
    assert sorted(set(waits)) == [1, 50]


def test_replies_that_are_merged_keep_every_value() -> None:
    first, second = [(1, "a", 10), (3, "a", 11), (3, "a", 12)], [(2, "b", 20), (3, "b", 21), (9, "b", 22)]
    found = in_order([events(first), events(second)])
    assert told_by(found) == [first[0], second[0], *first[1:], *second[1:]]
    documents = [found.decoded(row)["fullDocument"] for row in range(found.rows)]
    assert documents == [{"_id": n, "text": "x" * (n % 7)} for n in (10, 20, 11, 12, 21, 22)]
    assert bson.decode(found.token(5))["_data"] == token_of(second[-1])


def test_a_rename_between_two_selected_collections_is_taken_from_one_stream() -> None:
    orders, items = StreamId("shop", "orders"), StreamId("shop", "items")
    [stage] = Selection([orders, items]).pipeline_of(items)
    assert stage == {
        "$match": {
            "$or": [
                {"operationType": "invalidate"},
                {"ns": {"db": "shop", "coll": "items"}},
                {
                    "operationType": "rename",
                    "to": {"db": "shop", "coll": "items"},
                    "$nor": [{"ns.db": "shop", "ns.coll": {"$in": ["orders", "items"]}}],
                },
            ]
        }
    }


@pytest.mark.parametrize(
    ("resources", "database", "scopes"),
    [
        ([("", "")], "shop", [Scope("shop")]),
        ([("", "")], "", [Scope("")]),
        ([("shop", "")], "", [Scope("shop")]),
        ([("shop", "a"), ("shop", "b"), ("shop", "a")], "shop", [Scope("shop", "a"), Scope("shop", "b")]),
        ([("other", "a"), ("shop", "system.js")], "shop", []),
        ([("", "a")], "shop", [Scope("shop", "a")]),
        ([("", "a")], "", []),
    ],
)
def test_what_can_be_followed_is_the_whole_or_what_privileges_name(
    resources: list[tuple[str, str]], database: str, scopes: list[Scope]
) -> None:
    privileges: list[dict[str, Any]] = [
        {"resource": {"db": db, "collection": name}, "actions": ["find", "changeStream"]}
        for db, name in resources
    ]
    privileges.append({"resource": {"cluster": True}, "actions": ["changeStream"]})
    privileges.append({"resource": {"db": "shop", "collection": "c"}, "actions": ["find"]})
    assert Rights("me@admin", privileges).followable(database) == tuple(scopes)
