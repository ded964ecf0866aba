"""What is told beside changes, by choice: a stream's columns, and where each transaction ends.

Columns of a stream are told before the first event that has them, and again when the lane starts, and by each
Spark task that encodes a part of a backlog: the topic suits compaction, its key is the stream. The end of a
transaction is told with its last events, in the same commit, with how many events of each stream it has; what
was sent by loads is not in that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.capture.transactions import ChangeRows
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.events import MESSAGE, TOMBSTONE, Events

SCHEMA_CHANGES = StreamId("pg_penstock", "schema_changes")  # Postgres keeps such names from everybody else
TRANSACTIONS = StreamId("pg_penstock", "transactions")


def columns_told(changes: ChangeRows, key: Sequence[str], route: str) -> Events:
    """The columns that these changes are the first to have."""
    tx, op = int(changes.tx[0]), int(changes.op_index[0])
    value = {
        "stream": str(changes.stream),
        "columns": [
            {"name": column.name, "type": column.type_text, "nullable": column.nullable}
            for column in changes.version.columns.values()
        ],
        "key": list(key),
        "from": {"lsn": str(Lsn(tx)), "tx": tx, "op_index": op},
    }
    return _events(SCHEMA_CHANGES, route, [(tx, op, int(changes.xid[0]), str(changes.stream), value)])


class Boundaries:
    """Counts events of transactions until these are whole."""

    def __init__(self, route: str) -> None:
        self._route = route
        self._counts: dict[int, dict[str, int]] = {}
        self._xids: dict[int, int] = {}

    def count(self, events: Events) -> None:
        if not len(events):
            return
        told = events.kind != TOMBSTONE
        numbers, first, counts = np.unique(events.tx[told], return_index=True, return_counts=True)
        xids = events.xid[told][first]
        for tx, xid, count in zip(numbers.tolist(), xids.tolist(), counts.tolist(), strict=True):
            of_stream = self._counts.setdefault(tx, {})
            of_stream[str(events.stream)] = of_stream.get(str(events.stream), 0) + count
            self._xids[tx] = xid

    def take(self) -> list[Events]:
        """The ends of all that were counted, in their order."""
        rows = [
            (tx, 0, self._xids[tx], str(tx), _end(tx, self._xids[tx], counts))
            for tx, counts in sorted(self._counts.items())
        ]
        self._counts.clear()
        self._xids.clear()
        return [_events(TRANSACTIONS, self._route, rows)] if rows else []


def _end(tx: int, xid: int, counts: dict[str, int]) -> dict[str, Any]:
    return {
        "status": "END",
        "id": f"{xid}:{tx}",
        "tx": tx,
        "txid": xid,
        "event_count": sum(counts.values()),
        "data_collections": [
            {"data_collection": stream, "event_count": count} for stream, count in sorted(counts.items())
        ],
    }


def _events(stream: StreamId, route: str, rows: list[tuple[int, int, int, str, dict[str, Any]]]) -> Events:
    tx, op, xid, keys, values = zip(*rows, strict=True)
    return Events(
        stream,
        route,
        np.array(tx, np.int64),
        np.array(op, np.int64),
        np.full(len(rows), MESSAGE, np.uint8),
        np.array(xid, np.int64),
        pa.array([key.encode() for key in keys], pa.binary()),
        pa.array([json.dumps(value, ensure_ascii=False).encode() for value in values], pa.binary()),
    )
