"""A collection as loads read it, and its changes, beside what pymongo and pymongoarrow reach.

One mongod, a replica set of one, on the machine that also runs Penstock; documents of 11 fields, two of them
nested. Each comparison has a warm-up that is not counted, then rounds: the reference and Penstock in turn, on
the same documents from the same server, each on one connection. The ratio is the median of the rounds'
quotients.

columns  the chunks of a load in `layout: fields`, to the Arrow columns that are written to the table, against
         pymongoarrow, which is told the types
json     the same in `layout: document`, to `_id` and canonical Extended JSON, against a pymongo loop with
         `bson.json_util.dumps` of each document
changes  inserts from a place in the oplog to keys, operations, times and the texts of the change log's rows,
         against a bare `watch()` loop that only takes the decoded events

Told beside them: how fast loads are against a scan whose batches are not decoded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from bson import Int64, ObjectId, json_util
from bson.decimal128 import Decimal128
from pymongoarrow.api import Schema, find_arrow_all
from pymongoarrow.types import Decimal128Type, ObjectIdType
from rich.console import Console

from bench.comparison import Bars, Comparison, Figure, Run
from bench.resources import measured
from penstock.core.stream import StreamId
from penstock.sources.mongodb.catalog import CollectionInfo, discover
from penstock.sources.mongodb.change_stream import ChangeStream, Place, StreamOptions
from penstock.sources.mongodb.chunk_reading import MongoChunk
from penstock.sources.mongodb.chunks import BYTES_PER_CHUNK_MAX, plan_chunks
from penstock.sources.mongodb.ids import Chunk, read_chunk
from penstock.sources.mongodb.replies import Source
from penstock.sources.mongodb.rows import RowReader
from penstock.sources.mongodb.types import Layout
from tests.mongo_server import MongoServer

ROWS = 200_000
CHANGES = 50_000
_CANONICAL = json_util.JSONOptions(json_mode=json_util.JSONMode.CANONICAL)
_SCHEMA = Schema(
    {
        **{"_id": ObjectIdType(), "number": pa.int32(), "large": pa.int64(), "ratio": pa.float64()},
        **{"name": pa.string(), "active": pa.bool_(), "at": pa.timestamp("ms"), "price": Decimal128Type()},
        "note": pa.string(),
        "address": pa.struct([("street", pa.string()), ("number", pa.int32())]),
        "tags": pa.list_(pa.string()),
    }
)
Work = Callable[[], int]


def compare(rounds: int, directory: Path, console: Console) -> tuple[list[Comparison], list[Figure]]:
    with MongoServer(directory / "mongodb") as server:
        database = server.client["bench"]
        console.log(f"making a collection of {ROWS:,} documents")
        _insert(database, "rows", ROWS)
        columns = partial(_load, server, "fields")
        texts = partial(_load, server, "document")
        raw = partial(_raw, database)
        comparisons = [
            _compare(
                Comparison("mongodb-columns", _title("columns"), "pymongoarrow", Bars(ratio_min=1.0)),
                partial(_pymongoarrow, database),
                columns,
                rounds,
                console,
            ),
            _compare(
                Comparison("mongodb-json", _title("JSON"), "bson.json_util", Bars(ratio_min=5.0)),
                partial(_json_util, database),
                texts,
                rounds,
                console,
            ),
            _compare_changes(database, rounds, console),
        ]
        figures = [
            _against_raw("columns", raw, columns, rounds, console),
            _against_raw("JSON", raw, texts, rounds, console),
        ]
    return comparisons, figures


def _title(what: str) -> str:
    return f"{ROWS:,} documents as a load reads them, to {what}"


def _insert(database: Source, collection: str, rows: int) -> None:
    source = random.Random(7)
    for first in range(0, rows, 10_000):
        numbers = range(first, min(first + 10_000, rows))
        database[collection].insert_many([_document(number, source) for number in numbers], ordered=False)


def _document(number: int, source: random.Random) -> dict[str, Any]:
    return {
        **{"_id": ObjectId(), "number": number, "large": Int64(number * 10**10), "ratio": source.random()},
        **{"name": f"name {number} of many", "active": number % 3 == 0, "at": datetime.now(UTC)},
        **{"price": Decimal128(f"{number}.25"), "note": 'a longer text, "quoted" ' * 2},
        "address": {"street": f"street {number % 100}", "number": number % 50},
        "tags": ["red", "green", "blue"][: number % 4],
    }


def _compare(
    comparison: Comparison, reference: Work, ours: Work, rounds: int, console: Console
) -> Comparison:
    for number in range(rounds + 1):
        runs = [_measure(reference), _measure(ours)]
        if number:  # the first one warms up
            console.log(comparison.add_round(*runs))
    return comparison


def _measure(work: Work) -> Run:
    with measured() as meter:
        rows = work()
    return Run(rows, meter.usage)


def _against_raw(what: str, raw: Work, ours: Work, rounds: int, console: Console) -> Figure:
    """What no reader can be faster than: the server's batches, with nothing done to them."""
    comparison = Comparison(f"mongodb-{what}", what, "raw batches", Bars(ratio_min=0.0))
    return Figure(
        f"{_title(what)}, against raw batches", _compare(comparison, raw, ours, rounds, console).ratio, None
    )


def _raw(database: Source) -> int:
    return sum(documents.rows for documents in read_chunk(database, "rows", Chunk()))


def _load(server: MongoServer, layout: Layout) -> int:
    """Planned and read as a load does it, chunk after chunk; what is made of it would go to Parquet."""
    table = _table(server.client["bench"], layout)
    planned = plan_chunks(
        server.client["bench"], table, rows_per_chunk=ROWS, bytes_per_chunk_max=BYTES_PER_CHUNK_MAX
    )
    rows = 0
    for each in planned:
        chunk = MongoChunk(server.url, "penstock bench", "", each, table.leaves[0].columns)
        for block in chunk.blocks(table.schema):
            assert not block.bad
            rows += len(block.values[-1])
    return rows


def _table(database: Source, layout: Layout) -> CollectionInfo:
    [table] = discover(database.client, [StreamId("bench", "rows")], layout=layout)
    return table


def _pymongoarrow(database: Source) -> int:
    return int(find_arrow_all(database["rows"], {}, schema=_SCHEMA).num_rows)


def _json_util(database: Source) -> int:
    count = 0
    for document in database["rows"].find():
        json_util.dumps(document, json_options=_CANONICAL)
        count += 1
    return count


def _compare_changes(database: Source, rounds: int, console: Console) -> Comparison:
    comparison = Comparison(
        "mongodb-changes", f"{CHANGES:,} inserts of a change stream", "bare watch() loop", Bars(ratio_min=1.0)
    )
    with closing(ChangeStream(database, StreamOptions())) as stream:
        stream.read(wait_ms=1)
        place = stream.place
    _insert(database, "changed", CHANGES)
    reader = RowReader(_table(database, "document").schema.columns)
    watch, ours = partial(_watch, database, place), partial(_changes, database, place, reader)
    return _compare(comparison, watch, ours, rounds, console)


def _watch(database: Source, place: Place) -> int:
    count = 0
    with database.watch(full_document="updateLookup", start_after=place.options()["startAfter"]) as stream:
        for _ in stream:
            count += 1
            if count == CHANGES:
                break
    return count


def _changes(database: Source, place: Place, reader: RowReader) -> int:
    count = 0
    with closing(ChangeStream(database, StreamOptions(), place)) as stream:
        while count < CHANGES:
            for part in stream.read().parts:
                _ = part.operations, part.times, part.keys, part.namespaces
                for rows in reader.read(part.after.documents):
                    texts = [rows.text(column) for column in reader.columns]
                    count += len(texts[-1])
    return count
