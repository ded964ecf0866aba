"""Events as Kinesis takes them: a partition key and data each, in columns.

Kinesis has no headers, so each record bears its name inside: a value that is a JSON object gets one last
member

    "penstock": {"identity": …, "stream": …, "route": …, "epoch": …, "chunk": …, "id": …, "headers": {…}}

and anything else is sent as `{"value": <base64, or null>, "penstock": {…}}`. `id` is `<tx>_<op>`, with `_n`
of a tombstone; of a loaded row the digest of its key, or its number in the load if its table has no key.
`identity` (the lane's and the source's) and `epoch` say who has written it in which term: whoever reads back
knows its own records, and those that came late. `chunk` is there for loaded rows only, `headers` for messages
that have some.

The partition key is the event's key; one of over 256 letters is sent as its MD5, and an event without a key
goes by the MD5 of its value.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.compiling import read_only
from penstock.core.position import Lsn
from penstock.streams.events import TOMBSTONE, Events, Int64s
from penstock.streams.kinesis import record_kernels as kernels

Group: TypeAlias = tuple[str, str, str]  # stream, route, chunk
Identities: TypeAlias = npt.NDArray[np.uint64]  # of one group: two words a row
_MEMBER = b'"penstock":{"identity":'
_OF_MEMBER = len(b'"penstock":')
_CLOSED = b"}}"  # the envelope, and the value


@dataclass(frozen=True, slots=True)
class Records:
    keys: npt.NDArray[np.uint8]
    key_ends: Int64s
    data: npt.NDArray[np.uint8]
    data_ends: Int64s
    hashes: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def sizes(self) -> Int64s:
        return np.diff(self.key_ends) + np.diff(self.data_ends)

    def key(self, row: int) -> bytes:
        return self.keys[self.key_ends[row] : self.key_ends[row + 1]].tobytes()

    def body(self, stream: str, rows: Int64s) -> bytes:
        """The request that puts `rows`, of which there is at least one."""
        head = np.frombuffer(body_head(stream), np.uint8)
        return kernels.write_body(head, self.keys, self.key_ends, self.data, self.data_ends, rows).tobytes()


def body_head(stream: str) -> bytes:
    """What is before the first record of a PutRecords request."""
    return b'{"StreamName":%s,"Records":[' % json.dumps(stream).encode()


@dataclass(frozen=True, slots=True)
class Name:
    """What a record that was read says of itself."""

    group: Group
    identity: tuple[int, int]
    epoch: Lsn


class RecordMaker:
    """For one term of one lane."""

    def __init__(self, identity: str, epoch: Lsn) -> None:
        self._identity = identity
        self._epoch = epoch

    def records(self, events: Events) -> Records:
        columns = _Columns(events)
        keys, key_ends, hashes, digests, keyless = columns.partition_keys()
        prefix = np.frombuffer(self._prefix(events), np.uint8)
        names = _names(events, keyless)
        ends = kernels.data_ends(columns.values, names, len(prefix))
        data = kernels.write_data(columns.values, names, digests, prefix, ends)
        if events.headers:
            data, ends = _with_headers(data, ends, _told_headers(events))
        return Records(keys, key_ends, read_only(data), ends, hashes)

    def sizes(self, events: Events) -> Int64s:
        columns = _Columns(events)
        lengths, keyless = kernels.key_lengths(*columns.keys)
        prefix_length = len(self._prefix(events))
        ends = kernels.data_ends(columns.values, _names(events, keyless), prefix_length)
        sizes: Int64s = lengths + np.diff(ends)
        if events.headers:
            sizes += np.array([len(each) for each in _told_headers(events)], np.int64)
        return sizes

    def _prefix(self, events: Events) -> bytes:
        told = {
            "identity": self._identity,
            "stream": str(events.stream),
            "route": events.route,
            "epoch": str(self._epoch),
            **({"chunk": events.chunk} if events.chunk else {}),
            "id": "",
        }
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
        return b',"penstock":' + text.encode()[: -len('"}')]


class _Columns:
    """The buffers of keys and values, which live as long as the events do."""

    def __init__(self, events: Events) -> None:
        self.keys = _buffers(events.key)
        self.values = _buffers(events.value)

    def partition_keys(self) -> Any:
        key_bytes, key_offsets, is_null = self.keys
        return kernels.partition_keys(key_bytes, key_offsets, is_null, *self.values[:2])


def _told_headers(events: Events) -> list[bytes]:
    """What each event's envelope says of headers; nothing, if it has none. One by one, as Kafka's are."""
    columns = [column.to_pylist() for column in events.headers.values()]
    rows = (dict(zip(events.headers, row, strict=True)) for row in zip(*columns, strict=True))
    return [_told({name: text for name, text in row.items() if text is not None}) for row in rows]


def _told(headers: dict[str, str]) -> bytes:
    if not headers:
        return b""
    return b',"headers":' + json.dumps(headers, ensure_ascii=False, separators=(",", ":")).encode()


def _with_headers(data: npt.NDArray[np.uint8], ends: Int64s, headers: list[bytes]) -> tuple[Any, Int64s]:
    """The data with this before the end of each envelope."""
    whole = data.tobytes()
    pieces = [
        whole[begin : end - len(_CLOSED)] + each + _CLOSED
        for (begin, end), each in zip(pairwise(ends.tolist()), headers, strict=True)
    ]
    lengths = np.array([0, *map(len, pieces)], np.int64)
    return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum(lengths)


def _names(events: Events, keyless: npt.NDArray[np.bool_]) -> kernels.Names:
    tombstones = read_only(events.kind == TOMBSTONE)
    return read_only(events.tx), read_only(events.op), tombstones, read_only(keyless), bool(events.chunk)


def group_of(events: Events) -> Group:
    return (str(events.stream), events.route, events.chunk)


def identities(events: Events) -> Identities:
    """What tells an event from all others of its group."""
    if not events.chunk:
        tombstones = (events.kind == TOMBSTONE).astype(np.uint64)
        op = (events.op.astype(np.uint64) << np.uint64(1)) | tombstones
        return np.stack([events.tx.astype(np.uint64), op], axis=1)
    _, _, _, digests, keyless = _Columns(events).partition_keys()
    by_number = np.stack([np.zeros(len(events), np.uint64), events.op.astype(np.uint64)], axis=1)
    return np.where(keyless[:, None], by_number, digests)


def name_of(data: bytes, identity: str) -> Name | None:
    """None: the record is not of this lane."""
    at = data.rfind(_MEMBER)
    if at < 0:
        return None
    try:
        told = json.loads(data[at + _OF_MEMBER : -1])
        if told["identity"] != identity:
            return None
        chunk = told.get("chunk", "")
        named = _identity(told["id"], is_loaded=bool(chunk))
        return Name((told["stream"], told["route"], chunk), named, Lsn.parse(told["epoch"]))
    except (ValueError, KeyError, TypeError):
        return None


def _identity(text: str, *, is_loaded: bool) -> tuple[int, int]:
    if is_loaded:
        return (int(text[:16], 16), int(text[16:], 16)) if len(text) == 32 else (0, int(text))
    tx, op, *tombstone = text.split("_")
    return int(tx), int(op) << 1 | bool(tombstone)


def _buffers(column: pa.BinaryArray) -> kernels.Values:
    count = len(column)
    is_null = np.zeros(count, np.bool_)
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
    _, offsets, values = column.buffers()
    if offsets is None or count == 0:
        return read_only(np.zeros(0, np.uint8)), read_only(np.zeros(count + 1, np.int32)), read_only(is_null)
    bounds = np.frombuffer(offsets, np.int32, count + 1, column.offset * 4)
    content = np.frombuffer(values, np.uint8) if values else np.zeros(0, np.uint8)
    return read_only(content), read_only(bounds), read_only(is_null)
