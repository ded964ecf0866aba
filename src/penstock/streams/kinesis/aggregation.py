"""Many events in one record, in the format of the Kinesis Producer Library, and taken apart again.

A record is four magic bytes, a Protobuf message and the message's MD5. The message has the table of partition
keys (field 1) and the records (field 3), each with the number of its key (1) and its data (3):

    F3 89 9A C2 | 0A <key> … 1A <08 <number> 1A <data>> … | MD5

All events of an aggregate belong to one shard, which its explicit hash key names. Readers pass over events
whose key is not in the range of the shard that they read: so after a split or merge that was not known when
it was sent, the events that landed elsewhere are sent again, and each counts once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.compiling import compiled
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.events import Events, Int64s
from penstock.streams.kinesis.records import RecordMaker, Records
from penstock.text_kernels import Bytes, Ints, Number, copy_bytes

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16
#: What one event adds to its key and data at most: two tags and lengths each, a number, the record's own.
EVENT_OVERHEAD = 32
FRAME_OVERHEAD = len(MAGIC) + _DIGEST_BYTES
_KEY_TAG, _RECORD_TAG, _NUMBER_TAG, _DATA_TAG = 0x0A, 0x1A, 0x08, 0x1A


@dataclass(frozen=True, slots=True)
class Aggregate:
    rows: Int64s
    key: bytes
    hash: int  # of its first event, and so of its shard
    data: bytes


def aggregated(records: Records, rows: Int64s, places: Int64s, bytes_max: int) -> Iterator[Aggregate]:
    """`rows` of the records by shard (`places`, one for each of `rows`), in their order."""
    by_place = np.argsort(places, kind="stable")
    ordered, of_place = rows[by_place], places[by_place]
    sizes = records.sizes[ordered] + EVENT_OVERHEAD
    start = 0
    while start < len(ordered):
        same_place = int(np.searchsorted(of_place, of_place[start], side="right"))
        totals = np.cumsum(sizes[start:same_place])
        fitting = int(np.searchsorted(totals, bytes_max - FRAME_OVERHEAD, side="right"))
        stop = start + max(1, fitting)
        yield _aggregate(records, ordered[start:stop])
        start = stop


def _aggregate(records: Records, rows: Int64s) -> Aggregate:
    message = _write_message(
        records.keys, records.key_ends, records.data, records.data_ends, rows, EVENT_OVERHEAD
    ).tobytes()
    high, low = (int(word) for word in records.hashes[rows[0]])
    data = MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()
    return Aggregate(rows, records.key(int(rows[0])), high << 64 | low, data)


def taken_apart(data: bytes) -> list[tuple[bytes, bytes]] | None:
    """Partition key and data of each event; None: the record is none of these."""
    message, digest = data[len(MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not data.startswith(MAGIC) or hashlib.md5(message, usedforsecurity=False).digest() != digest:
        return None
    keys: list[bytes] = []
    parts: list[tuple[bytes, bytes]] = []
    for field, value in _fields(message):
        if field == 1 and isinstance(value, bytes):
            keys.append(value)
        elif field == 3 and isinstance(value, bytes):
            inner = dict(_fields(value))
            number, content = inner.get(1, 0), inner.get(3, b"")
            if isinstance(number, int) and isinstance(content, bytes) and number < len(keys):
                parts.append((keys[number], content))
    return parts


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, at = _varint(message, at)
        if tag & 7 == 2:
            yield tag >> 3, message[at : at + number]
            at += number
        else:
            yield tag >> 3, number


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at


def warm_up() -> None:
    """Have it compiled, and what makes records of events."""
    first = np.zeros(1, np.int64)
    kind = np.zeros(1, np.uint8)
    key, value = pa.array([b"[1]"]), pa.array([b"{}"])
    events = Events(StreamId("public", "t"), "", first, first, kind, first, key, value)
    maker = RecordMaker("", Lsn(0))
    maker.sizes(events)
    records = maker.records(events)
    records.body("", first)
    list(aggregated(records, first, first, 1 << 20))


@compiled()
def _varint_length(number: Number) -> Number:
    length = 1
    while number >= 0x80:
        length, number = length + 1, number >> 7
    return length


@compiled()
def _write_varint(number: Number, out: Bytes, at: Number) -> Number:
    while number >= 0x80:
        out[at] = 0x80 | (number & 0x7F)
        at, number = at + 1, number >> 7
    out[at] = number
    return at + 1


@compiled()
def _write_message(
    keys: Bytes, key_ends: Ints, data: Bytes, data_ends: Ints, rows: Ints, overhead: Number
) -> Bytes:
    room = np.int64(0)
    for row in rows:
        room += key_ends[row + 1] - key_ends[row] + data_ends[row + 1] - data_ends[row] + overhead
    out = np.empty(room, np.uint8)
    at = np.int64(0)
    for row in rows:
        out[at] = _KEY_TAG
        at = _write_varint(key_ends[row + 1] - key_ends[row], out, at + 1)
        at = copy_bytes(keys[key_ends[row] : key_ends[row + 1]], out, at)
    for number in range(len(rows)):
        row = rows[number]
        length = data_ends[row + 1] - data_ends[row]
        out[at] = _RECORD_TAG
        inner = 2 + _varint_length(np.int64(number)) + _varint_length(length) + length
        at = _write_varint(inner, out, at + 1)
        out[at] = _NUMBER_TAG
        at = _write_varint(np.int64(number), out, at + 1)
        out[at] = _DATA_TAG
        at = _write_varint(length, out, at + 1)
        at = copy_bytes(data[data_ends[row] : data_ends[row + 1]], out, at)
    return out[:at]
