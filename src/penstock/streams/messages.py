"""What applications emit by `pg_logical_emit_message`, as events.

Capture keeps the messages whose prefixes a lane asks for as rows of a stream of their own
(`capture.postgres.emitted`). An event's key is the prefix, so that messages of one prefix stay in order; its
value says what was emitted: `content` in base64, since it may be any bytes, `op` `m`, and where it stands
among the changes of its transaction. Its name is (tx, number): messages have no number among the changes.

Made one by one: they are few, and each is a document of its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa

from penstock.capture.transactions import ChangeRows
from penstock.core.position import Lsn
from penstock.core.stream import MESSAGES
from penstock.log import columns as log_columns
from penstock.streams.events import MESSAGE, Events
from penstock.streams.topics import filled, legal_topic

_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class EmittedRoute:
    """`prefixes` that end in `*` match more; in `topic`, `{prefix}` is the message's own."""

    prefixes: tuple[str, ...]
    topic: str

    def wants(self, prefix: str) -> bool:
        return any(
            prefix.startswith(each[:-1]) if each.endswith("*") else prefix == each for each in self.prefixes
        )


def message_events(changes: ChangeRows, route: EmittedRoute) -> list[Events]:
    """The messages that the route wants, those of each prefix together and in their order."""
    prefixes = changes.new("prefix").dictionary_encode()
    codes = prefixes.indices.to_numpy()
    found = []
    for code, prefix in enumerate(prefixes.dictionary.to_pylist()):
        if route.wants(prefix):
            rows = changes.rows.take(pa.array(np.flatnonzero(codes == code)))
            part = ChangeRows(changes.stream, changes.leaf, changes.schema_id, rows)
            found.append(_events(part, prefix, filled(route.topic, {"prefix": prefix})))
    return found


def _events(changes: ChangeRows, prefix: str, topic: str) -> Events:
    rows = len(changes)
    return Events(
        MESSAGES,
        legal_topic(topic),
        changes.tx,
        changes.new("number").cast(pa.int64()).to_numpy(),
        np.full(rows, MESSAGE, np.uint8),
        changes.xid.astype(np.int64),
        pa.array([prefix.encode()] * rows, pa.binary()),
        pa.array(list(_values(changes, prefix)), pa.binary()),
    )


def _values(changes: ChangeRows, prefix: str) -> Iterator[bytes]:
    contents = changes.new("content").to_pylist()
    transactional = changes.new("transactional").to_pylist()
    times = changes.rows.column(log_columns.COMMIT_TS).cast(pa.int64()).to_pylist()
    for row, content in enumerate(contents):
        tx, us = int(changes.tx[row]), times[row]
        value = {
            "op": "m",
            "message": {"prefix": prefix, "content": base64.b64encode(bytes.fromhex(content[2:])).decode()},
            "source": {
                "schema": "",
                "table": "",
                "lsn": str(Lsn(tx)),
                "txid": int(changes.xid[row]) or None,
                "commit_ts": (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds") + "Z",
                "tx": tx,
                "op_index": int(changes.op_index[row]),
                "transactional": transactional[row] == "t",
                "snapshot": False,
            },
            "ts_ms": us // 1000,
        }
        yield json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
