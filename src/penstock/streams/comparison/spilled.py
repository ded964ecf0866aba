"""Rows of one side of a comparison on disk: columns, in buckets of keys.

All records of a key are in one bucket, on both sides, so a bucket can be judged without the others. A record
without a key is in one by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.streams.events import TOMBSTONE, Bytes, Int64s
from penstock.streams.kafka.partitions import partitions_of
from penstock.verify.canonical import Secret, hash_rows

BUCKET_ROWS = 250_000  # aimed at
BUCKETS_MAX = 128
_BUFFERED_ROWS = 65_536
_BUFFERED_BYTES = 16 << 20
_SCHEMA = pa.schema(
    [
        ("stream", pa.int32()),
        ("route", pa.int32()),
        ("tx", pa.int64()),
        ("op", pa.int64()),
        ("kind", pa.uint8()),
        ("key", pa.binary()),
        ("high", pa.uint64()),
        ("low", pa.uint64()),
        ("place", pa.int32()),
        ("at", pa.int64()),
    ]
)
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Rows:
    """`stream` and `route` are numbers of names; `high` and `low` the hash of the value.

    Of what is expected, `place` is the partition (-1: any) and `at` 1 if the format cannot say it; of what
    was found, `place` and `at` are the partition and the offset there.
    """

    stream: Int32s
    route: Int32s
    tx: Int64s
    op: Int64s
    kind: Bytes
    key: pa.BinaryArray
    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]
    place: Int32s
    at: Int64s

    def __len__(self) -> int:
        return len(self.tx)

    @property
    def is_tombstone(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self.kind == TOMBSTONE
        return found

    def take(self, rows: npt.NDArray[np.intp]) -> Rows:
        columns = [getattr(self, field.name) for field in _SCHEMA]
        return Rows(
            *(each.take(pa.array(rows)) if isinstance(each, pa.Array) else each[rows] for each in columns)
        )


class Numbers:
    """Names as numbers, in the order in which they came."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def find(self, name: str) -> int | None:
        return self._numbers.get(name)

    @property
    def names(self) -> list[str]:
        return list(self._numbers)


def buckets_for(rows: int) -> int:
    return min(BUCKETS_MAX, max(1, -(-rows // BUCKET_ROWS)))


class Spilled:
    """One side. Written, then read."""

    def __init__(self, directory: Path, side: str, buckets: int, secret: Secret) -> None:
        self.rows = 0
        self._directory = directory
        self._side = side
        self.buckets = buckets
        self._secret = secret
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._writers: dict[int, pa.RecordBatchStreamWriter] = {}

    def add(
        self,
        stream: int | Int32s,
        route: int | Int32s,
        tx: Int64s,
        op: Int64s,
        kind: Bytes,
        key: pa.BinaryArray,
        value: pa.BinaryArray,
        place: Int32s,
        at: Int64s,
    ) -> None:
        if not len(tx):
            return
        hashed = hash_rows([value], 0, self._secret)
        columns = [
            np.broadcast_to(np.asarray(stream, np.int32), tx.shape),
            np.broadcast_to(np.asarray(route, np.int32), tx.shape),
            tx,
            op,
            kind,
            key,
            hashed.row_high,
            hashed.row_low,
            place,
            at,
        ]
        arrays = [
            pa.array(each, field.type) if isinstance(each, np.ndarray) else each
            for each, field in zip(columns, _SCHEMA, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
        self._waiting.append(batch)
        self.rows += batch.num_rows
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += key.nbytes
        if self._waiting_rows >= _BUFFERED_ROWS or self._waiting_bytes >= _BUFFERED_BYTES:
            self._write()

    def done(self) -> None:
        """Nothing more is added."""
        self._write()
        for writer in self._writers.values():
            writer.close()

    def bucket(self, number: int) -> Rows:
        path = self._path(number)
        if not path.exists():
            return _rows(pa.table([pa.array([], field.type) for field in _SCHEMA], schema=_SCHEMA))
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            return _rows(stream.read_all())

    def _write(self) -> None:
        if not self._waiting:
            return
        whole = pa.concat_batches(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        buckets = self._bucket_of(whole)
        order = np.argsort(buckets, kind="stable")
        whole = whole.take(pa.array(order))
        ends = np.searchsorted(buckets[order], np.arange(self.buckets + 1))
        for number in np.unique(buckets).tolist():
            start, stop = int(ends[number]), int(ends[number + 1])
            self._writer(number).write_batch(whole.slice(start, stop - start))

    def _bucket_of(self, batch: pa.RecordBatch) -> Int64s:
        found = partitions_of(batch.column("key"), self.buckets).astype(np.int64)
        without = found < 0
        if without.any():
            names = batch.column("tx").to_numpy() ^ batch.column("op").to_numpy()
            found[without] = (names[without] >> 1) % self.buckets
        return found

    def _writer(self, number: int) -> pa.RecordBatchStreamWriter:
        if number not in self._writers:
            self._writers[number] = pa.ipc.new_stream(str(self._path(number)), _SCHEMA)
        return self._writers[number]

    def _path(self, number: int) -> Path:
        return self._directory / f"{self._side}.{number}.arrow"


def _rows(table: pa.Table) -> Rows:
    found = []
    for column in table.columns:
        whole = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        found.append(whole if column.type == pa.binary() else whole.to_numpy())
    return Rows(*found)
