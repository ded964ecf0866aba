"""All compiled code that reading MongoDB needs, ready before the first document waits for it."""

from __future__ import annotations

from datetime import UTC, datetime

import bson
from bson import Binary, Decimal128, Int64, ObjectId, Timestamp

from penstock.sources.mongodb.documents import Documents, json_texts, key_texts, parse
from penstock.sources.mongodb.events import read_events
from penstock.sources.mongodb.fields import Fields
from penstock.sources.mongodb.replies import parse_reply
from penstock.sources.mongodb.rows import RowReader
from penstock.sources.mongodb.types import field_columns

_DOCUMENT = {
    "_id": ObjectId(b"0" * 12),
    "number": 1,
    "long": Int64(1),
    "double": 1.5,
    "decimal": Decimal128("1.5"),
    "flag": True,
    "date": datetime(2000, 1, 1, tzinfo=UTC),
    "text": "a",
    "bytes": Binary(b"a"),
    "stamp": Timestamp(1, 1),
    "nested": {"list": [1]},
    "nothing": None,
}
_EVENT = {
    "_id": {"_data": "82"},
    "operationType": "insert",
    "clusterTime": Timestamp(1, 1),
    "txnNumber": Int64(1),
    "ns": {"db": "a", "coll": "b"},
    "documentKey": {"_id": 1},
    "fullDocument": _DOCUMENT,
}


def warm_up() -> None:
    """Half a minute the first time, less than a second when the machine code was kept."""
    documents = parse(bson.encode(_DOCUMENT))
    json_texts(documents)
    key_texts(documents)
    known = Fields()
    list(known.read(documents))
    _warm_up_rows(documents, known)
    cursor = {"firstBatch": [_EVENT], "id": Int64(0), "ns": "a.b"}
    events = read_events(parse_reply(bson.encode({"cursor": cursor, "ok": 1.0})).documents)
    _ = (events.operations, events.times, events.transactions, events.after, events.keys, events.namespaces)


def _warm_up_rows(documents: Documents, known: Fields) -> None:
    """With a field that has no column, so that there is something for `_rest`."""
    columns = field_columns([column for column in known.columns() if column.name != "text"])
    for rows in RowReader(columns).read(documents):
        for column in columns:
            rows.values(column)
            rows.text(column)
