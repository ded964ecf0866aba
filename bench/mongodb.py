"""`python -m bench.mongodb`: raw BSON into Arrow and JSON, and change streams, beside what pymongo reaches.

One mongod, a replica set of one, on the machine that also runs Penstock; documents of 11 fields, two of them
nested. Each comparison has a warm-up that is not counted, then rounds: the reference and Penstock in turn, on
the same documents from the same server. The ratio is the median of the rounds' quotients.

columns  a collection as Arrow columns, types found on the way, against pymongoarrow that is given them
json     a collection as one column of canonical Extended JSON against `bson.json_util.dumps` of each document
changes  inserts from a place in the oplog to keys, operations, times and documents as JSON, against a bare
         `watch()` loop that only takes the decoded events

Printed beside them: the same collection read as raw batches of which nothing is decoded.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from bson import Int64, ObjectId, json_util
from bson.decimal128 import Decimal128
from pymongoarrow.api import Schema, find_arrow_all
from pymongoarrow.types import Decimal128Type, ObjectIdType
from rich.console import Console

from bench.command import finish, new_console, parse_arguments, warn_if_busy
from bench.comparison import Bars, Comparison, Run
from bench.resources import measured
from penstock.sources.mongodb.change_stream import ChangeStream, Place, StreamOptions
from penstock.sources.mongodb.documents import json_texts
from penstock.sources.mongodb.fields import Fields
from penstock.sources.mongodb.ids import Chunk, read_chunk
from penstock.sources.mongodb.replies import Source
from tests.mongo_server import MongoServer

NAMES = ("columns", "json", "changes")
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


def main() -> int:
    arguments = parse_arguments("python -m bench.mongodb", __doc__ or "", NAMES)
    rows, changes = min(arguments.rows, ROWS), min(arguments.changes, CHANGES)
    console = new_console()
    warn_if_busy(console)
    comparisons: list[Comparison] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, MongoServer(Path(name)) as server:
        database = server.client["bench"]
        _insert(database, "rows", rows)
        if {"columns", "json"} & set(arguments.names):
            _tell_raw(database, rows, arguments.rounds, console)
        if "columns" in arguments.names:
            comparison = Comparison(
                "columns", f"{rows:,} documents → Arrow", "pymongoarrow", Bars(ratio_min=1.0)
            )
            work = (lambda: _pymongoarrow(database), lambda: _columns(database))
            comparisons.append(_compare(comparison, *work, arguments.rounds, console))
        if "json" in arguments.names:
            comparison = Comparison(
                "json", f"{rows:,} documents → JSON", "bson.json_util", Bars(ratio_min=5.0)
            )
            work = (lambda: _json_util(database), lambda: _json(database))
            comparisons.append(_compare(comparison, *work, arguments.rounds, console))
        if "changes" in arguments.names:
            comparisons.append(_compare_changes(database, changes, arguments.rounds, console))
    return finish(console, comparisons, arguments)


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


def _tell_raw(database: Source, rows: int, rounds: int, console: Console) -> None:
    """What no reader can be faster than: the server's batches, with nothing done to them."""
    seconds = median(_measure(lambda: _raw(database)).usage.seconds for _ in range(rounds))
    console.log(f"raw batches: {rows / seconds:,.0f} documents/s; columns and JSON are told against it too")
    for name, work in (("columns", _columns), ("json", _json)):
        work(database)
        took = median(_measure(lambda work=work: work(database)).usage.seconds for _ in range(rounds))  # type: ignore[misc]
        console.log(f"{name}: {seconds / took:.2f} of a raw scan")


def _raw(database: Source) -> int:
    return sum(documents.rows for documents in _batches(database))


def _batches(database: Source) -> Iterator[Any]:
    return read_chunk(database, "rows", Chunk())


def _columns(database: Source) -> int:
    known = Fields()
    return sum(batch.num_rows for documents in _batches(database) for batch in known.read(documents))


def _pymongoarrow(database: Source) -> int:
    return int(find_arrow_all(database["rows"], {}, schema=_SCHEMA).num_rows)


def _json(database: Source) -> int:
    return sum(len(json_texts(documents)) for documents in _batches(database))


def _json_util(database: Source) -> int:
    count = 0
    for document in database["rows"].find():
        json_util.dumps(document, json_options=_CANONICAL)
        count += 1
    return count


def _compare_changes(database: Source, rows: int, rounds: int, console: Console) -> Comparison:
    comparison = Comparison(
        "changes", f"{rows:,} inserts of a change stream", "bare watch() loop", Bars(ratio_min=1.0)
    )
    with closing(ChangeStream(database, StreamOptions())) as stream:
        stream.read(wait_ms=1)
        place = stream.place
    _insert(database, "changed", rows)
    return _compare(
        comparison,
        lambda: _watch(database, place, rows),
        lambda: _changes(database, place, rows),
        rounds,
        console,
    )


def _watch(database: Source, place: Place, rows: int) -> int:
    count = 0
    with database.watch(full_document="updateLookup", start_after=place.options()["startAfter"]) as stream:
        for _ in stream:
            count += 1
            if count == rows:
                break
    return count


def _changes(database: Source, place: Place, rows: int) -> int:
    count = 0
    with closing(ChangeStream(database, StreamOptions(), place)) as stream:
        while count < rows:
            for part in stream.read().parts:
                _ = part.operations, part.times, part.keys, part.namespaces
                count += len(json_texts(part.after.documents))
    return count


if __name__ == "__main__":
    sys.exit(main())
