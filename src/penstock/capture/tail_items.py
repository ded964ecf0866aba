"""What the tail tells a reader, and how it travels.

A Flight stream of record batches, each with a line of JSON beside it (its `app_metadata`):

    hello         system_id, timeline, epoch, position     once, first
    transactions  end, epoch, at                           whole transactions, everything up to `end`
    log           to, epoch                                read the change log up to `to`; then this goes on

The batch of `transactions` has one line per piece of a table, in the order of the log: stream, leaf, schema
id, and the rows as an Arrow IPC stream in the log's own columns (`log.columns`). A truncate is a row with
`_op` "t", a change of the schema another piece with another schema id. `at` is when capture had them whole,
in seconds since 1970. Without a piece, nothing happened up to `end`; the same `end` again is a sign of life.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.position import Lsn
from penstock.core.stream import StreamId

SCHEMA = pa.schema(
    [("stream", pa.string()), ("leaf", pa.string()), ("schema_id", pa.string()), ("rows", pa.binary())]
)
NOTHING = pa.RecordBatch.from_pylist([], schema=SCHEMA)
_END_BYTES = 8  # that say where an IPC stream ends
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
    """Whole transactions, with all there is up to `end`. `at` is None for those read from the log."""

    end: Lsn
    pieces: Iterable[Piece]
    at: float | None = None


@dataclass(frozen=True, slots=True)
class ReadLog:
    """The change log has everything up to `to`, memory does not."""

    to: Lsn


TailItem: TypeAlias = Origin | Transactions | ReadLog


def pieces_to_batch(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """One buffer for the rows of all pieces, written once.

    It has the size that is needed, and its memory is the C library's, which capture has keep what is freed.
    Arrow's own pool gives it back, and the system clears the same pages again for each batch: measured, 0.6
    CPU-seconds per million rows.
    """
    sizes = (
        piece.rows.schema.serialize().size + pa.ipc.get_record_batch_size(piece.rows) for piece in pieces
    )
    buffer = pa.allocate_buffer(sum(sizes) + _END_BYTES * len(pieces), pa.system_memory_pool())
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


def pieces_of_batch(batch: pa.RecordBatch) -> tuple[Piece, ...]:
    streams, leaves, schema_ids, rows = (column for column in batch.columns)
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


def transactions_line(end: Lsn, epoch: Lsn, at: float) -> bytes:
    return _line("transactions", epoch, end=str(end), at=at)


def log_line(to: Lsn, epoch: Lsn) -> bytes:
    return _line("log", epoch, to=str(to))


def item_of(batch: pa.RecordBatch, line: bytes) -> TailItem:
    fields = json.loads(line)
    if fields["kind"] == "transactions":
        return Transactions(Lsn.parse(fields["end"]), pieces_of_batch(batch), fields["at"])
    if fields["kind"] == "log":
        return ReadLog(Lsn.parse(fields["to"]))
    return Origin(
        fields["system_id"], fields["timeline"], Lsn.parse(fields["epoch"]), Lsn.parse(fields["position"])
    )


def _line(kind: str, epoch: Lsn, **fields: Any) -> bytes:
    return json.dumps({"kind": kind, "epoch": str(epoch), **fields}).encode()
