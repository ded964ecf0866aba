"""Fields that documents get later: each value is in its own column or in `_rest`, and columns only come."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Decimal128, Int64
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.mongodb.collections import Collections, Room
from penstock.capture.mongodb.decoder import ChangeDecoder
from penstock.capture.mongodb.selection import Selection
from penstock.capture.mongodb.stream import EventBatch
from penstock.capture.steps import StepBuilder
from penstock.core import selection as core_selection
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.lake.backfill import _as_begun
from penstock.lake.changes import conform
from penstock.lake.evolve import ColumnSource, plan_evolution
from penstock.lake.lane_state import LaneStream
from penstock.lake.target import Target
from penstock.lake.work import SchemaPlan, plan_schema
from penstock.ledger.load_record import LoadPoint, LoadRecord
from penstock.log.reader import ChangeLog, LogFile, read_rows
from penstock.log.writer import LogWriter
from penstock.sources.mongodb.catalog import CollectionInfo, CollectionLeaf
from penstock.sources.mongodb.documents import parse
from penstock.sources.mongodb.events import read_events
from penstock.sources.mongodb.fields import Column, Form
from penstock.sources.mongodb.new_fields import NAMES_MAX, new_fields
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.rows import RowReader
from penstock.sources.mongodb.types import ID, REST, TYPES, field_columns
from penstock.streams.conversion import _masks
from penstock.streams.selection import StreamSelection
from penstock.turns import fingerprints
from penstock.verify.comparison import comparable
from tests import bson_documents as model
from tests.logged_rows import changes_of

pytestmark = pytest.mark.unit

ORDERS = StreamId("shop", "orders")
SECOND = 1_700_000_000
START = Lsn(SECOND << 32)
SAMPLED = (Column(ID, Form.STRING), Column("n", Form.INT64))
KNOWN = field_columns(SAMPLED)
Document = dict[str, Any]


def found_in(documents: Sequence[Document], room: int = 100, taken: Sequence[str] = ()) -> tuple[Column, ...]:
    raw = b"".join(map(bson.encode, documents))
    return new_fields(parse(raw), [column.name for column in KNOWN], room, taken)


def held(documents: Sequence[Document], columns: Sequence[SourceColumn]) -> list[dict[str, Any]]:
    """Rows as a load has them, by the names of columns."""
    [rows] = RowReader(columns).read(parse(b"".join(map(bson.encode, documents))))
    values = {column.name: rows.values(column).values.to_pylist() for column in columns}
    for column in columns:
        assert TYPES.cast_text(rows.text(column), column).values.equals(rows.values(column).values)
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def rest_of(row: dict[str, Any]) -> dict[str, Any]:
    """Without what it is wrapped in if its first name begins with a dollar sign."""
    rest: dict[str, Any] = json.loads(row[REST] or "{}")
    return dict(rest["$document"]) if list(rest) == ["$document"] else rest


documents = st.lists(
    st.fixed_dictionaries(
        {ID: st.just("1"), "n": st.integers(0, 9)},
        optional=dict.fromkeys(("a", "b", "A", "_op", "", REST, "x.y", "$z"), model.values),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(first=documents, later=documents, room=st.integers(0, 3))
def test_what_leaves_the_rest_is_in_its_column_and_nothing_else_moves(
    first: list[Document], later: list[Document], room: int
) -> None:
    """Whatever the columns were made from, also for documents that they were not made from."""
    columns = field_columns((*SAMPLED, *found_in(first, room)))
    assert len(columns) <= len(KNOWN) + room
    for before, now in zip(held([*first, *later], KNOWN), held([*first, *later], columns), strict=True):
        rest_before, rest_now = rest_of(before), rest_of(now)
        assert all(rest_before[name] == value for name, value in rest_now.items())
        moved = {name: value for name, value in rest_before.items() if name not in rest_now}
        for column in columns[len(KNOWN) :]:
            value = moved.pop(column.name, None)
            assert (now[column.name] is None) == (value is None)
            if column.type_name == "json":
                assert now[column.name] is None or json.loads(now[column.name]) == value
        assert moved == {}


def test_the_form_is_that_of_all_values_that_the_documents_have() -> None:
    found = found_in(
        [
            {"whole": 1, "text": "a", "both": 1, "nothing": None, "at last": None},
            {"whole": Int64(2**62), "both": "b", "paid": Decimal128("1.50"), "at last": True},
        ]
    )
    assert found == (
        Column("whole", Form.INT64, later=True),
        Column("text", Form.STRING, later=True),
        Column("both", Form.JSON, later=True),
        Column("at last", Form.BOOLEAN, later=True),
        Column("paid", Form.DECIMAL, 1, later=True),
    )


def test_a_name_that_no_table_could_have_for_a_column_is_none() -> None:
    unfit = ["_op", "_TX", "_deleted_at", REST, "N", "", "a.b", "$a", "a\nb", "x" * 256, "Given"]
    assert found_in([dict.fromkeys(unfit, 1)], taken=["given"]) == ()
    assert [column.name for column in found_in([{"Straße": 1, "STRASSE": 2}])] == ["Straße"]
    broken = bson.encode({"ab": 1}).replace(b"ab", b"\xff\xfe")
    assert new_fields(parse(broken), (), 9) == ()


def test_only_so_many_names_of_a_batch_are_looked_at() -> None:
    found = found_in([{f"user{number}": number} for number in range(3 * NAMES_MAX)], room=2_000)
    assert [column.name for column in found] == [f"user{number}" for number in range(NAMES_MAX)]


# What is remembered


LATER = (Column("a", Form.JSON, later=True), Column("b", Form.DECIMAL, 2, later=True))


def test_fields_that_came_later_are_remembered_behind_the_others_and_never_change(tmp_path: Path) -> None:
    path = tmp_path / "collections.json"
    remembered = RememberedFields(path)
    assert remembered.add_later("7", LATER, 9) == (), "a sample decides first"
    assert remembered.of("7", lambda: SAMPLED) == SAMPLED
    assert json.loads(path.read_text())["format_version"] == 1, "as earlier versions wrote it"
    assert remembered.add_later("7", LATER[:1], 9) == (*SAMPLED, LATER[0])
    other = (replace(LATER[0], form=Form.STRING), LATER[1], replace(SAMPLED[1], later=True))
    assert remembered.add_later("7", other, 2) == (*SAMPLED, *LATER)
    assert remembered.add_later("7", [Column("c", Form.JSON, later=True)], 2) == (*SAMPLED, *LATER)
    assert RememberedFields(path).of("7", tuple) == (*SAMPLED, *LATER)
    assert remembered.of("8", lambda: SAMPLED) == SAMPLED
    assert RememberedFields(path).of("7", tuple) == (*SAMPLED, *LATER)
    assert json.loads(path.read_text())["format_version"] == 2


def test_a_file_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "collections.json"
    noted = {"7": {"fields": [["_id", "string", 0], ["n", "int32", 0]]}}
    path.write_text(json.dumps({"format_version": 1, "collections": noted}))
    before = (SAMPLED[0], Column("n", Form.INT32))
    assert RememberedFields(path).of("7", tuple) == before
    assert RememberedFields(path).add_later("7", LATER[:1], 9) == (*before, LATER[0])


def _add(path: Path, names: range) -> None:
    for name in names:
        RememberedFields(path).add_later("7", [Column(f"f{name}", Form.JSON, later=True)], 50)


def test_what_several_processes_add_at_once_is_bounded_and_the_same_for_all(tmp_path: Path) -> None:
    path = tmp_path / "collections.json"
    RememberedFields(path).of("7", lambda: SAMPLED)
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_add, args=(path, range(first, 60, 2))) for first in (0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    names = [column.name for column in RememberedFields(path).of("7", tuple)]
    assert names[:2] == [ID, "n"]
    assert len(names) == len(set(names)) == 52


# The change log


class Remembering(Collections):
    """Of a collection that the catalog has as it is remembered, and of which nothing else is asked."""

    def __init__(self, path: Path, room: Room) -> None:
        self._path = path
        super().__init__(
            Selection([ORDERS]), lambda: pytest.fail("asked"), "fields", RememberedFields(path), room
        )

    def _describe(self, stream: StreamId) -> tuple[TableSchema, bool]:
        fields = RememberedFields(self._path).of("7", lambda: SAMPLED)
        return TableSchema(stream, field_columns(fields), (ID,), relation_oid=7), True


def event(time: int, document: Document) -> Document:
    return {
        "_id": {"_data": f"82{int(START) + time:016X}2B042C0100296E"},
        "operationType": "insert",
        "clusterTime": bson.Timestamp(SECOND, time),
        "ns": {"db": ORDERS.namespace, "coll": ORDERS.name},
        "documentKey": {"_id": document["_id"]},
        "fullDocument": document,
    }


def capture(directory: Path, batches: Sequence[Sequence[Document]], room: Room) -> None:
    """A capture process from the log's end on, which reads these batches of events."""
    log = ChangeLog(directory / "log")
    end, steps = log.end() or START, len(list((directory / "log").glob("*.json")))
    writer = LogWriter(directory / "log", system_id="s", timeline=1, epoch=Lsn(1), end=end, last_seq=steps)
    decoder = ChangeDecoder(Remembering(directory / "collections.json", room))
    builder = StepBuilder[EventBatch](writer, decoder, 1 << 20)
    last = max(each["clusterTime"].inc for events in batches for each in events)
    builder.demand(Lsn(START + last + 1))
    for events in batches:
        builder.take(EventBatch((read_events(parse(b"".join(map(bson.encode, events)))),), Lsn(0)))
    assert builder.take(EventBatch((), Lsn(START + last + 1)))


def logged(directory: Path) -> tuple[list[TableSchema], list[dict[str, Any]]]:
    """The versions in the order of the log, and the rows as their version has them."""
    log = ChangeLog(directory / "log")
    start, end = log.start(), log.end()
    assert start is not None
    assert end is not None
    files = log.files(ORDERS, start, end).files
    rows = [
        {name.removeprefix("_"): value for name, value in row.items()}
        for file in files
        for part in read_rows([file], start, end)
        for row in part.to_pylist()
    ]
    return [log.schema(file.schema_id) for file in files], rows


def test_a_change_that_shows_a_field_has_its_column_and_so_has_what_follows(tmp_path: Path) -> None:
    batches = [
        [event(1, {"_id": "1", "n": 1})],
        [event(2, {"_id": "2", "n": 2}), event(3, {"_id": "3", "city": "Bern"})],
        [event(4, {"_id": "4", "n": 4})],
    ]
    capture(tmp_path, batches, Room(9))
    versions, rows = logged(tmp_path)
    assert [each.names for each in versions] == [(ID, "n", REST), (ID, "n", REST, "city")]
    assert [row.get("city") for row in rows] == [None, None, "Bern", None]
    assert {row["_rest"] for row in rows} == {None}
    capture(tmp_path, [[event(5, {"_id": "5", "city": "Basel"})]], Room(9))
    versions, rows = logged(tmp_path)
    assert len({each.id for each in versions}) == 2, "a restart makes no version"
    assert rows[-1]["city"] == "Basel"


@settings(max_examples=25, deadline=None)
@given(
    shown=st.lists(st.sets(st.sampled_from("abcdef")), min_size=1, max_size=8),
    cuts=st.sets(st.integers(1, 7)),
    restarts=st.sets(st.integers(1, 7)),
    most=st.integers(0, 4),
)
def test_wherever_batches_are_cut_and_capture_begins_again_versions_only_become_wider(
    shown: list[set[str]], cuts: set[int], restarts: set[int], most: int
) -> None:
    events = [
        event(place + 1, {"_id": f"{place}", **dict.fromkeys(sorted(names), place)})
        for place, names in enumerate(shown)
    ]
    edges = [0, *sorted(place for place in restarts if place < len(events)), len(events)]
    with TemporaryDirectory() as name:
        directory = Path(name)
        for begin, end in itertools.pairwise(edges):
            inner = [begin, *sorted(cut for cut in cuts if begin < cut < end), end]
            capture(directory, [events[first:last] for first, last in itertools.pairwise(inner)], Room(most))
        versions, rows = logged(directory)
        for before, now in itertools.pairwise(versions):
            assert now.columns[: len(before.columns)] == before.columns
        assert len(versions[-1].columns) <= len(KNOWN) + most
        assert len(rows) == len(shown)
        for place, (row, names) in enumerate(zip(rows, shown, strict=True)):
            rest = json.loads(row["_rest"] or "{}")
            columns = {each: row[each] for each in "abcdef" if row.get(each) is not None}
            assert columns.keys() | rest.keys() == names
            assert not columns.keys() & rest.keys()
            assert set(columns.values()) <= {str(place)}


def test_a_collection_of_which_nothing_is_remembered_or_known_gets_no_columns(tmp_path: Path) -> None:
    batches = [[event(1, {"_id": "1", "city": "Bern"})]]
    capture(tmp_path / "none", batches, Room(0))
    [version], [row] = logged(tmp_path / "none")
    assert version.names == (ID, "n", REST)
    assert json.loads(row["_rest"]) == {"city": "Bern"}


# Tables


def version_of(names: Sequence[str], *, order: Sequence[int] = ()) -> TableSchema:
    later = [Column(name, Form.STRING, later=True) for name in names]
    columns = field_columns((*SAMPLED, *(later[place] for place in order or range(len(later)))))
    return TableSchema(ORDERS, columns, (ID,), relation_oid=7)


@given(
    base=st.sets(st.sampled_from("abcd")), others=st.lists(st.permutations("abcd"), max_size=4), cut=st.data()
)
def test_a_table_keeps_columns_that_versions_lack_whichever_order_those_come_in(
    base: set[str], others: list[list[str]], cut: st.DataObject
) -> None:
    held = version_of(sorted(base))
    versions = [version_of(names[: cut.draw(st.integers(0, 4))]) for names in others]
    files = [LogFile(Path("f"), each.id, str(ORDERS), 0, 0, {}, 0, 0) for each in versions]
    plan = plan_schema(held, files, {each.id: each for each in versions}.__getitem__)
    assert isinstance(plan, SchemaPlan)
    assert plan.schema.columns[: len(held.columns)] == held.columns
    assert set(plan.schema.names) == set(held.names).union(*(each.names for each in versions))
    for each in versions:
        assert plan.columns[each.id] == tuple(
            ColumnSource(name, name if name in each.names else None) for name in plan.schema.names
        )
    added = set(plan.schema.names) - set(held.names)
    assert (plan.rewrite is not None) == bool(added)


def test_a_value_that_was_not_sent_is_unknown_in_the_column_that_it_would_be_in() -> None:
    """Rows of a version without a column say of `_rest` alone that they do not know it."""
    before, now = version_of([]), version_of(["city", "zip"])
    rows: list[dict[str, Any]] = [
        {"_op": "u", "__id": "1", "n": "1"},
        {"_op": "u", "__id": "2", "_unchanged": ["n", REST]},
        {"_op": "u", "__id": "3", "_unchanged": []},
        {"_op": "u", "__id": "4", "_unchanged": ["n"]},
        {"_op": "u", "__id": "5", "_unchanged": [REST]},
    ]
    for rename in ({}, {"city": "town", REST: "others"}):
        target = Target(now, "upsert", rename)
        found = changes_of(before, rows)
        plan = plan_evolution(before, now)
        conformed = conform(pa.Table.from_batches([found.rows]), plan.columns, now)
        names = [target.name(name) for name in now.names]
        changes = conformed.changes(
            conformed.text.rename_columns(names), conformed.old.rename_columns(names), target, None
        )
        assert changes.unchanged is not None
        told = [target.name(name) for name in (REST, "city", "zip")]
        assert changes.unchanged.to_pylist() == [None, ["n", *told], [], ["n"], told]


def test_who_holds_the_rest_holds_what_moved_out_of_it_and_who_masks_it_masks_that() -> None:
    schema = version_of(["city"])
    changes = changes_of(schema, [{"_op": "i", "__id": "1"}])
    for chosen, names in (
        ((ID, REST), (ID, REST, "city")),
        ((ID, "n"), (ID, "n")),
        ((ID, "city"), (ID, "city")),
        ((), schema.names),
    ):
        part = core_selection.Selection(chosen)
        assert part.of(schema).names == names
        assert part.of(schema).key == (ID,)
        assert StreamSelection(ORDERS, part, (ID,)).columns(changes) == names

    def masks(**kinds: str) -> dict[str, str]:
        asked = tuple(kinds.items())
        return dict(_masks(asked, (ID,), changes, {}, _Table(schema)))  # type: ignore[arg-type]

    assert masks(n="null", _rest="sha256") == {"n": "null", REST: "sha256", "city": "sha256"}
    assert masks(_rest="null", city="redact") == {REST: "null", "city": "redact"}
    assert masks(n="null") == {"n": "null"}


class _Table:
    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema


def test_a_comparison_leaves_out_what_older_rows_have_in_the_rest() -> None:
    assert comparable(version_of([]), version_of([])) == (version_of([]), ())
    for held, source in ((["city"], ["city"]), ([], ["city"])):
        schema, left_out = comparable(version_of(held), version_of(source))
        assert schema.names == (ID, "n")
        assert set(left_out) == {REST, "city"}


def test_what_came_later_is_no_other_table_and_says_nothing_in_versions_without_it() -> None:
    assert version_of(["a", "b"]).lasting == version_of([])
    assert all("moved_from" not in column.to_json() for column in version_of([]).columns)
    grown = version_of(["a"])
    assert TableSchema.from_json(grown.to_json()) == grown


# Loads


def collection(schema: TableSchema) -> CollectionInfo:
    leaf = CollectionLeaf(
        stream=ORDERS,
        oid=7,
        filenode=7,
        bytes=0,
        estimated_rows=0,
        kind="collection",
        collated=False,
        columns=schema.columns,
    )
    return CollectionInfo(
        stream=ORDERS,
        oid=7,
        kind="collection",
        schema=schema,
        leaves=(leaf,),
        primary_key=(ID,),
        images=False,
        collated=False,
        encrypted=False,
        fields=SAMPLED,
    )


def load_of(schema: TableSchema) -> LoadRecord:
    return LoadRecord("l", "g", ORDERS, "key", ID, schema, {}, (LoadPoint(START, ""),), ())


@pytest.mark.parametrize("chosen", [(), (ID, REST), (ID, "n")])
def test_a_load_goes_on_with_the_columns_that_it_began_with_when_others_came(
    chosen: tuple[str, ...],
) -> None:
    """And its `_rest` is what none of those has, whichever there are by now."""
    part = core_selection.Selection(chosen)
    begun, now = part.of(version_of(["a"])), part.of(version_of(["a", "b"]))
    info = replace(collection(version_of(["a", "b"])), schema=now)
    configured = LaneStream(info, "cdc", "upsert", {}, selection=part)
    going_on = _as_begun(configured, load_of(begun))
    assert going_on.target().schema == begun
    [leaf] = going_on.info.leaves
    assert isinstance(leaf, CollectionLeaf)
    if REST in begun.names:
        assert leaf.columns == version_of(["a"]).columns
    assert fingerprints([configured]) == fingerprints([going_on])


def test_a_load_of_a_table_that_changed_otherwise_does_not_go_on() -> None:
    other = replace(version_of([]), columns=field_columns((SAMPLED[0], Column("n", Form.DOUBLE))))
    for now in (other, replace(version_of(["b"]), relation_oid=8)):
        configured = LaneStream(collection(now), "cdc", "upsert", {})
        assert _as_begun(configured, load_of(version_of(["a"]))) == configured
    same = LaneStream(collection(version_of(["a"])), "cdc", "upsert", {})
    assert _as_begun(same, load_of(version_of(["a"]))) == same
    assert fingerprints([same]) != fingerprints([LaneStream(collection(other), "cdc", "upsert", {})])
