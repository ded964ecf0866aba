"""Debezium's JSON against documents written by hand from its documentation, and against Python's types."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import __version__
from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.streams.encoding.column_encoder import UNENCODABLE, ColumnEncoder
from penstock.streams.encoding.debezium import DebeziumFormat
from penstock.streams.encoding.json_format import JsonFormat
from penstock.streams.encoding.modes import Modes
from penstock.streams.encoding.view import StreamView
from penstock.streams.events import Events
from tests.stream_changes import Change, changes_of, column, numeric_modifier

STREAM = StreamId("public", "customers")
NOW_NS = 1_769_860_800_130_654_321
CUSTOMERS = [
    column("id", "int4"),
    column("first_name", "varchar"),
    column("notes", "text"),
    column("codes", "_int4", element="int4"),
]
VIEW = StreamView(
    STREAM, "t", ("id", "first_name", "notes", "codes"), ("id",), prefix="server", database="shop"
)
ANNE = {"id": "1", "first_name": "Anne", "notes": 'a "note"', "codes": "{1,NULL,3}"}
EXACT = Context(prec=1_000)
UNAVAILABLE = "__debezium_unavailable_value"


def encode(
    given_changes: Sequence[Change],
    columns: Sequence[SourceColumn] = CUSTOMERS,
    view: StreamView = VIEW,
    modes: Modes | None = None,
    schemas: bool = False,
) -> Events:
    own = ColumnEncoder(JsonFormat(), clock_ns=lambda: NOW_NS)
    form = DebeziumFormat(modes or Modes(), schemas)
    debezium = ColumnEncoder(form, otherwise=own, clock_ns=lambda: NOW_NS)
    return debezium.encode(changes_of(STREAM, columns, given_changes), view)


def documents(events: Events) -> list[Any]:
    return [None if each is None else json.loads(each) for each in events.value.to_pylist()]


def envelope(
    op: str, before: Any, after: Any, *, snapshot: str = "false", op_index: int = 2
) -> dict[str, Any]:
    return {
        "before": before,
        "after": after,
        "source": {
            "version": __version__,
            "connector": "postgresql",
            "name": "server",
            "ts_ms": 1769860800123,
            "snapshot": snapshot,
            "db": "shop",
            "sequence": f'["26800664","{op_index}"]',
            "ts_us": 1769860800123456,
            "ts_ns": 1769860800123456000,
            "schema": "public",
            "table": "customers",
            "txId": 741,
            "lsn": 26800664,
            "xmin": None,
        },
        "transaction": None,
        "op": op,
        "ts_ms": 1769860800130,
        "ts_us": 1769860800130654,
        "ts_ns": 1769860800130654000,
    }


ANNE_TOLD = {"id": 1, "first_name": "Anne", "notes": 'a "note"', "codes": [1, None, 3]}


def test_a_create_is_told_as_the_connector_does() -> None:
    events = encode([Change("i", ANNE)])
    assert documents(events) == [envelope("c", None, ANNE_TOLD)]
    assert events.key.to_pylist() == [b'{"id":1}']


def test_loaded_rows_are_of_a_snapshot() -> None:
    assert documents(encode([Change("r", ANNE)])) == [envelope("r", None, ANNE_TOLD, snapshot="true")]


def test_an_update_has_the_old_row_if_the_source_told_it() -> None:
    new = ANNE | {"first_name": "Anna"}
    assert documents(encode([Change("u", new, ANNE), Change("u", new)])) == [
        envelope("u", ANNE_TOLD, ANNE_TOLD | {"first_name": "Anna"}),
        envelope("u", None, ANNE_TOLD | {"first_name": "Anna"}),
    ]


def test_a_delete_has_what_is_known_of_the_row_and_is_followed_by_a_tombstone() -> None:
    events = encode([Change("d", None, {"id": "1"}, old_kind="k")])
    known = {"id": 1, "first_name": None, "notes": None, "codes": None}
    assert documents(events) == [envelope("d", known, None), None]
    assert events.key.to_pylist() == [b'{"id":1}', b'{"id":1}']


def test_a_changed_key_is_a_delete_a_tombstone_and_a_create() -> None:
    events = encode([Change("u", ANNE | {"id": "2"}, {"id": "1"}, old_kind="k")])
    known = {"id": 1, "first_name": None, "notes": None, "codes": None}
    assert documents(events) == [
        envelope("d", known, None),
        None,
        envelope("c", None, ANNE_TOLD | {"id": 2}, op_index=3),
    ]
    assert events.key.to_pylist() == [b'{"id":1}', b'{"id":1}', b'{"id":2}']
    assert {name: texts.to_pylist() for name, texts in events.headers.items()} == {
        "__debezium.oldkey": [None, None, '{"id":1}'],
        "__debezium.newkey": ['{"id":2}', None, None],
    }


def test_a_truncate_has_neither_rows_nor_a_key() -> None:
    events = encode([Change("t")])
    assert documents(events) == [envelope("t", None, None)]
    assert events.key.to_pylist() == [None]


def test_values_the_source_did_not_send_have_the_placeholder_of_their_type() -> None:
    columns = [*CUSTOMERS, column("tags", "_text", element="text"), column("photo", "bytea")]
    view = StreamView(
        STREAM, "t", tuple(each.name for each in columns), ("id",), prefix="server", database="shop"
    )
    unchanged = ("notes", "codes", "tags", "photo")
    new = {"id": "1", "first_name": "Anne"}
    (told,) = documents(encode([Change("u", new, unchanged=unchanged)], columns, view))
    assert told["after"] == {
        "id": 1,
        "first_name": "Anne",
        "notes": UNAVAILABLE,
        "codes": list(UNAVAILABLE.encode()),
        "tags": [UNAVAILABLE],
        "photo": base64.b64encode(UNAVAILABLE.encode()).decode(),
    }


def test_with_schemas_each_part_says_its_own() -> None:
    columns = [
        column("id", "int4"),
        column("price", "numeric", numeric_modifier(12, 2)),
        column("weight", "numeric"),
        column("at", "timestamp", 3),
        column("tags", "_date", element="date"),
    ]
    view = StreamView(
        STREAM, "t", tuple(each.name for each in columns), ("id",), prefix="my-server", database="d"
    )
    row = {
        "id": "1",
        "price": "12.34",
        "weight": "1.5",
        "at": "2018-06-20 15:13:16.945",
        "tags": "{1970-01-02}",
    }
    events = encode([Change("i", row)], columns, view, schemas=True)
    key = json.loads(events.key[0].as_py())
    assert key == {
        "schema": {
            "type": "struct",
            "fields": [{"type": "int32", "optional": False, "field": "id"}],
            "optional": False,
            "name": "my_server.public.customers.Key",
        },
        "payload": {"id": 1},
    }
    (value,) = documents(events)
    assert value["payload"]["after"] == {
        "id": 1,
        "price": "BNI=",
        "weight": {"scale": 1, "value": "Dw=="},
        "at": 1529507596945,
        "tags": [1],
    }
    assert value["schema"]["name"] == "my_server.public.customers.Envelope"
    after = value["schema"]["fields"][1]
    assert (after["field"], after["name"]) == ("after", "my_server.public.customers.Value")
    assert after["fields"] == [
        {"type": "int32", "optional": False, "field": "id"},
        {
            "type": "bytes",
            "optional": True,
            "name": "org.apache.kafka.connect.data.Decimal",
            "version": 1,
            "parameters": {"scale": "2", "connect.decimal.precision": "12"},
            "field": "price",
        },
        {
            "type": "struct",
            "optional": True,
            "fields": [
                {"type": "int32", "optional": False, "field": "scale"},
                {"type": "bytes", "optional": False, "field": "value"},
            ],
            "name": "io.debezium.data.VariableScaleDecimal",
            "version": 1,
            "field": "weight",
        },
        {
            "type": "int64",
            "optional": True,
            "name": "io.debezium.time.Timestamp",
            "version": 1,
            "field": "at",
        },
        {
            "type": "array",
            "optional": True,
            "items": {"type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1},
            "field": "tags",
        },
    ]
    named = [each["field"] for each in value["schema"]["fields"]]
    assert named == list(value["payload"])
    assert [each["field"] for each in value["schema"]["fields"][2]["fields"]] == list(
        value["payload"]["source"]
    )


def told(
    type_name: str, texts: Sequence[str | None], modifier: int = -1, **options: Any
) -> tuple[list[Any], set[int]]:
    """What a column's values become, and which are refused."""
    modes = Modes(**{name: value for name, value in options.items() if name in Modes.__slots__})
    element = options.get("element", "")
    oid = options.get("oid", 1)
    columns = [column("id", "int4"), column("v", type_name, modifier, oid=oid, element=element)]
    view = StreamView(STREAM, "t", ("id", "v"), ("id",))
    rows = [Change("i", {"id": str(number), "v": text}) for number, text in enumerate(texts)]
    events = encode(rows, columns, view, modes)
    assert all(code == UNENCODABLE for code, _ in events.refused.values())
    return [each["after"]["v"] for each in documents(events)], set(events.refused)


PLACES: list[tuple[str, int, dict[str, Any], str, Any]] = [
    ("bool", -1, {}, "f", False),
    ("int8", -1, {}, "9223372036854775807", 9223372036854775807),
    ("oid", -1, {}, "4294967295", 4294967295),
    ("float8", -1, {}, "NaN", "NaN"),
    ("json", -1, {}, '{"a": 1}', '{"a": 1}'),
    ("uuid", -1, {}, "0b9a4f0e-8d3c-4f5e-9a7b-1c2d3e4f5a6b", "0b9a4f0e-8d3c-4f5e-9a7b-1c2d3e4f5a6b"),
    ("bit", 1, {}, "1", True),
    ("bit", 1, {}, "0", False),
    ("bit", 4, {}, "1010", base64.b64encode(b"\x0a").decode()),
    ("varbit", -1, {}, "1000000001", base64.b64encode(b"\x01\x02").decode()),
    ("varbit", -1, {}, "0", ""),
    ("money", -1, {}, "-$1,234.56", base64.b64encode((-123456).to_bytes(3, "big", signed=True)).decode()),
    ("money", -1, {"decimals": "string"}, "$1,234.56", "1234.56"),
    ("money", -1, {"decimals": "double"}, "$1,234.56", 1234.56),
    ("numeric", -1, {"decimals": "string"}, "12.340", "12.340"),
    ("numeric", -1, {"decimals": "string"}, "NaN", "NAN"),
    ("numeric", -1, {"decimals": "double"}, "12.340", 12.34),
    ("numeric", -1, {"decimals": "double"}, "NaN", "NaN"),
    ("numeric", numeric_modifier(3, -2), {}, "1200", base64.b64encode((1200).to_bytes(2, "big")).decode()),
    ("date", -1, {}, "1970-01-11", 10),
    ("date", -1, {}, "infinity", 2147483647),
    ("date", -1, {"times": "isostring"}, "2023-11-21", "2023-11-21Z"),
    ("time", -1, {}, "10:20:30.123456", 37230123456),
    ("time", 3, {}, "10:20:30.123", 37230123),
    ("time", 3, {"times": "adaptive_time_microseconds"}, "10:20:30.123", 37230123000),
    ("time", -1, {"times": "connect"}, "10:20:30.123456", 37230123),
    ("time", -1, {}, "24:00:00", 86400000000),
    ("time", -1, {"times": "isostring"}, "10:20:30.5", "10:20:30.5Z"),
    ("timestamp", -1, {}, "2018-06-20 15:13:16.945104", 1529507596945104),
    ("timestamp", 3, {}, "2018-06-20 15:13:16.945", 1529507596945),
    ("timestamp", -1, {"times": "connect"}, "2018-06-20 15:13:16.945104", 1529507596945),
    ("timestamp", -1, {}, "infinity", 9223372036825200000),
    ("timestamp", -1, {}, "-infinity", -9223372036832400000),
    ("timestamp", -1, {"times": "isostring"}, "2018-06-20 15:13:16", "2018-06-20T15:13:16Z"),
    ("timestamptz", -1, {}, "2018-06-20 13:37:03.1+00", "2018-06-20T13:37:03.100000Z"),
    ("timestamptz", 3, {}, "2018-06-20 13:37:03+02", "2018-06-20T11:37:03.000Z"),
    ("timestamptz", -1, {}, "infinity", "infinity"),
    ("timestamptz", -1, {}, "0001-01-01 00:00:00+00 BC", "0000-01-01T00:00:00.000000Z"),
    ("timestamptz", -1, {}, "12345-01-01 00:00:00+00", "+12345-01-01T00:00:00.000000Z"),
    ("timetz", -1, {}, "12:20:30.5+02", "10:20:30.5Z"),
    ("timetz", -1, {}, "00:20:30+05:30", "18:50:30Z"),
    ("timetz", -1, {}, "24:00:00+00", "24:00:00Z"),
    ("interval", -1, {}, "P1Y2M3DT4H5M6.78S", 37091106780000),
    ("interval", -1, {}, "P-1DT-0.5S", -86400500000),
    ("interval", -1, {"intervals": "string"}, "P1Y2M3DT4H5M6.78S", "P1Y2M3DT4H5M6.78S"),
    ("interval", -1, {"intervals": "string"}, "P-1M", "P0Y-1M0DT0H0M0S"),
    ("bytea", -1, {}, "\\xfbff01", "+/8B"),
    ("bytea", -1, {"binary": "base64-url-safe"}, "\\xfbff", "-_8="),
    ("bytea", -1, {"binary": "hex"}, "\\xfbff", "fbff"),
    ("_text", -1, {"element": "text"}, '{a,"b \\"c\\"",NULL}', ["a", 'b "c"', None]),
    ("_bool", -1, {"element": "bool"}, "{t,f}", [True, False]),
    ("_int8", -1, {"element": "int8"}, "{}", []),
    ("_numeric", numeric_modifier(5, 1), {"element": "numeric"}, "{1.5,NULL}", ["Dw==", None]),
    (
        "_timestamptz",
        -1,
        {"element": "timestamptz"},
        '{"2018-06-20 13:37:03+00"}',
        ["2018-06-20T13:37:03.000000Z"],
    ),
    ("_mood", -1, {"element": "public.mood"}, "{sad}", ["sad"]),
    ("hstore", -1, {"oid": 20_000}, '"a"=>"1", "b \\"x\\""=>NULL', '{"a":"1","b \\"x\\"":null}'),
    ("mood", -1, {"oid": 20_000}, "sad", "sad"),
    ("inet", -1, {}, "10.0.0.1", "10.0.0.1"),
    ("int4range", -1, {}, "[1,5)", "[1,5)"),
]


@pytest.mark.parametrize(("type_name", "modifier", "options", "text", "expected"), PLACES)
def test_each_type_is_what_the_connector_makes_of_it(
    type_name: str, modifier: int, options: dict[str, Any], text: str, expected: Any
) -> None:
    assert told(type_name, [None, text, None], modifier, **options) == ([None, expected, None], set())


@pytest.mark.parametrize(
    ("type_name", "modifier", "text", "element"),
    [
        ("numeric", numeric_modifier(5, 1), "NaN", ""),
        ("numeric", -1, "-Infinity", ""),
        ("timestamp", -1, "294276-12-31 23:59:59", ""),
        ("interval", -1, "infinity", ""),
        ("_int4", -1, "{{1,2},{3,4}}", "int4"),
        ("_numeric", -1, "{1,NaN}", "numeric"),
    ],
)
def test_what_has_no_form_is_refused_and_told_in_our_own_json(
    type_name: str, modifier: int, text: str, element: str
) -> None:
    columns = [column("id", "int4"), column("v", type_name, modifier, element=element)]
    view = StreamView(STREAM, "t", ("id", "v"), ("id",))
    changes = [
        Change("i", {"id": "1", "v": None}),
        Change("u", {"id": "3", "v": None}, {"id": "2", "v": text}),
        Change("i", {"id": "4", "v": None}),
    ]
    events = encode(changes, columns, view)
    assert set(events.refused) == {1, 2, 3}
    found = documents(events)
    assert found[1]["before"] == {"id": 2, "v": text}
    assert found[1]["source"]["tx"] == 26800664
    assert found[2] is None
    assert found[3]["op"] == "c"
    assert found[4]["transaction"] is None
    assert set(events.slice(2, 5).refused) == {0, 1}


def test_a_refused_row_gives_the_same_events_in_our_own_json_whichever_key_each_format_sees() -> None:
    columns = [column("at", "timestamp"), column("v", "numeric")]
    view = StreamView(STREAM, "t", ("at", "v"), ("at",))
    before, after = "2026-01-01 00:00:00.000001", "2026-01-01 00:00:00.000002"  # one millisecond
    events = encode(
        [Change("u", {"at": after, "v": "NaN"}, {"at": before, "v": "1"})],
        columns,
        view,
        Modes(times="connect"),
    )
    assert len(events) == 1
    assert set(events.refused) == {0}
    assert documents(events)[0]["after"] == {"at": after, "v": "NaN"}


@settings(deadline=None)
@given(st.lists(st.none() | st.decimals(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_decimals_without_a_scale_keep_every_digit(numbers: list[Decimal | None]) -> None:
    texts = [None if number is None else f"{number:f}" for number in numbers]
    for text, found in zip(texts, told("numeric", texts)[0], strict=True):
        if text is None:
            assert found is None
            continue
        unscaled = int.from_bytes(base64.b64decode(found["value"]), "big", signed=True)
        assert Decimal(unscaled).scaleb(-found["scale"], EXACT) == Decimal(text)
        assert found["scale"] >= 0
        assert len(base64.b64decode(found["value"])) == (unscaled + (unscaled < 0)).bit_length() // 8 + 1


@settings(deadline=None)
@given(st.lists(st.integers(-(10**60), 10**60), min_size=1, max_size=5), st.integers(0, 20))
def test_decimals_with_a_scale_are_their_digits(numbers: list[int], scale: int) -> None:
    texts = [f"{Decimal(number).scaleb(-scale, EXACT):f}" for number in numbers]
    found, refused = told("numeric", texts, numeric_modifier(100, scale))
    assert not refused
    assert [int.from_bytes(base64.b64decode(each), "big", signed=True) for each in found] == numbers


@settings(deadline=None)
@given(st.lists(st.datetimes(), min_size=1, max_size=5))
def test_instants_are_those_of_the_calendar(instants: list[datetime]) -> None:
    texts = [each.isoformat(" ") for each in instants]
    micros = [(each - datetime(1970, 1, 1)) // timedelta(microseconds=1) for each in instants]
    assert told("timestamp", texts)[0] == micros
    zoned = [each.replace(tzinfo=UTC).isoformat(timespec="microseconds")[:-6] + "Z" for each in instants]
    assert told("timestamptz", [f"{text}+00" for text in texts])[0] == zoned
    days = [(each.date() - date(1970, 1, 1)).days for each in instants]
    assert told("date", [each.date().isoformat() for each in instants])[0] == days


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.lists(st.times(), min_size=1, max_size=5))
def test_bytes_and_clocks_are_pythons(values: list[bytes], clocks: list[time]) -> None:
    texts = ["\\x" + value.hex() for value in values]
    assert told("bytea", texts)[0] == [base64.b64encode(value).decode() for value in values]
    micros = [((c.hour * 60 + c.minute) * 60 + c.second) * 1_000_000 + c.microsecond for c in clocks]
    assert told("time", [each.isoformat() for each in clocks])[0] == micros


@settings(deadline=None)
@given(
    st.lists(
        st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8), max_size=5
    )
)
def test_arrays_of_text_keep_their_elements(elements: list[str | None]) -> None:
    literal = ",".join(
        "NULL" if each is None else '"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for each in elements
    )
    assert told("_text", [f"{{{literal}}}"], element="text") == ([elements], set())
