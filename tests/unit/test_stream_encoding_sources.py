"""Columns of MySQL and MongoDB in every format: as the Postgres type of the same values would be written."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from penstock.capture.transactions import TableVersion
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log.columns import log_schema
from penstock.sources.mongodb.types import document_columns
from penstock.sources.types import common_type
from penstock.streams.encoding.encoder import EncodingSettings, encoder
from penstock.streams.encoding.view import StreamView
from penstock.streams.events import Events
from tests.stream_changes import Change, changes_of

STREAM = StreamId("shop", "orders")


def mysql(type_name: str, modifier: int = -1, text: str = "") -> SourceColumn:
    return SourceColumn("value", 0, modifier, type_name, text or type_name, family="mysql")


def told(column: SourceColumn, text: str | None, **settings: Any) -> tuple[Any, Events]:
    """How an insert of a row with this value is told."""
    key = SourceColumn("id", 0, -1, "int", "int", family="mysql")
    changes = changes_of(STREAM, (key, column), [Change("i", {"id": "1", "value": text})])
    view = StreamView(STREAM, "topic", ("id", "value"), ("id",), prefix="shop")
    events = encoder(EncodingSettings(**settings)).encode(changes, view)
    return json.loads(events.value[0].as_py()), events


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        (mysql("tinyint unsigned"), "255", 255),
        (mysql("bigint unsigned"), "18446744073709551615", "18446744073709551615"),
        (mysql("bigint unsigned"), "7", 7),
        (mysql("decimal", 12 << 16 | 2), "-3.10", "-3.10"),
        (mysql("year"), "0000", 0),
        (mysql("year"), "2026", 2026),
        (mysql("bit", 1), "1", True),
        (mysql("bit", 1), "0", False),
        (mysql("bit", 4), "0101", "0101"),
        (mysql("varbinary"), "00ff", "\\x00ff"),
        (mysql("timestamp", 3), "2026-01-31 12:00:00.123", "2026-01-31 12:00:00.123+00"),
        (mysql("datetime", 0), "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
        (mysql("time", 0), "-838:59:59", "-838:59:59"),
        (mysql("json"), '{"a": [1, null]}', {"a": [1, None]}),
        (mysql("double"), "0.1", 0.1),
        (mysql("enum", text="enum('a','b')"), "a", "a"),
        (mysql("varchar"), None, None),
        (mysql("varbinary"), None, None),
        (mysql("bit", 1), None, None),
        (mysql("year"), None, None),
    ],
)
def test_own_json_says_every_value_of_mysql(column: SourceColumn, text: str | None, expected: Any) -> None:
    value, events = told(column, text)
    assert value["after"] == {"id": 1, "value": expected}
    assert value["source"]["schema"] == "shop"
    assert events.refused == {}


@pytest.mark.parametrize(
    ("column", "text", "expected", "settings"),
    [
        (mysql("bigint unsigned"), str(2**63 - 1), 2**63 - 1, {}),
        (mysql("year"), "2026", 2026, {}),
        (mysql("time", 0), "-838:59:59", -((838 * 60 + 59) * 60 + 59) * 1_000_000, {}),
        (mysql("time", 3), "01:02:03.004", ((62 * 60) + 3) * 1_000_000 + 4_000, {}),
        (mysql("time", 3), "01:02:03.004", ((62 * 60) + 3) * 1_000 + 4, {"times": "connect"}),
        (mysql("datetime", 3), "1970-01-02 00:00:00.001", 86_400_001, {}),
        (mysql("datetime", 6), "1970-01-01 00:00:00.000001", 1, {}),
        (mysql("date"), "1970-01-03", 2, {}),
        (mysql("timestamp", 0), "2026-01-31 12:00:00", "2026-01-31T12:00:00Z", {}),
        (mysql("varbinary"), "00ff", base64.b64encode(b"\x00\xff").decode(), {}),
        (mysql("bit", 1), "1", True, {}),
        (mysql("decimal", 12 << 16 | 2), "1.00", base64.b64encode(b"\x64").decode(), {}),
        (
            mysql("point"),
            "SRID=4326;0101",
            {"wkb": base64.b64encode(b"\x01\x01").decode(), "srid": 4326},
            {},
        ),
        (mysql("set", text="set('a','b')"), "a,b", "a,b", {}),
    ],
)
def test_debezium_says_what_its_mysql_connector_does(
    column: SourceColumn, text: str, expected: Any, settings: dict[str, Any]
) -> None:
    value, events = told(column, text, format="debezium", **settings)
    assert value["after"]["value"] == expected
    assert events.refused == {}
    source = value["source"]
    assert (source["connector"], source["db"], source["table"]) == ("mysql", "shop", "orders")
    assert source["pos"] == events.tx[0]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (mysql("bigint unsigned"), str(2**63)),
        (mysql("date"), "0000-00-00"),
        (mysql("date"), "2026-02-31"),
        (mysql("datetime", 0), "2026-00-01 00:00:00"),
        (mysql("point"), ""),
    ],
)
def test_what_debezium_has_no_form_for_is_refused_and_told_in_our_own_json(
    column: SourceColumn, text: str
) -> None:
    value, events = told(column, text, format="debezium")
    assert list(events.refused) == [0]
    assert value["after"]["value"] == (int(text) if text.isdigit() and int(text) < 2**53 else text)


def test_schemas_name_the_members_and_the_connector() -> None:
    column = mysql("enum", text="enum('a','it''s')")
    value, _ = told(column, "a", format="debezium", schemas=True)
    fields = {field["field"]: field for field in value["schema"]["fields"]}
    assert fields["source"]["name"] == "io.debezium.connector.mysql.Source"
    assert {field["field"] for field in fields["source"]["fields"]} == set(value["payload"]["source"])
    own = {field["field"]: field for field in fields["after"]["fields"]}["value"]
    assert (own["name"], own["parameters"]) == ("io.debezium.data.Enum", {"allowed": "a,it's"})


def test_a_document_is_told_as_json_and_its_source_is_that_of_the_connector() -> None:
    changes = changes_of(
        STREAM, document_columns(), [Change("i", {"_id": "7", "document": '{"_id": 7, "a": [1.5]}'})]
    )
    view = StreamView(STREAM, "topic", ("_id", "document"), ("_id",))
    own = json.loads(encoder(EncodingSettings()).encode(changes, view).value[0].as_py())
    assert own["after"] == {"_id": "7", "document": {"_id": 7, "a": [1.5]}}
    found = encoder(EncodingSettings(format="debezium", schemas=True)).encode(changes, view)
    value = json.loads(found.value[0].as_py())
    source = value["payload"]["source"]
    assert (source["connector"], source["collection"]) == ("mongodb", "orders")
    schema = next(field for field in value["schema"]["fields"] if field["field"] == "source")
    assert {field["field"] for field in schema["fields"]} == set(source)


def test_a_column_of_another_type_is_another_version() -> None:
    versions = [
        TableVersion.of(log_schema(TableSchema(STREAM, (mysql(name),)), str(STREAM)))
        for name in ("int", "bigint", "int")
    ]
    assert versions[0] == versions[2]
    assert versions[0] != versions[1], "types of MySQL have no numbers"


def test_what_holds_values_of_other_columns_says_so() -> None:
    from penstock.sources.mongodb.types import field_columns

    assert [common_type(each).is_rest for each in field_columns(())] == [False, True]
