"""Avro and Protobuf, read back by the libraries of others with the schemas that the registry holds."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import SchemaRefusedError, TargetError
from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.streams.encoding.encoder import Encoder, EncodingSettings, RegistrySettings, encoder
from penstock.streams.encoding.protobuf import Message, next_version
from penstock.streams.encoding.settings import FormatName
from penstock.streams.encoding.view import StreamView
from penstock.streams.events import Events
from tests.registry_reading import avro, protobuf, protobuf_class
from tests.schema_registry import SchemaRegistry, schema_registry
from tests.stream_changes import COMMIT_US, Change, Row, changes_of, column, numeric_modifier

STREAM = StreamId("public", "my orders")
COLUMNS = [
    column("id", "int8"),
    column("paid", "bool"),
    column("small", "int2"),
    column("ratio", "float4"),
    column("score", "float8"),
    column("price", "numeric", numeric_modifier(30, 4)),
    column("weight", "numeric"),
    column("day", "date"),
    column("at", "timestamp"),
    column("since", "timestamptz"),
    column("photo", "bytea"),
    column("token", "uuid"),
    column("zwölf €", "text"),
    column("doc", "jsonb"),
]
NAMES = tuple(each.name for each in COLUMNS)
VIEW = StreamView(STREAM, "shop.orders", NAMES, ("id", "zwölf €"), prefix="shop")
ROW: Row = {
    "id": "-9223372036854775808",
    "paid": "t",
    "small": "-7",
    "ratio": "0.5",
    "score": "-1e+300",
    "price": "-12345678901234567890.1234",
    "weight": "NaN",
    "day": "2026-01-31",
    "at": "1969-12-31 23:59:59.999999",
    "since": "2026-01-31 12:00:00.5+00",
    "photo": "\\x00ff",
    "token": "0b9a4f0e-8d3c-4f5e-9a7b-1c2d3e4f5a6b",
    "zwölf €": 'a"\n\u0001😀',
    "doc": '{"a": [1, null]}',
}
AVRO_ROW = {
    "id": -(2**63),
    "paid": True,
    "small": -7,
    "ratio": 0.5,
    "score": -1e300,
    "price": Decimal("-12345678901234567890.1234"),
    "weight": "NaN",
    "day": date(2026, 1, 31),
    "at": datetime(1969, 12, 31, 23, 59, 59, 999999),
    "since": datetime(2026, 1, 31, 12, 0, 0, 500000, UTC),
    "photo": b"\0\xff",
    "token": UUID("0b9a4f0e-8d3c-4f5e-9a7b-1c2d3e4f5a6b"),
    "zw_lf__": ROW["zwölf €"],
    "doc": ROW["doc"],
}
PROTOBUF_ROW = {name: ROW[name] for name in ("price", "weight", "day", "at", "since", "token", "doc")} | {
    name: AVRO_ROW[name] for name in ("id", "paid", "small", "ratio", "score", "photo", "zw_lf__")
}
NULLS: Row = dict.fromkeys(NAMES) | {"id": "1", "zwölf €": ""}


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[SchemaRegistry, Encoder, Encoder]]:
    """A registry, and encoders that use it, for many examples."""
    with schema_registry() as registry:
        yield registry, made("avro", registry), made("protobuf", registry)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as registry:
        yield registry


def made(form: FormatName, registry: SchemaRegistry) -> Encoder:
    return encoder(EncodingSettings(form, RegistrySettings(registry.url)))


def encode(
    made_encoder: Encoder,
    changes: Sequence[Change],
    columns: Sequence[SourceColumn] = COLUMNS,
    view: StreamView = VIEW,
) -> Events:
    return made_encoder.encode(changes_of(STREAM, columns, changes), view)


def plain(message: Any) -> dict[str, Any]:
    return {field.name: value for field, value in message.ListFields()}


def test_avro_tells_the_same_fields_in_types_of_its_own(registry: SchemaRegistry) -> None:
    events = encode(made("avro", registry), [Change("i", ROW, tx=5), Change("d", None, NULLS), Change("t")])
    created, deleted, tombstone, truncated = [avro(registry, each) for each in events.value.to_pylist()]
    assert created.pop("ts_ms").tzinfo is not None
    assert created == {
        "op": "c",
        "before": None,
        "after": AVRO_ROW,
        "unchanged": [],
        "source": {
            "schema": "public",
            "table": "my orders",
            "lsn": 5,
            "txid": 741,
            "commit_ts": datetime.fromtimestamp(COMMIT_US // 1_000_000, UTC).replace(microsecond=123456),
            "tx": 5,
            "op_index": 2,
            "snapshot": False,
        },
    }
    assert (deleted["op"], deleted["after"]) == ("d", None)
    assert deleted["before"] == dict.fromkeys(AVRO_ROW) | {"id": 1, "zw_lf__": ""}
    assert tombstone is None
    assert (truncated["op"], truncated["before"], truncated["after"]) == ("t", None, None)
    keys = [avro(registry, each) for each in events.key.to_pylist()]
    assert keys[0] == {"id": -(2**63), "zw_lf__": ROW["zwölf €"]}
    assert keys[1] == keys[2] == {"id": 1, "zw_lf__": ""}
    assert keys[3] is None


#: Columns of MySQL, a text of each, and what Avro's and Protobuf's readers give.
OF_MYSQL: dict[str, tuple[SourceColumn, str, Any, Any]] = {
    name: (SourceColumn(name, 0, modifier, kind, kind, family="mysql"), text, of_avro, of_protobuf)
    for name, kind, modifier, text, of_avro, of_protobuf in (
        ("id", "int", -1, "7", 7, 7),
        ("large", "bigint unsigned", -1, str(2**64 - 1), Decimal(2**64 - 1), 2**64 - 1),
        ("year", "year", -1, "0000", 0, 0),
        ("flag", "bit", 1, "1", True, True),
        ("raw", "varbinary", -1, "00ff", b"\x00\xff", b"\x00\xff"),
        ("price", "decimal", 12 << 16 | 2, "-3.10", Decimal("-3.10"), "-3.10"),
        ("day", "date", -1, "2026-01-31", date(2026, 1, 31), "2026-01-31"),
        ("zero", "time", 0, "-838:59:59", "-838:59:59", "-838:59:59"),
    )
}


def test_columns_of_mysql_have_the_types_of_their_values(registry: SchemaRegistry) -> None:
    columns = [column for column, *_ in OF_MYSQL.values()]
    view = StreamView(STREAM, "mysql", tuple(OF_MYSQL), ("id",))
    change = Change("i", {name: text for name, (_, text, *_) in OF_MYSQL.items()})
    told = encode(made("avro", registry), [change], columns, view)
    row = avro(registry, told.value[0].as_py())["after"]
    assert row == {name: expected for name, (_, _, expected, _) in OF_MYSQL.items()}
    view = StreamView(STREAM, "mysql_protobuf", tuple(OF_MYSQL), ("id",))
    told = encode(made("protobuf", registry), [change], columns, view)
    found = plain(protobuf(registry, told.value[0].as_py()).after)
    assert found == {name: expected for name, (*_, expected) in OF_MYSQL.items()}


def test_avro_refuses_days_that_are_none(registry: SchemaRegistry) -> None:
    key, day = (OF_MYSQL[name][0] for name in ("id", "day"))
    view = StreamView(STREAM, "days", ("id", "day"), ("id",))
    told = encode(made("avro", registry), [Change("i", {"id": "1", "day": "0000-00-00"})], [key, day], view)
    assert list(told.refused) == [0]


def test_avro_lists_what_the_source_did_not_send(registry: SchemaRegistry) -> None:
    new = ROW | {"doc": None, "zwölf €": "x"}
    events = encode(made("avro", registry), [Change("u", new, unchanged=("doc",)), Change("r", ROW)])
    updated, loaded = [avro(registry, each) for each in events.value.to_pylist()]
    assert (updated["unchanged"], updated["after"]["doc"]) == (["doc"], None)
    assert (loaded["op"], loaded["source"]["snapshot"], loaded["unchanged"]) == ("r", True, [])


def test_avro_refuses_what_its_types_cannot_hold(registry: SchemaRegistry) -> None:
    changed: list[Row] = [{}, {"price": "NaN"}, {"day": "infinity"}, {"at": "-infinity"}]
    rows = [ROW | change for change in changed]
    events = encode(made("avro", registry), [Change("i", row) for row in rows])
    assert set(events.refused) == {1, 2, 3}
    assert json.loads(events.value[2].as_py())["after"]["day"] == "infinity"
    assert avro(registry, events.value[0].as_py())["after"] == AVRO_ROW


def test_protobuf_tells_the_same_fields_and_leaves_nulls_out(registry: SchemaRegistry) -> None:
    changes = [Change("i", ROW, tx=5), Change("u", ROW, NULLS | {"id": ROW["id"], "zwölf €": ROW["zwölf €"]})]
    events = encode(made("protobuf", registry), [*changes, Change("d", None, NULLS), Change("r", NULLS)])
    created, updated, deleted, tombstone, loaded = [
        protobuf(registry, each) for each in events.value.to_pylist()
    ]
    assert (created.op, created.HasField("before"), plain(created.after)) == ("c", False, PROTOBUF_ROW)
    assert plain(created.source) == {
        "schema": "public",
        "table": "my orders",
        "lsn": 5,
        "txid": 741,
        "commit_us": COMMIT_US,
        "tx": 5,
        "op_index": 2,
    }
    assert created.ts_ms > COMMIT_US // 1000
    assert plain(updated.before) == {"id": -(2**63), "zw_lf__": ROW["zwölf €"]}
    assert (deleted.op, plain(deleted.before)) == ("d", {"id": 1, "zw_lf__": ""})
    assert tombstone is None
    assert (loaded.op, loaded.source.snapshot) == ("r", True)
    assert plain(protobuf(registry, events.key[0].as_py())) == {"id": -(2**63), "zw_lf__": ROW["zwölf €"]}


def test_protobuf_lists_what_the_source_did_not_send(registry: SchemaRegistry) -> None:
    new = ROW | {"doc": None, "photo": None}
    events = encode(made("protobuf", registry), [Change("u", new, unchanged=("photo", "doc"))])
    updated = protobuf(registry, events.value[0].as_py())
    assert list(updated.unchanged) == ["photo", "doc"]
    assert not updated.after.HasField("doc")


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)
SOME = [
    column("id", "int8"),
    column("n", "int4"),
    column("f", "float8"),
    column("t", "text"),
    column("b", "bytea"),
]
SOME_ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "n": st.none() | st.integers(-(2**31), 2**31 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "t": st.none() | TEXT,
        "b": st.none() | st.binary(max_size=150),
    }
)


def _texts(row: dict[str, Any]) -> Row:
    printed = {name: None if value is None else str(value) for name, value in row.items()}
    infinite = {math.inf: "Infinity", -math.inf: "-Infinity"}
    if row["f"] in infinite:
        printed["f"] = infinite[row["f"]]
    return printed | {"b": None if row["b"] is None else "\\x" + row["b"].hex()}


@settings(deadline=None)
@given(pairs=st.lists(st.tuples(SOME_ROWS, SOME_ROWS), min_size=1, max_size=4))
def test_every_value_is_read_back_as_it_was(
    both: tuple[SchemaRegistry, Encoder, Encoder], pairs: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    registry, to_avro, to_protobuf = both
    view = StreamView(STREAM, "some", tuple(each.name for each in SOME), ("id",), prefix="p")
    pairs = [(old, new | {"id": old["id"]}) for old, new in pairs]
    changes = [Change("u", _texts(new), _texts(old)) for old, new in pairs]
    found = [avro(registry, each) for each in encode(to_avro, changes, SOME, view).value.to_pylist()]
    assert [(each["before"], each["after"]) for each in found] == pairs
    told = encode(to_protobuf, changes, SOME, replace(view, route="some-protobuf"))
    messages = [protobuf(registry, each) for each in told.value.to_pylist()]
    there = [tuple({n: v for n, v in row.items() if v is not None} for row in pair) for pair in pairs]
    assert [(plain(each.before), plain(each.after)) for each in messages] == there


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_a_schema_is_registered_once_and_again_when_a_column_is_added(
    registry: SchemaRegistry, form: FormatName
) -> None:
    made_encoder = made(form, registry)
    before = [each for each in COLUMNS if each.name != "small"]
    older = [encode(made_encoder, [Change("i", ROW)], before) for _ in range(3)][-1]
    assert len([path for method, path in registry.requests if method == "POST"]) == 2
    newer = encode(made_encoder, [Change("i", ROW)])
    assert [len(registry.versions(f"shop.orders-{part}")) for part in ("key", "value")] == [1, 2]
    again = encode(made(form, registry), [Change("i", ROW)])
    assert again.value[0].as_py()[:5] == newer.value[0].as_py()[:5]
    if form == "avro":
        both = [avro(registry, each.value[0].as_py())["after"] for each in (older, newer)]
        assert both == [{name: value for name, value in AVRO_ROW.items() if name != "small"}, AVRO_ROW]
        _, reader = (
            fastavro.parse_schema(json.loads(text)) for text in registry.versions("shop.orders-value")
        )
        writer = fastavro.parse_schema(json.loads(registry.versions("shop.orders-value")[0]))
        record = io.BytesIO(older.value[0].as_py()[5:])
        read: Any = fastavro.schemaless_reader(record, writer, reader)
        assert read["after"] == AVRO_ROW | {"small": None}
    else:
        newest = protobuf_class(registry.versions("shop.orders-value")[-1])
        read = plain(newest.FromString(older.value[0].as_py()[6:]).after)
        assert read == {name: value for name, value in PROTOBUF_ROW.items() if name != "small"}


def numbers_of(message: Message) -> dict[str, int]:
    return {column: message.fields[field][1] for column, field in message.columns.items()}


def test_a_field_keeps_its_number_and_no_other_gets_it() -> None:
    first = next_version("Value", dict.fromkeys(("a", "b", "c"), "string"), "")
    assert numbers_of(first) == {"a": 1, "b": 2, "c": 3}
    second = next_version("Value", {"a": "string", "c": "int64", "d": "bool"}, f"{first.text}\n")
    assert numbers_of(second) == {"a": 1, "c": 3, "d": 4}
    assert second.fields == {"a": ("string", 1), "b": ("string", 2), "c": ("int64", 3), "d": ("bool", 4)}
    older = next_version("Value", dict.fromkeys(("a", "b"), "string"), second.text)
    assert older.text == second.text


def test_names_that_json_would_spell_alike_stay_apart() -> None:
    columns = dict.fromkeys(("user_id", "userId", "user id", "1st"), "string")
    first = next_version("Value", columns, "")
    assert first.columns == {
        "user_id": "user_id",
        "userId": "userId_2",
        "user id": "user_id_3",
        "1st": "_1st",
    }
    backwards = next_version("Value", dict(reversed(columns.items())), first.text)
    assert numbers_of(backwards)["userId"] == numbers_of(first)["userId"]


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_a_version_that_the_registry_refuses_is_an_error_that_says_so(
    registry: SchemaRegistry, form: FormatName
) -> None:
    made_encoder = made(form, registry)
    encode(made_encoder, [Change("i", ROW)])
    registry.refuse.add("shop.orders-value")
    changed = [*COLUMNS[1:], column("id", "text")]
    with pytest.raises(SchemaRefusedError, match=r"shop\.orders-value"):
        encode(made_encoder, [Change("i", ROW)], changed)


def test_a_registry_that_does_not_answer_is_asked_again(registry: SchemaRegistry) -> None:
    made_encoder = made("avro", registry)
    registry.status = 503
    with pytest.raises(TargetError, match="HTTP 503"):
        encode(made_encoder, [Change("i", ROW)])
    registry.status = 200
    assert len(encode(made_encoder, [Change("i", ROW)])) == 1
    with pytest.raises(TargetError, match="could not be asked"):
        encode(encoder(EncodingSettings("avro", RegistrySettings("http://127.0.0.1:1"))), [Change("i", ROW)])
