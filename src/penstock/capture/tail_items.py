"""What the tail tells a reader, and how it travels.

A Flight stream of record batches, each with some bytes beside it (its `app_metadata`). Of two kinds of items
these are JSON, and the batch is empty:

    hello         system_id, timeline, epoch, position     once, first
    log           to, epoch                                read the change log up to `to`; then this goes on

All others are whole transactions, everything up to `end`. Beside their batch is a head of fixed size: `end`,
and `at`, when capture had them whole, in seconds since 1970. The batch has one line per piece of a table, in
the order of the log: stream, leaf, schema id, and the rows as an Arrow IPC stream in the log's own columns
(`log.columns`). A truncate is a row with `_op` "t", a change of the schema another piece with another schema
id. Without a piece, nothing happened up to `end`; the same `end` again is a sign of life.

Most transactions have few rows. What those cost is not their values but the calls around them, which find
nothing of theirs in the processor's caches: five times what they cost in a loop. So of one small piece the
batch stays empty. Its table, names and schema, encoded once and read once, and the message of its rows
follow the head.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.errors import CaptureAwayError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId

SCHEMA = pa.schema(
    [("stream", pa.string()), ("leaf", pa.string()), ("schema_id", pa.string()), ("rows", pa.binary())]
)
NOTHING = pa.RecordBatch.from_pylist([], schema=SCHEMA)
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an IPC stream
_FEW_ROWS = 16
_SMALL_BYTES = 1 << 16
_HEAD = struct.Struct("<8sQd")  # mark, end, at
_MARK = b"changes\0"
_TABLE_HEAD = struct.Struct("<II")  # of a small piece: bytes of its table, and of the names among them
_KNOWN_MAX = 1024  # schemas and names of tables that are kept
# What comes through gRPC lies anywhere in memory; numpy and compiled code want numbers where they belong.
_ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one leaf in one schema version, in the order of the log."""

    stream: StreamId
    leaf: StreamId
    schema_id: str
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose changes these are, and how far capture was when the reader came."""

    system_id: str
    timeline: int
    epoch: Lsn
    position: Lsn


@dataclass(frozen=True, slots=True)
class Transactions:
    """Whole transactions, with all there is up to `end`. `at` is None for those read from the log.

    `untold`: streams that lack changes, and in which transactions, in order (`TableEntry.untold`):
    a stream that has passed the first is to stop at the next. Items that have any are read from the log.
    """

    end: Lsn
    pieces: Iterable[Piece]
    at: float | None = None
    untold: Mapping[StreamId, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadLog:
    """The change log has everything up to `to`, memory does not."""

    to: Lsn


TailItem: TypeAlias = Origin | Transactions | ReadLog


def transactions_item(end: Lsn, at: float, pieces: Sequence[Piece]) -> tuple[pa.RecordBatch, bytes]:
    """A batch, and what goes beside it."""
    head = _HEAD.pack(_MARK, end, at)
    if not pieces:
        return NOTHING, head
    if len(pieces) == 1 and pieces[0].rows.num_rows <= _FEW_ROWS:
        rows = pieces[0].rows.serialize()
        if rows.size <= _SMALL_BYTES:
            return NOTHING, b"".join((head, _table_bytes(pieces[0]), rows))
    return _pieces_to_batch(pieces), head


def item_of(batch: pa.RecordBatch, line: bytes) -> TailItem:
    if line.startswith(_MARK):
        _, end, at = _HEAD.unpack_from(line)
        pieces = (_small_piece(line),) if len(line) > _HEAD.size else _pieces_of_batch(batch)
        return Transactions(Lsn(end), pieces, at)
    fields = json.loads(line)
    if fields["kind"] == "log":
        return ReadLog(Lsn.parse(fields["to"]))
    if fields["kind"] != "hello":
        raise CaptureAwayError(
            "Capture is of another version of Penstock than this lane.",
            remedy="Restart the whole of `penstock run` after an upgrade.",
        )
    return Origin(
        fields["system_id"], fields["timeline"], Lsn.parse(fields["epoch"]), Lsn.parse(fields["position"])
    )


class _KnownTables:
    """The bytes before the rows of a small piece, by its table: a version of a table has one schema."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, StreamId, StreamId], bytes] = {}

    def __call__(self, piece: Piece) -> bytes:
        key = piece.schema_id, piece.leaf, piece.stream
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            found = self._known[key] = _table_to_bytes(piece)
        return found


_table_bytes = _KnownTables()


def _table_to_bytes(piece: Piece) -> bytes:
    names = json.dumps([str(piece.stream), str(piece.leaf), piece.schema_id]).encode()
    names += b" " * (-len(names) % 8)
    schema = piece.rows.schema.serialize().to_pybytes()
    return b"".join((_TABLE_HEAD.pack(len(names) + len(schema), len(names)), names, schema))


def _small_piece(line: bytes) -> Piece:
    """Everything in `line` is padded to 8 bytes, so the numbers lie where they belong."""
    begin = _HEAD.size + _TABLE_HEAD.size
    size, names_size = _TABLE_HEAD.unpack_from(line, _HEAD.size)
    stream, leaf, schema_id, schema = _table_of(line[begin : begin + size], names_size)
    rows = pa.ipc.read_record_batch(pa.py_buffer(line).slice(begin + size), schema)
    return Piece(stream, leaf, schema_id, rows)


@lru_cache(_KNOWN_MAX)
def _table_of(content: bytes, names_size: int) -> tuple[StreamId, StreamId, str, pa.Schema]:
    stream, leaf, schema_id = json.loads(content[:names_size])
    schema = pa.ipc.read_schema(pa.py_buffer(content[names_size:]))
    return StreamId.parse(stream), StreamId.parse(leaf), schema_id, schema


def _pieces_to_batch(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """One buffer for the rows of all pieces, written once.

    It has the size that is needed, and its memory is the C library's, which capture has keep what is freed.
    Arrow's own pool gives it back, and the system clears the same pages again for each batch: measured, 0.6
    CPU-seconds per million rows.
    """
    sizes = (
        piece.rows.schema.serialize().size + pa.ipc.get_record_batch_size(piece.rows) for piece in pieces
    )
    buffer = pa.allocate_buffer(sum(sizes) + len(_END) * len(pieces), pa.system_memory_pool())
    ends = [0]
    with pa.FixedSizeBufferWriter(buffer) as sink:
        for piece in pieces:
            with pa.ipc.new_stream(sink, piece.rows.schema) as stream:
                stream.write_batch(piece.rows)
            ends.append(sink.tell())
    buffers = [None, pa.py_buffer(np.array(ends, np.int32)), buffer]
    arrays = [
        pa.array([str(piece.stream) for piece in pieces], pa.string()),
        pa.array([str(piece.leaf) for piece in pieces], pa.string()),
        pa.array([piece.schema_id for piece in pieces], pa.string()),
        pa.Array.from_buffers(pa.binary(), len(pieces), buffers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _pieces_of_batch(batch: pa.RecordBatch) -> tuple[Piece, ...]:
    streams, leaves, schema_ids, rows = batch.columns
    return tuple(
        Piece(
            StreamId.parse(streams[line].as_py()),
            StreamId.parse(leaves[line].as_py()),
            schema_ids[line].as_py(),
            pa.ipc.open_stream(rows[line].as_buffer(), options=_ALIGNED).read_next_batch(),
        )
        for line in range(batch.num_rows)
    )


def origin_line(origin: Origin) -> bytes:
    return _line(
        "hello",
        origin.epoch,
        system_id=origin.system_id,
        timeline=origin.timeline,
        position=str(origin.position),
    )


def log_line(to: Lsn, epoch: Lsn) -> bytes:
    return _line("log", epoch, to=str(to))


def _line(kind: str, epoch: Lsn, **fields: Any) -> bytes:
    return json.dumps({"kind": kind, "epoch": str(epoch), **fields}).encode()
