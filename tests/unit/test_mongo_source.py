"""What of a MongoDB source needs no server: remembered fields, and conditions of cursors as text."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128

from penstock.core.errors import StateError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.sources.cursor import Cursor, Noted, Window
from penstock.sources.mongodb import cursor_windows
from penstock.sources.mongodb.catalog import CollectionInfo, CollectionKind
from penstock.sources.mongodb.check import _check_replica_set
from penstock.sources.mongodb.fields import Column, Form
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.source import MongoSource
from penstock.sources.mongodb.table_reading import MongoReading
from penstock.sources.mongodb.types import TYPES, document_columns, field_columns

FIELDS = (Column("_id", Form.OBJECT_ID), Column("n", Form.DECIMAL, 2), Column("at", Form.DATE))


def column(form: Form, name: str = "v", scale: int = 0) -> SourceColumn:
    return field_columns([Column(name, form, scale)])[1]


def test_the_fields_that_were_seen_first_are_those_of_the_collection(tmp_path: Path) -> None:
    remembered = RememberedFields(tmp_path / "collections.json")
    assert remembered.of("7", tuple) == ()  # an empty collection may have some later
    assert remembered.of("7", lambda: FIELDS) == FIELDS
    again = RememberedFields(tmp_path / "collections.json")
    assert again.of("7", lambda: (Column("other", Form.JSON),)) == FIELDS
    assert again.of("8", lambda: FIELDS[:1]) == FIELDS[:1]
    assert again.of("7", tuple) == FIELDS


def test_of_two_who_look_at_the_same_time_one_is_first_for_both(tmp_path: Path) -> None:
    path = tmp_path / "collections.json"

    def sample() -> tuple[Column, ...]:
        assert RememberedFields(path).of("7", lambda: FIELDS[:2]) == FIELDS[:2]
        return FIELDS

    assert RememberedFields(path).of("7", sample) == FIELDS[:2]


def _remember(path: Path, keys: range) -> None:
    for key in keys:
        RememberedFields(path).of(str(key), lambda: FIELDS)


def test_what_several_processes_remember_at_once_is_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "collections.json"
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_remember, args=(path, range(first, 120, 3))) for first in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(json.loads(path.read_text())["collections"]) == 120


def test_a_file_of_fields_that_cannot_be_read_is_an_error_and_no_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "collections.json"
    for content in ("{", '{"format_version": 1}', '{"format_version": 3, "collections": {}}'):
        path.write_text(content)
        with pytest.raises(StateError) as error:
            RememberedFields(path).of("7", lambda: FIELDS)
        assert str(path) in error.value.message


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        (Form.INT32, "-5", -5),
        (Form.INT64, "9223372036854775807", 2**63 - 1),
        (Form.DECIMAL, "1.50", Decimal128("1.50")),
        (Form.DATE, "2020-01-02 03:04:05.678+00", DatetimeMS(1577934245678)),
        (Form.DATE, "0001-01-01 00:00:00+00 BC", DatetimeMS(-62167219200000)),
        (Form.STRING, "2020-01-01T00Z", "2020-01-01T00Z"),
        (Form.OBJECT_ID, "0123456789abcdef01234567", ObjectId("0123456789abcdef01234567")),
    ],
)
def test_a_cursors_value_comes_back_from_its_text(form: Form, text: str, value: object) -> None:
    cursor = column(form, scale=2 if form is Form.DECIMAL else 0)
    assert cursor_windows._value(cursor, text) == value
    assert cursor_windows._text(cursor, value) == text


def test_a_condition_comes_back_from_its_text_with_every_type() -> None:
    first, second = (
        Cursor(column(Form.DATE, "at"), timedelta(minutes=1)),
        Cursor(column(Form.INT64), Decimal(1)),
    )
    windows = (
        Window(first, None, "2020-01-01 00:00:00+00", "2021-01-01 00:00:00.5+00"),
        Window(second, "at", None, "7"),
    )
    condition = cursor_windows.within_any(Noted(windows, {}))
    assert cursor_windows.parse_condition(cursor_windows.condition_text(condition)) == condition
    assert cursor_windows.parse_condition("") == {}


@pytest.mark.parametrize(
    ("form", "lookback", "last", "low"),
    [
        (Form.INT64, Decimal("1.5"), "10", "8"),
        (Form.INT64, Decimal(1), str(-(2**63)), str(-(2**63))),
        (Form.DECIMAL, Decimal("0.25"), "1.5", "1.25"),
        (Form.DATE, timedelta(minutes=1), "2020-01-01 00:00:30+00", "2019-12-31 23:59:30+00"),
        (Form.STRING, Decimal(0), "abc", "abc"),
        (Form.INT64, Decimal(0), "10", "10"),
    ],
)
def test_a_round_begins_its_lookback_before_the_last_value(
    form: Form, lookback: Decimal | timedelta, last: str, low: str
) -> None:
    assert cursor_windows._low(Cursor(column(form, scale=2), lookback), last) == low


def test_a_name_that_the_server_would_read_otherwise_is_no_cursor() -> None:
    assert TYPES.cursor_kind(column(Form.INT64, "a")) == "integer"
    assert TYPES.cursor_kind(column(Form.INT64, "a.b")) is None
    assert TYPES.cursor_kind(column(Form.INT64, "$a")) is None


def test_nothing_that_is_printed_has_the_password() -> None:
    url = "mongodb://user:hunter2@host/"
    source = MongoSource(url, "penstock")
    assert "hunter2" not in repr(source) + repr(source.reading())
    assert pickle.loads(pickle.dumps(source.reading())) == MongoReading(url)


@pytest.mark.parametrize(
    ("kind", "one_moment"),
    [("collection", True), ("capped collection", False), ("view", False), ("time series", False)],
)
def test_only_collections_that_the_server_has_states_of_are_read_as_of_one_moment(
    kind: CollectionKind, one_moment: bool
) -> None:
    stream = StreamId("shop", "c")
    table = CollectionInfo(
        stream=stream,
        oid=1,
        kind=kind,
        schema=TableSchema(stream, document_columns()),
        leaves=(),
        primary_key=(),
        images=False,
        collated=False,
        encrypted=False,
        fields=(),
    )
    assert MongoReading("mongodb://db").shows_one_moment(table) is one_moment


def test_bounds_of_chunks_are_in_no_order_that_the_held_ids_have() -> None:
    """They are BSON: a change is not compared with them to find the chunk that it belongs to."""
    assert not any(TYPES.orders_as_held(column(form)) for form in Form if form is not Form.NOTHING)


def test_who_reads_a_sharded_cluster_is_told_that_no_test_does() -> None:
    asked: Any = SimpleNamespace(is_sharded=True)
    [finding] = _check_replica_set(asked)
    assert finding.level == "warning"
    assert "penstock verify" in finding.remedy
