"""Documents as rows: no value is lost or rounded, and the log's text gives the same as loading."""

from __future__ import annotations

import json
import math
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.schema import SourceColumn
from penstock.sources.mongodb.documents import parse
from penstock.sources.mongodb.fields import Fields
from penstock.sources.mongodb.rows import RowReader, Rows
from penstock.sources.mongodb.types import (
    ID,
    REST,
    TYPES,
    Whole,
    content_of,
    document_columns,
    field_columns,
)
from tests import bson_documents as model

pytestmark = pytest.mark.unit

FIRST = 2  # documents that the columns are made from; the others bring what was not seen


@st.composite
def collections(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Documents whose fields mostly keep to a type, and some that do not."""
    usual = st.sampled_from([
        st.integers(-(2**31), 2**31 - 1), st.integers(*model.INT64).map(Int64), st.floats(), st.booleans(),
        model.decimals, st.decimals(-1000, 1000, places=4).map(Decimal128), model.texts,
        st.binary(max_size=9), st.integers(*model.INT64).map(DatetimeMS),
        st.integers(-(2**47), 2**47).map(DatetimeMS), st.uuids().map(bson.Binary.from_uuid),
        st.binary(min_size=12, max_size=12).map(ObjectId),
    ])  # fmt: skip
    kinds = {name: draw(usual) for name in ("a", "b", "c", "", REST)}
    shapes = [
        st.fixed_dictionaries(
            {ID: st.integers(0, 9)},
            optional={name: st.one_of(kind, kind, *odd) for name, kind in kinds.items()},
        )
        for odd in ([st.none()], [model.values])
    ]
    return [
        *draw(st.lists(shapes[0], min_size=FIRST, max_size=FIRST)),
        *draw(st.lists(shapes[1], max_size=5)),
    ]


def columns_of(documents: list[dict[str, Any]]) -> tuple[SourceColumn, ...]:
    known = Fields()
    known.see(parse(encoded(documents)))
    return field_columns(known.columns())


def encoded(documents: list[dict[str, Any]]) -> bytes:
    return b"".join(map(bson.encode, documents))


def rows_of(documents: list[dict[str, Any]], columns: tuple[SourceColumn, ...]) -> Rows:
    [rows] = RowReader(columns).read(parse(encoded(documents)))
    return rows


def bits_of(array: pa.Array) -> list[Any]:
    """Values that are equal only if they are the same, zeros of either sign and NaN too."""
    if pa.types.is_floating(array.type):
        return [None if value is None else repr(value) for value in array.to_pylist()]
    return list((array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist())


@settings(max_examples=150, deadline=None)
@given(collections())
def test_every_value_is_in_its_column_or_in_the_rest(documents: list[dict[str, Any]]) -> None:
    columns = columns_of(documents[:FIRST])
    rows = rows_of(documents, columns)
    held = {column.name: bits_of(rows.values(column).values) for column in columns}
    rest = [{} if text is None else json.loads(text) for text in rows.text(columns[-1]).to_pylist()]
    rest = [each.get("$document", each) for each in rest]
    decoded = [bson.decode(bson.encode(each), model.EXACT) for each in documents]
    for number, document in enumerate(decoded):
        assert set(rest[number]) <= set(document)
        for name, value in document.items():
            in_column = name != REST and held.get(name, [None] * len(documents))[number] is not None
            is_known = name in held and name != REST
            if name in rest[number]:
                assert not in_column
                assert rest[number][name] == json.loads(model.json_of(value))
            else:
                assert in_column or (is_known and value is None)


@settings(max_examples=150, deadline=None)
@given(collections())
def test_the_text_of_the_log_gives_the_same_values_as_loading(documents: list[dict[str, Any]]) -> None:
    columns = columns_of(documents[:FIRST])
    rows = rows_of(documents, columns)
    for column in columns:
        loaded = rows.values(column)
        cast = TYPES.cast_text(rows.text(column), column)
        assert loaded.bad is None
        assert cast.bad is None
        assert loaded.values.type == cast.values.type == TYPES.arrow_type(column)
        loaded.values.validate(full=True)
        assert bits_of(loaded.values) == bits_of(cast.values)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(*model.INT64).filter(lambda ms: abs(ms) < 2**63 // 1000), min_size=1))
def test_dates_of_every_year_are_held(dates: list[int]) -> None:
    documents = [{ID: 1, "at": DatetimeMS(each)} for each in dates]
    columns = columns_of(documents)
    assert bits_of(rows_of(documents, columns).values(columns[1]).values) == [each * 1000 for each in dates]


def test_texts_are_as_postgres_prints_them() -> None:
    document = {
        ID: ObjectId("6afa9d21865c9b3a98642006"), "i": -5, "d": 2.5, "n": Decimal128("-0.050"), "b": True,
        "t": DatetimeMS(-62135596800001), "u": DatetimeMS(951782400120), "x": b"\x00\xff", "nan": math.nan,
    }  # fmt: skip
    columns = columns_of([document])
    rows = rows_of([document], columns)
    assert {column.name: rows.text(column)[0].as_py() for column in columns} == {
        ID: "6afa9d21865c9b3a98642006", "i": "-5", "d": "2.5", "n": "-0.05", "b": "t",
        "t": "0001-12-31 23:59:59.999+00 BC", "u": "2000-02-29 00:00:00.12+00", "x": "\\x00ff", "nan": "NaN",
        REST: None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ids", "type_text"),
    [
        ([ObjectId()], "objectId"),
        ([1], "long"),
        (["a"], "string"),
        ([1.0], "id"),
        ([1, "a"], "id"),
        ([Decimal128("1")], "id"),
        ([{"a": 1}], "id"),
    ],
)
def test_ids_of_one_kind_are_held_as_such_and_others_by_what_is_equal(ids: list[Any], type_text: str) -> None:
    assert columns_of([{ID: each} for each in ids])[0].type_text == type_text


def test_an_id_of_another_kind_than_its_column_is_bad_and_told_in_words() -> None:
    columns = columns_of([{ID: "a"}])
    rows = rows_of([{ID: "b"}, {ID: 5}], columns)
    found = rows.values(columns[0])
    assert found.bad is not None
    assert found.bad.to_pylist() == [False, True]
    assert found.values.to_pylist() == ["b", None]
    assert rows.text(columns[0]).to_pylist() == ["b", "5"]
    assert rows.text(columns[1]).to_pylist() == [None, None]


def test_a_document_is_one_column_beside_its_key() -> None:
    columns = document_columns()
    rows = rows_of([{ID: 1.0, "a": "x"}, {ID: None}], columns)
    assert rows.values(columns[0]).values.to_pylist() == ["1", "null"]
    assert rows.values(columns[1]).values.to_pylist() == [
        '{"_id":{"$numberDouble":"1.0"},"a":"x"}',
        '{"_id":null}',
    ]


def test_a_column_that_is_held_otherwise_is_cast_and_nothing_is_rounded() -> None:
    documents = [{ID: 1, "n": Decimal128("1.25")}, {ID: 2, "n": Decimal128("7")}]
    [_, column, _] = columns_of(documents)
    held = SourceColumn.from_json({**column.to_json(), "held_as": "decimal(9,1)"})
    found = rows_of(documents, (held,)).values(held)
    assert [str(each) if each else None for each in found.values.to_pylist()] == [None, "7.0"]
    assert found.bad is not None
    assert found.bad.to_pylist() == [True, False]
    as_text = SourceColumn.from_json({**column.to_json(), "held_as": "text"})
    assert rows_of(documents, (as_text,)).values(as_text).values.to_pylist() == ["1.25", "7.00"]


def test_a_field_keeps_its_number_and_a_wider_one_keeps_no_values() -> None:
    narrow = columns_of([{ID: 1, "a": 1, "b": 1}])[1]
    wide = columns_of([{ID: 1, "b": 1, "a": Int64(2)}])[2]
    assert narrow.name == wide.name == "a"
    assert narrow.attribute_number == wide.attribute_number != 0
    assert not TYPES.keeps_values(narrow, wide)
    assert TYPES.keeps_values(narrow, narrow)
    assert content_of(columns_of([{ID: 1}])[-1]) is Whole.REST
