"""Items of shapes' logs for tests, as plain tuples, and what a client makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.core.offset import LogOffset
from penstock.shapes.storage import LogItems, ShapeItems, ShapeStorage, ShapeStore

START = LogOffset.LAST_BEFORE_REAL
OPERATIONS = {"i": "insert", "u": "update", "d": "delete"}
Rows = dict[str, dict[str, str]]


class Item(NamedTuple):
    tx: int
    op: int
    kind: str
    key: str
    value: dict[str, str]
    last: bool = False

    @property
    def offset(self) -> LogOffset:
        return LogOffset(self.tx, self.op)

    def json(self) -> bytes:
        headers = {"operation": OPERATIONS[self.kind], "txids": [self.tx], "lsn": str(self.tx)}
        last = {"last": True} if self.last else {}
        text = {"key": self.key, "value": self.value, "headers": {**headers, "op_position": self.op, **last}}
        return json.dumps(text, separators=(",", ":")).encode()


def log_items(items: Sequence[Item], *, whole: bool = True, durable_first: bool = False) -> LogItems:
    columns: Any = (*_columns(items), items[-1].offset if whole else None, durable_first)
    return LogItems(*columns)


def shape_items(parts: Iterable[tuple[int, Sequence[Item]]], *, whole: bool = True) -> ShapeItems:
    """Items by slot."""
    parts = list(parts)
    flat = [item for _, items in parts for item in items]
    slots = np.array([slot for slot, _ in parts], np.int32)
    ends = np.array(list(accumulate(len(items) for _, items in parts)), np.int64)
    columns: Any = (slots, ends, *_columns(flat), whole)
    return ShapeItems(*columns)


def _columns(items: Sequence[Item]) -> tuple[Any, ...]:
    keys, texts = [item.key.encode() for item in items], [item.json() for item in items]
    return (
        np.array([item.tx for item in items], np.int64),
        np.array([item.op for item in items], np.int64),
        np.array([ord(item.kind) for item in items], np.uint8),
        np.array(list(accumulate(map(len, keys))), np.int64),
        b"".join(keys),
        np.array(list(accumulate(map(len, texts))), np.int64),
        b"".join(texts),
    )


def read(storage: ShapeStorage, after: LogOffset = START, up_to: LogOffset | None = None) -> list[bytes]:
    """The JSON of each item, as the blocks put together have it."""
    blocks = list(storage.get_log_stream(after, up_to or storage.readable_offset))
    assert all(blocks)
    text = b"".join(blocks)
    return text.split(b",\n") if text else []


def read_in_chunks(storage: ShapeStorage, after: LogOffset = START) -> list[list[bytes]]:
    """As a client reads: each answer ends where a chunk does, or with the log."""
    answers = []
    while after < storage.readable_offset:
        end = storage.get_chunk_end_log_offset(after) or storage.readable_offset
        end = min(end, storage.readable_offset)
        answers.append(read(storage, after, end))
        after = end
    return answers


def apply(rows: Rows, texts: Iterable[bytes]) -> Rows:
    """What a client has after these items; none may come twice or for a row that is not there."""
    rows = {key: dict(row) for key, row in rows.items()}
    for text in texts:
        item = json.loads(text)
        key, operation = item["key"], item["headers"]["operation"]
        assert (key in rows) == (operation != "insert"), f"{operation} of {key}"
        if operation == "delete":
            del rows[key]
        else:
            rows.setdefault(key, {}).update(item["value"])
    return rows


def ready_shape(store: ShapeStore, handle: str, slot: int) -> ShapeStorage:
    """A shape with an empty snapshot that outlives a crash after the next commit."""
    storage = store.open(handle, slot)
    storage.make_new_snapshot().close(b'{"headers":{"control":"snapshot-end"}}')
    storage.make_ready(json.dumps({"shape": handle}), json.dumps({"lsn": slot}))
    return storage


def abandon(store: ShapeStore) -> None:
    """Leave a store that was not started as a killed process would."""
    store.loop.log.close()
    store.loop._remover.shutdown()
    store.loop._file_system.close()
    store.place.close()


def reopened(store: ShapeStore, directory: Path, **options: Any) -> ShapeStore:
    abandon(store)
    return ShapeStore(directory, **options)
