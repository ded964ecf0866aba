"""Events of a change stream become steps of whole transactions, wherever batches are cut. No server."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import bson
import pytest
from bson import Int64, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.mongodb import lock
from penstock.capture.mongodb.collections import Collections
from penstock.capture.mongodb.decoder import ChangeDecoder
from penstock.capture.mongodb.selection import Selection
from penstock.capture.mongodb.stream import EventBatch, MongoStream, complete_below
from penstock.capture.source_spec import MongoSpec, source_of_json
from penstock.capture.steps import StepBuilder
from penstock.core.errors import PositionGoneError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.log.manifest import list_sequence, read_manifest
from penstock.log.reader import ChangeLog, read_rows
from penstock.log.writer import LogWriter
from penstock.sources.mongodb.catalog import discover
from penstock.sources.mongodb.change_stream import ChangeBatch, Place
from penstock.sources.mongodb.connection import Client
from penstock.sources.mongodb.documents import parse
from penstock.sources.mongodb.events import read_events
from penstock.sources.mongodb.fields import Column, Form
from penstock.sources.mongodb.types import field_columns
from tests.conftest import wait_until

ORDERS, ITEMS = StreamId("shop", "orders"), StreamId("shop", "items")
SECOND = 1_700_000_000
START = Lsn(SECOND << 32)
Event = dict[str, Any]


class Known(Collections):
    """Of a server that is not asked: every collection is gone by the time it would be."""

    def __init__(self, streams: Sequence[StreamId]) -> None:
        super().__init__(Selection(streams), lambda: pytest.fail("asked"), "document", None)

    def _describe(self, stream: StreamId) -> Any:
        self._client = _NoServer()  # type: ignore[assignment]
        return super()._describe(stream)


class _NoServer:
    def __getitem__(self, name: str) -> _NoServer:
        return self

    def list_collections(self, **_: Any) -> list[Any]:
        return []

    def close(self) -> None: ...


def at(time: int) -> Lsn:
    return Lsn(SECOND << 32 | time)


def event(time: int, operation: str, key: Any, stream: StreamId = ORDERS, **fields: Any) -> Event:
    return {
        "_id": {"_data": f"82{at(time):016X}2B042C0100296E"},
        "operationType": operation,
        "clusterTime": Timestamp(SECOND, time),
        "ns": {"db": stream.namespace, "coll": stream.name},
        "documentKey": {"_id": key},
        **({"fullDocument": {"_id": key, "v": time}} if operation in ("insert", "replace") else {}),
        **fields,
    }


def batch(events: Sequence[Event], complete: Lsn = Lsn(0)) -> EventBatch:  # noqa: B008
    raw = b"".join(map(bson.encode, events))
    return EventBatch((read_events(parse(raw)),) if events else (), complete)


def logged(directory: Path, stream: StreamId = ORDERS) -> list[dict[str, Any]]:
    log = ChangeLog(directory)
    start, end = log.start(), log.end()
    assert start is not None
    assert end is not None
    return [
        row for part in read_rows(log.files(stream, start, end).files, start, end) for row in part.to_pylist()
    ]


def builder_of(
    directory: Path, *, end: Lsn = START, last_seq: int = 0, bytes_max: int = 1 << 20
) -> StepBuilder[EventBatch]:
    writer = LogWriter(directory, system_id="s", timeline=1, epoch=Lsn(1), end=end, last_seq=last_seq)
    return StepBuilder(writer, ChangeDecoder(Known([ORDERS, ITEMS])), bytes_max)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    places=st.lists(st.integers(0, 30), max_size=5),
    bytes_max=st.sampled_from([1, 2000, 1 << 20]),
)
def test_steps_hold_whole_transactions_wherever_batches_are_cut(
    sizes: list[int], places: list[int], bytes_max: int
) -> None:
    events: list[Event] = []
    for time, size in enumerate(sizes, 1):
        events += (event(time, "insert", len(events) + n, (ORDERS, ITEMS)[n % 2]) for n in range(size))
    edges = [0, *sorted(place for place in places if place < len(events)), len(events)]
    pieces = [events[begin:end] for begin, end in itertools.pairwise(edges)]
    with TemporaryDirectory() as directory:
        log = Path(directory)
        builder = builder_of(log, bytes_max=bytes_max)
        target = at(len(sizes) + 1)
        builder.demand(target)
        for piece in pieces:
            assert not builder.take(batch(piece))
        assert builder.take(batch([], target))
        for stream in (ORDERS, ITEMS):
            mine = [each for each in events if each["ns"]["coll"] == stream.name]
            expected: list[tuple[int, int, str]] = []
            for each in mine:
                tx = int(at(each["clusterTime"].inc))
                before = sum(tx == other for other, _, _ in expected)
                expected.append((tx, 2 * before, str(each["documentKey"]["_id"])))
            assert [(row["_tx"], row["_op_index"], row["__id"]) for row in logged(log, stream)] == expected
        manifests = [read_manifest(log, seq) for seq in list_sequence(log)]
        assert {manifest.end for manifest in manifests} <= {at(time) for time in range(len(sizes) + 2)}
        assert sum(manifest.transactions for manifest in manifests) == len(sizes)


def test_what_the_log_has_is_left_out_and_ordinals_stay_the_same(tmp_path: Path) -> None:
    events = [event(1, "insert", 1), event(1, "insert", 2), event(2, "insert", 3), event(2, "delete", 1)]
    first = builder_of(tmp_path)
    first.demand(at(2))
    assert first.take(batch(events[:3]))
    again = builder_of(tmp_path, end=at(2), last_seq=1)
    again.demand(at(3))
    assert again.take(batch(events, at(3)))
    assert [(row["_tx"] & 0xFF, row["_op_index"], row["_op"]) for row in logged(tmp_path)] == [
        (1, 0, "i"), (1, 2, "i"), (2, 0, "i"), (2, 2, "d"),
    ]  # fmt: skip
    assert again.counters.transactions == 1


def test_every_kind_of_change_has_its_row(tmp_path: Path) -> None:
    before = {"_id": 1, "v": "before"}
    events = [
        event(1, "insert", 1, wallTime=bson.datetime_ms.DatetimeMS(1234), txnNumber=Int64(7)),
        event(2, "update", 1, fullDocument={"_id": 1, "v": "new"}),
        event(3, "update", 1, fullDocument=None),  # gone when it was looked up
        event(4, "replace", 1.0, fullDocumentBeforeChange=before),
        event(5, "delete", 1),
        event(6, "delete", 1, fullDocumentBeforeChange=before),
        event(7, "create", 1),
    ]
    builder = builder_of(tmp_path)
    builder.demand(at(8))
    assert builder.take(batch(events, at(8)))
    rows = logged(tmp_path)
    assert [row["_op"] for row in rows] == ["i", "u", "u", "u", "d", "d"]
    assert [row["__id"] for row in rows] == ["1", "1", "1", "1", None, None]
    assert [row["document"] and '"v":' in row["document"] for row in rows] == [
        True,
        True,
        None,
        True,
        None,
        None,
    ]
    assert [row["_unchanged"] for row in rows] == [None, [], ["document"], None, None, None]
    assert [row["_old_kind"] for row in rows] == ["n", "n", "n", "f", "k", "f"]
    assert rows[4]["_old"] == {"__id": "1", "document": None}
    assert rows[5]["_old"] == {"__id": "1", "document": '{"_id":{"$numberInt":"1"},"v":"before"}'}
    assert (rows[0]["_xid"], rows[1]["_xid"]) == (7, 0)
    assert rows[0]["_commit_ts"].timestamp() == pytest.approx(1.234)
    assert rows[1]["_commit_ts"].timestamp() == SECOND


def test_a_collection_that_is_dropped_or_renamed_is_emptied_in_its_place(tmp_path: Path) -> None:
    events = [
        event(1, "insert", 1),
        event(2, "drop", None),
        event(3, "insert", 2),
        event(4, "rename", None, ITEMS, to={"db": "shop", "coll": "orders"}),
        event(5, "insert", 3),
        event(6, "dropDatabase", None),
        event(7, "invalidate", None),
    ]
    builder = builder_of(tmp_path)
    builder.demand(at(8))
    assert builder.take(batch(events, at(8)))
    assert [(row["_tx"] & 0xFF, row["_op"]) for row in logged(tmp_path)] == [
        (1, "i"), (2, "t"), (3, "i"), (4, "t"), (5, "i"),
    ]  # fmt: skip
    [manifest] = [read_manifest(tmp_path, seq) for seq in list_sequence(tmp_path)]
    truncates = {table.stream: table.truncates for table in manifest.tables}
    assert truncates == {ORDERS: ((int(at(2)), 0), (int(at(4)), 0)), ITEMS: ((int(at(4)), 0),)}


def test_a_transaction_is_open_until_something_past_it_has_come(tmp_path: Path) -> None:
    builder = builder_of(tmp_path)
    builder.demand(at(2))
    assert not builder.take(batch([event(1, "insert", 1)], at(1)))
    assert not builder.take(batch([], at(1)))
    assert not builder.take(batch([event(1, "insert", 2)], at(1)))
    assert builder.take(batch([event(5, "insert", 3)], at(5)))
    [manifest] = [read_manifest(tmp_path, seq) for seq in list_sequence(tmp_path)]
    assert manifest.end == at(2)
    assert [row["__id"] for row in logged(tmp_path)] == ["1", "2"]


@pytest.mark.parametrize(
    ("data", "rows", "rests", "complete"),
    [
        ("2B0229296E04", 0, True, 9),  # a mark is before all events of its time
        ("2B0229296E04", 1, True, 9),
        ("2B022C0100296E5A", 0, True, 10),  # nothing is left of the entry that it was sent with
        ("2B022C0100296E5A", 0, False, 9),
        ("2B022C0100296E5A", 1, True, 9),
    ],
)
def test_what_a_token_says_of_completeness(data: str, rows: int, rests: bool, complete: int) -> None:
    token = bson.encode({"_data": f"82{at(9):016X}{data}"})
    events = list(batch([event(9, "insert", 1)] * rows).events)
    assert complete_below(ChangeBatch(events, Place(token)), rests_between=rests) == at(complete)


def test_a_selection_is_the_servers_filter_and_waits_for_it() -> None:
    selection = Selection([ORDERS, StreamId("a*", "x.*")])
    assert ORDERS in selection
    assert StreamId("abc", "x.y") in selection
    assert ITEMS not in selection
    assert StreamId("abc", "system.x.y") not in Selection([StreamId("*", "*")])
    [match] = selection.pipeline()
    assert {"ns.db": "shop", "ns.coll": {"$in": ["orders"]}} in match["$match"]["$and"][1]["$or"]
    selection.add([ITEMS])  # nothing is open: nobody waits
    selection.add([ITEMS])
    assert selection.version == 1
    assert ITEMS in selection
    selection.opened(selection.version)
    added = threading.Thread(target=selection.add, args=([StreamId("shop", "more")],), daemon=True)
    added.start()
    wait_until(lambda: selection.version == 2, "the addition to be noted")
    assert added.is_alive()
    selection.opened(2)
    added.join(120)
    assert not added.is_alive()
    selection.close()
    selection.add([StreamId("shop", "most")])


def test_images_are_needed_where_all_streams_ask_for_old_rows() -> None:
    assert Selection([ORDERS], [ORDERS]).needs_images
    assert not Selection([ORDERS, ITEMS], [ORDERS]).needs_images
    assert not Selection([], []).needs_images
    assert Selection([ORDERS, ITEMS], [ORDERS]).wants_old
    assert not Selection([ORDERS]).wants_old


def test_a_spec_travels_as_json_and_keeps_its_secret_to_itself() -> None:
    spec = MongoSpec("mongodb://u:hunter2@h/", "shop", "shop", "fields", "/tmp/fields.json")
    assert source_of_json(spec.to_json()) == spec
    assert "hunter2" not in repr(spec)


def test_only_a_process_of_this_machine_that_is_gone_has_left_its_lease() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = lock._machine()
    assert here
    assert lock._was_left({"machine": here, "pid": gone.pid})
    assert not lock._was_left({"machine": here, "pid": os.getpid()})
    assert not lock._was_left({"machine": "another", "pid": gone.pid})
    assert not lock._was_left({"machine": "", "pid": gone.pid})
    assert not lock._was_left(None)


class Scripted:
    """A change stream that brings the batches it is given, and else says where it is."""

    def __init__(self, at_time: int = 0) -> None:
        self.time = at_time
        self.waiting: deque[list[Event] | Exception] = deque()
        self.closed = False

    @property
    def place(self) -> Place:
        return Place(bson.encode({"_data": f"82{at(self.time):016X}2B0229296E04"}))

    def read(self, wait_ms: int) -> ChangeBatch:
        events = self.waiting.popleft() if self.waiting else []
        if isinstance(events, Exception):
            raise events
        self.time += 1 + len(events)
        return ChangeBatch(list(batch(events).events), self.place)

    def close(self) -> None:
        self.closed = True


@contextmanager
def reading(selection: Selection) -> Iterator[tuple[MongoStream, list[Scripted], list[Lsn]]]:
    opened: list[Scripted] = []
    noted: list[Lsn] = []

    def open_stream(before: Any) -> Any:
        opened.append(Scripted(0 if before is None else before.time))
        return opened[-1]

    stream = MongoStream(
        open_stream, selection, sharded=False, acknowledge=noted.append, on_close=lambda: None
    )
    try:
        yield stream, opened, noted
    finally:
        stream.close()
        stream.close()


def test_tokens_that_nobody_takes_are_one() -> None:
    with reading(Selection([ORDERS])) as (stream, [scripted], noted):
        wait_until(lambda: scripted.time > 50, "many tokens")
        assert stream.receive() == 1
        taken = stream.take()
        assert taken.events == ()
        assert taken.complete > at(40)
        stream.report(Lsn(5), Lsn(4))
        wait_until(lambda: noted == [Lsn(4)], "what is acknowledged to be noted")
        scripted.waiting.append([event(1000, "insert", 1)])
        wait_until(lambda: stream.receive() > 1, "the event")
        assert [part.rows for part in stream.take().events] == [1]
    assert scripted.closed


def test_streams_that_are_added_are_read_from_the_place_that_was_reached() -> None:
    selection = Selection([ORDERS])
    with reading(selection) as (_, opened, _):
        wait_until(lambda: opened[0].time > 5, "the first stream to be read")
        selection.add([ITEMS])
        assert opened[0].closed
        assert opened[1].time >= opened[0].time > 5


def test_what_ends_the_reading_thread_is_told_to_whoever_reads_and_waits() -> None:
    selection = Selection([ORDERS])
    with reading(selection) as (stream, [scripted], _):
        scripted.waiting.append(PositionGoneError("gone"))
        wait_until(lambda: scripted.closed, "the thread to end")
        with pytest.raises(PositionGoneError):
            stream.receive()
        selection.add([ITEMS])


@pytest.mark.parametrize(
    ("patterns", "listed"),
    [
        (
            [ORDERS, ITEMS, StreamId("other", "*")],
            ["orders", "items", "system.buckets.orders", "system.buckets.items"],
        ),
        ([ORDERS, StreamId("shop", "i*")], None),
        ([StreamId("s*", "orders")], None),
        (None, None),
    ],
)
def test_only_collections_that_are_asked_for_are_listed(
    patterns: list[StreamId] | None, listed: list[str] | None
) -> None:
    """One whose events come is asked for among however many there are."""
    asked: list[Any] = []

    class Server(_NoServer):
        def list_collections(self, **given: Any) -> list[Any]:
            asked.append(given["filter"])
            return []

        def list_database_names(self) -> list[str]:
            return ["shop"]

    discover(cast("Client", Server()), patterns, database="shop")
    assert asked == [None if listed is None else {"name": {"$in": listed}}]


def test_columns_of_a_collection_are_asked_for_until_some_field_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody remembers a sample without fields: another one may show some, which are its columns then."""
    found: list[Any] = []

    def discovered(*_: object, **__: object) -> list[Any]:
        fields = found.pop(0)
        schema = TableSchema(ORDERS, field_columns(fields), ("_id",))
        return [SimpleNamespace(can_be_captured=True, fields=fields, schema=schema)]

    monkeypatch.setattr("penstock.capture.mongodb.collections.discover", discovered)
    client = SimpleNamespace(close=lambda: None)
    asked = Collections(Selection([ORDERS]), lambda: cast("Client", client), "fields", None)
    found += [(), (), (Column("n", Form.INT32),)]
    names = [table.schema.names for _ in range(4) if (table := asked.table(ORDERS)) is not None]
    assert [("n" in each) for each in names] == [False, False, True, True]
    assert found == []
