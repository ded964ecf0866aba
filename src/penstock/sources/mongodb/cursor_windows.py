"""The windows of a round that reads a collection on by a field, and their chunks.

`note` asks, under the snapshot that will be read, for the greatest value of each cursor, which ends its
window (`sources.cursor`). `cut` divides a window into chunks of about so many documents: by cursor, and by
`_id` where many share one value.

A collection may have values of any kind in any field. A cursor sees those of its own: whole numbers for a
column of such, with decimals for one of decimals; dates; strings; ObjectIds. All else is null to it: NaN,
infinities, doubles, arrays. Which kinds those are is said by the server's own types (`$type` of the field
itself: a comparison alone would look into arrays). They may be wider than the column: a long that came into
a column of ints is read too, though it has a place in `_rest` only. Text is ordered as the collection orders
it, which is by its bytes unless it has a collation.

A condition is a filter of `find` as canonical Extended JSON.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import bson
import pyarrow as pa
from bson import Decimal128, Int64, ObjectId
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.json_util import CANONICAL_JSON_OPTIONS, dumps, loads

from penstock.core.cursor import Cursors, CursorValue
from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.sources.cursor import Cursor, CursorChunk, Noted, Window
from penstock.sources.mongodb.catalog import CollectionLeaf
from penstock.sources.mongodb.connection import query_errors
from penstock.sources.mongodb.documents import parse
from penstock.sources.mongodb.fields import Form
from penstock.sources.mongodb.ids import read_ids
from penstock.sources.mongodb.replies import Source
from penstock.sources.mongodb.rows import RowReader
from penstock.sources.mongodb.types import TYPES, Whole, content_of
from penstock.sources.tables import SourceTable

Filter = dict[str, Any]

_WHOLE_NUMBERS = ("int", "long")
_TYPES: dict[Form | Whole, tuple[str, ...]] = {
    Form.INT32: _WHOLE_NUMBERS,
    Form.INT64: _WHOLE_NUMBERS,
    Form.DECIMAL: (*_WHOLE_NUMBERS, "decimal"),
    Form.DATE: ("date",),
    Form.STRING: ("string",),
    Form.OBJECT_ID: ("objectId",),
}
_LEAST, _LEAST_INT = -(2**63), -(2**31)
_MILLISECOND = timedelta(milliseconds=1)
_EXACT: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_JSON = CANONICAL_JSON_OPTIONS.with_options(datetime_conversion=DatetimeConversion.DATETIME_MS)


def condition_text(condition: Filter) -> str:
    return dumps(condition, json_options=_JSON)


def parse_condition(text: str) -> Filter:
    """Empty: every document."""
    found: Filter = loads(text, json_options=_JSON) if text else {}
    return found


def within(window: Window, columns: Mapping[str, SourceColumn]) -> Filter:
    """The filter for a document being in the window; `columns` are those of the collection."""
    if window.high is None:
        return {"$expr": False}
    column = window.cursor.column
    bounds = {"$gte": window.low, "$lte": window.high}
    compared = {operator: _value(column, text) for operator, text in bounds.items() if text is not None}
    parts = [_seen(column), {column.name: compared}]
    if window.null_column is not None:
        parts.insert(0, {"$nor": [_seen(columns[window.null_column])]})
    return {"$and": parts}


def within_any(noted: Noted) -> Filter:
    columns = {window.cursor.column.name: window.cursor.column for window in noted.windows}
    return {"$or": [within(window, columns) for window in noted.windows]}


def _seen(column: SourceColumn) -> Filter:
    """The filter for a value of the kinds that the cursor sees."""
    content = content_of(column)
    of_type: Filter = {"$expr": {"$in": [{"$type": f"${column.name}"}, list(_TYPES[content])]}}
    if content is not Form.DECIMAL:
        return of_type
    finite = {"$gt": Decimal128("-Infinity"), "$lt": Decimal128("Infinity")}  # below both there is NaN
    return {"$and": [of_type, {column.name: finite}]}


def note(
    database: Source,
    table: SourceTable,
    cursors: Sequence[Cursor],
    start: Cursors,
    read_concern: Mapping[str, Any],
) -> Noted:
    """The source is asked for one document by each cursor."""
    windows: list[Window] = []
    advanced: dict[str, CursorValue] = {}
    before: SourceColumn | None = None
    for cursor in cursors:
        column = cursor.column
        last = _normal(cursor, start[column.name]) if column.name in start else None
        greatest = _greatest(database, table.stream, column, before, last, read_concern)
        low = None if last is None else _low(cursor, last)
        high = last if greatest is None else greatest
        windows.append(Window(cursor, None if before is None else before.name, low, high))
        # The state has no form for an empty text: such a cursor stays where it is, and is read again.
        if greatest:
            advanced[column.name] = cursor.value(greatest)
        before = column
    return Noted(tuple(windows), advanced)


def _greatest(
    database: Source,
    stream: StreamId,
    column: SourceColumn,
    null_column: SourceColumn | None,
    last: str | None,
    read_concern: Mapping[str, Any],
) -> str | None:
    """If it is greater than the last; equal values do not count as risen."""
    parts = [_seen(column)]
    if null_column is not None:
        parts.append({"$nor": [_seen(null_column)]})
    if last is not None:
        parts.append({column.name: {"$gt": _value(column, last)}})
    pipeline: list[Mapping[str, Any]] = [
        {"$match": {"$and": parts}},
        {"$sort": {column.name: -1}},
        {"$limit": 1},
        {"$project": {"_id": 0, "value": f"${column.name}"}},
    ]
    with query_errors("noting the cursor's greatest value", stream=str(stream)):
        found = read_ids(database, stream.name, pipeline, read_concern)
    return _text(column, bson.decode(found[0], _EXACT)["value"]) if found else None


def cut(
    database: Source,
    leaf: CollectionLeaf,
    window: Window,
    rows_max: int,
    read_concern: Mapping[str, Any],
) -> list[CursorChunk]:
    """The window's chunks, in order; none if it has no documents."""
    column = window.cursor.column
    inside = within(window, {each.name: each for each in leaf.columns})
    with query_errors("cutting the cursor's range", stream=str(leaf.stream)):
        counted = read_ids(database, leaf.stream.name, [{"$match": inside}, {"$count": "rows"}], read_concern)
        rows = bson.decode(counted[0])["rows"] if counted else 0
        if not rows:
            return []
        both = {"$mergeObjects": [{"v": f"${column.name}", "i": "$_id"}]}  # an expression, as it must be
        by_both = {"groupBy": both, "buckets": -(-rows // rows_max)}
        pipeline = [{"$match": inside}, {"$bucketAuto": by_both}, {"$project": {"_id": "$_id.min"}}]
        found = read_ids(database, leaf.stream.name, pipeline, read_concern)
    starts = [bson.decode(each, _EXACT)["_id"] for each in found]
    return list(_chunks(leaf, window, inside, starts))


def _chunks(
    leaf: CollectionLeaf, window: Window, inside: Filter, starts: Sequence[Mapping[str, Any]]
) -> Iterator[CursorChunk]:
    """The first has no beginning but the window's, the last no other end."""
    column = window.cursor.column
    for low, high in itertools.pairwise([None, *starts[1:], None]):
        parts = [inside]
        if low is not None:
            parts += [{column.name: {"$gte": low["v"]}}, _from(column, low)]
        if high is not None:
            parts += [{column.name: {"$lte": high["v"]}}, {"$nor": [_from(column, high)]}]
        values = starts[0]["v"] if low is None else low["v"], None if high is None else high["v"]
        texts = [None if value is None else _fitting(column, value) for value in values]
        yield CursorChunk(leaf, window.cursor, condition_text({"$and": parts}), *texts)


def _from(column: SourceColumn, start: Mapping[str, Any]) -> Filter:
    """Documents from one on, by cursor and id; ids are compared over all types."""
    value, name = {"$literal": start["v"]}, f"${column.name}"
    same = {"$and": [{"$eq": [name, value]}, {"$gte": ["$_id", {"$literal": start["i"]}]}]}
    return {"$expr": {"$or": [{"$gt": [name, value]}, same]}}


def _low(cursor: Cursor, last: str) -> str | None:
    """Where a round begins that goes on from `last`."""
    lookback = cursor.lookback
    if not lookback or cursor.kind == "text":
        return last
    if isinstance(lookback, timedelta):
        before: DatetimeMS = _value(cursor.column, last)
        return _text(cursor.column, DatetimeMS(max(int(before) - lookback // _MILLISECOND, _LEAST)))
    if cursor.kind == "integer":
        return str(max(int(last) - math.ceil(lookback), _LEAST))
    return format(Decimal(last) - lookback, "f")


def _normal(cursor: Cursor, value: CursorValue) -> str:
    """As the log prints it."""
    if isinstance(value, Decimal):
        return format(value, "f")
    text = str(value)
    return text.replace("T", " ").replace("Z", "+00") if cursor.kind == "time" else text


def _value(column: SourceColumn, text: str) -> Any:
    """What is printed so."""
    match content_of(column):
        case Form.INT32 | Form.INT64:
            return Int64(text)
        case Form.DECIMAL:
            return Decimal128(text)
        case Form.DATE:
            [microseconds] = TYPES.cast_text(pa.array([text]), column).values.cast(pa.int64()).to_pylist()
            return DatetimeMS(microseconds // 1000)
        case Form.OBJECT_ID:
            return ObjectId(text)
        case _:
            return text


def _text(column: SourceColumn, value: Any) -> str | None:
    """As the log prints it; None: a date that has no place in a table."""
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, Decimal128):
        return format(value.to_decimal(), "f")
    if not isinstance(value, DatetimeMS):
        return str(value)
    [rows] = RowReader([column]).read(parse(bson.encode({column.name: value})))
    [text] = rows.text(column).to_pylist()
    return None if text is None else str(text)


def _fitting(column: SourceColumn, value: Any) -> str | None:
    """A bound for what the table holds; None: it holds no such value."""
    text = _text(column, value)
    if text is None or content_of(column) is not Form.INT32:
        return text
    return text if _LEAST_INT <= int(text) < -_LEAST_INT else None
