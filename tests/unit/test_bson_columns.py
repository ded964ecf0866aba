"""Top-level fields as columns, against a model that takes what the driver decodes."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Int64, ObjectId
from bson.decimal128 import Decimal128
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import SourceError
from penstock.sources.mongodb import fields
from penstock.sources.mongodb.documents import parse
from penstock.sources.mongodb.fields import FORM_KEY, Fields
from tests import bson_documents as model

pytestmark = pytest.mark.unit

uniform = st.sampled_from([
    st.integers(-(2**31), 2**31 - 1), st.integers(*model.INT64).map(Int64), st.floats(),
    st.one_of(st.integers(-9, 9), st.floats()), st.one_of(st.integers(*model.INT64).map(Int64), st.floats()),
    st.one_of(model.decimals, st.integers(-9, 9)), st.decimals(-1000, 1000, places=4).map(Decimal128),
    model.texts, st.binary(max_size=9), model.scalars,
])  # fmt: skip


@st.composite
def collections(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Documents whose fields mostly keep to a type."""
    kinds = {name: st.one_of(draw(uniform), st.none()) for name in ("a", "b", "c", "a long name", "")}
    shape = st.fixed_dictionaries({"_id": st.integers(0, 9)}, optional=kinds)
    return draw(st.lists(shape, max_size=8))


def encoded(documents: list[dict[str, Any]]) -> bytes:
    return b"".join(bson.encode(document) for document in documents)


def held(batch: pa.RecordBatch, name: str) -> tuple[str, list[Any]]:
    field = batch.schema.field(name)
    form = field.metadata[FORM_KEY].decode()
    column = batch.column(name)
    column.validate(full=True)
    if form == "date":
        return form, column.cast(pa.int64()).to_pylist()
    values = column.to_pylist()
    if form == "decimal":
        values = [None if value is None else Fraction(value) for value in values]
    if form == "json":
        values = [None if value is None else json.loads(value) for value in values]
    if form == "double":
        values = [None if value is None else model._held("double", value) for value in values]
    return form, values


@settings(max_examples=200)
@given(collections())
def test_columns_are_what_the_model_says(documents: list[dict[str, Any]]) -> None:
    raw = encoded(documents)
    batches = list(Fields().read(parse(raw)))
    assert len(batches) == (1 if documents else 0)
    decoded = [bson.decode(bson.encode(each), model.EXACT) for each in documents]
    names = list(dict.fromkeys(name for each in decoded for name in each))
    for batch in batches:
        assert batch.schema.names == names
        assert batch.num_rows == len(documents)
        for name in names:
            form, expected = model.column_of([each.get(name) for each in decoded])
            assert held(batch, name) == (form, expected)


def test_a_type_widens_with_what_is_seen_and_never_goes_back() -> None:
    known = Fields()
    forms = []
    for value in (None, 1, Int64(2**40), 2.5, 1, Int64(2**60), "text", 1):
        [batch] = known.read(parse(encoded([{"a": value}])))
        forms.append(batch.schema.field("a").metadata[FORM_KEY].decode())
    assert forms == ["null", "int32", "int64", "double", "double", "json", "json", "json"]
    known = Fields()
    wider: list[tuple[Any, str]] = [
        (1, "int32"),
        (Decimal128("1.25"), "decimal"),
        (Decimal128("1E+37"), "json"),
    ]
    for each, form in wider:
        [batch] = known.read(parse(encoded([{"a": each}])))
        assert batch.schema.field("a").metadata[FORM_KEY].decode() == form


def test_documents_with_other_fields_in_another_order_find_their_columns() -> None:
    documents: list[dict[str, Any]] = [
        {f"f{number}": number for number in range(40)},
        {f"f{number}": -number for number in reversed(range(0, 60, 3))},
        {},
        {"f59": "x", "f1": 7},
    ]
    [batch] = Fields().read(parse(encoded(documents)))
    table = batch.to_pylist()
    for row, each in zip(table, documents, strict=True):
        if "f59" not in each:
            assert {name: value for name, value in row.items() if value is not None} == each
    assert table[3]["f1"] == 7


def test_memory_is_bounded_by_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "CELLS_MAX", 100)
    documents = [{"_id": row, f"f{row % 37}": row} for row in range(500)]
    batches = list(Fields().read(parse(encoded(documents))))
    assert max(batch.num_rows * batch.num_columns for batch in batches) <= 300
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [{name: value for name, value in row.items() if value is not None} for row in rows] == documents


def test_too_many_fields_are_an_error_with_a_remedy() -> None:
    documents = [{f"f{number}": 1 for number in range(fields.FIELDS_MAX + 1)}]
    with pytest.raises(SourceError, match="JSON column"):
        list(Fields().read(parse(encoded(documents))))


def test_ids_and_dates_keep_all_they_have() -> None:
    oid = ObjectId()
    [batch] = Fields().read(parse(encoded([{"_id": oid, "at": bson.datetime_ms.DatetimeMS(-1)}])))
    assert batch.column("_id").to_pylist() == [str(oid)]
    assert batch.column("at").cast(pa.int64()).to_pylist() == [-1]
    assert batch.schema.field("at").type == pa.timestamp("ms", "UTC")
