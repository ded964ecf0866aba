"""Reads the change log by offset range and stream.

A reader sees sealed steps only. Ranges are given as positions, never as step numbers (correctness 2):
a change belongs to `(after, to]` exactly if `after <= tx < to`. Manifests never change, so the latest read
are kept.

A log may have a hundred thousand steps, of which a lane that follows it needs the last few. So the directory
is listed once: steps are numbered without a gap, the next is found by its number, and a position by halving.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.core.alteration import Alteration
from penstock.core.errors import LogGoneError, StateError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns
from penstock.log.manifest import (
    SCHEMA_DIRECTORY,
    FileEntry,
    Manifest,
    TableEntry,
    list_sequence,
    manifest_path,
    read_manifest,
)

_MANIFESTS_KEPT = 4096
#: Of each column at a time: whole, the columns of a row group are 16 MiB before they are decompressed.
_READ_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class LogFile:
    path: Path
    schema_id: str
    leaf: str
    rows: int
    bytes: int
    ops: dict[str, int]
    first_tx: int
    last_tx: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """What a range of the log holds of one stream; `rows` and `bytes` count whole files."""

    files: tuple[LogFile, ...] = ()
    truncates: tuple[tuple[int, int], ...] = ()
    leaf_truncates: tuple[tuple[int, int, str], ...] = ()
    altered: tuple[tuple[int, int], ...] = ()
    alterations: tuple[tuple[int, int, Alteration], ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def __bool__(self) -> bool:
        return bool(self.files or self.truncates or self.leaf_truncates or self.altered)


class ChangeLog:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._manifests: dict[int, Manifest] = {}
        self._known = range(0)
        self._schemas: dict[str, TableSchema] = {}

    def manifests(self) -> list[Manifest]:
        """All sealed steps in order; an error if one is missing in between."""
        return self.after(Lsn(0))

    def after(self, position: Lsn, to: Lsn | None = None, most: int | None = None) -> list[Manifest]:
        """The sealed steps that end after a position, in order; an error if one is missing in between.

        Of them those that begin before `to`, and so many of the first, if that is given.
        """
        while True:
            try:
                numbers = self._numbers()
                first = bisect_right(numbers, position, key=lambda seq: self._manifest(seq).end)
                wanted = numbers[first:] if most is None else numbers[first : first + most]
                if to is not None:
                    wanted = wanted[: bisect_left(wanted, to, key=lambda seq: self._manifest(seq).start)]
                return self._without_gap([self._manifest(seq) for seq in wanted])
            except FileNotFoundError:
                self._known = range(0)  # retention removed it since we looked

    def newest(self) -> Manifest | None:
        return self._at(-1)

    def start(self) -> Lsn | None:
        oldest = self._at(0)
        return oldest.start if oldest else None

    def end(self) -> Lsn | None:
        newest = self.newest()
        return newest.end if newest else None

    def left(self, timeline: int) -> Lsn | None:
        """Where the first step begins that is of a later timeline; None: there is none yet."""
        while True:
            try:
                numbers = self._numbers()  # timelines only grow
                first = bisect_right(numbers, timeline, key=lambda seq: self._manifest(seq).timeline)
                return self._manifest(numbers[first]).start if first < len(numbers) else None
            except FileNotFoundError:
                self._known = range(0)

    def _at(self, index: int) -> Manifest | None:
        while True:
            try:
                numbers = self._numbers()
                return self._manifest(numbers[index]) if numbers else None
            except FileNotFoundError:
                self._known = range(0)

    def _numbers(self) -> range:
        """The numbers of the steps there are now."""
        known = self._known
        if not known or not manifest_path(self.directory, known[0]).exists():
            numbers = list_sequence(self.directory)
            if not numbers:
                return range(0)
            known = range(numbers[0], numbers[-1] + 1)
            if len(known) > len(numbers):
                self._without_gap([self._manifest(seq) for seq in numbers])
        end = known.stop
        while manifest_path(self.directory, end).exists():
            end += 1
        self._known = range(known.start, end)
        return self._known

    def _manifest(self, seq: int) -> Manifest:
        found = self._manifests.get(seq)
        if found is None:
            found = self._manifests[seq] = read_manifest(self.directory, seq)
            if len(self._manifests) > 2 * _MANIFESTS_KEPT:
                for oldest in list(self._manifests)[:_MANIFESTS_KEPT]:
                    del self._manifests[oldest]
        return found

    def _without_gap(self, manifests: list[Manifest]) -> list[Manifest]:
        for before, after in itertools.pairwise(manifests):
            if after.start != before.end or after.seq != before.seq + 1:
                raise StateError(
                    f"The change log has a gap: step {before.seq} ends at {before.end}, "
                    f"step {after.seq} begins at {after.start}.",
                    remedy=f"Restore {self.directory} from a backup, or run `penstock resync --yes`.",
                )
        return manifests

    def files(self, stream: StreamId, after: Lsn, to: Lsn) -> LogRange:
        """What `(after, to]` holds of `stream`, in the order of the log for each leaf.

        `LogGoneError` if the log begins after `after`: less would pass for all. 0 is wherever it begins.
        """
        steps = self.after(after, to)
        begins = steps[0].start if steps else self.start()
        if begins is not None and 0 < after < min(to, begins):
            raise LogGoneError(
                f"The change log begins at {begins}; changes from {after} on are no longer in it.",
                stream=str(stream),
                remedy="`log.retention` says how long changes stay; raise it if they are needed for longer.",
            )
        tables = (step.table(stream) for step in steps)
        return self._range([table for table in tables if table is not None], after, to)

    def streams_with_changes(self, after: Lsn, to: Lsn) -> dict[StreamId, LogRange]:
        tables: dict[StreamId, list[TableEntry]] = {}
        for manifest in self._overlapping(after, to):
            for table in manifest.tables:
                tables.setdefault(table.stream, []).append(table)
        ranges = {stream: self._range(entries, after, to) for stream, entries in tables.items()}
        return {stream: found for stream, found in ranges.items() if found}

    def untold(self, after: Lsn, to: Lsn) -> dict[StreamId, tuple[int, ...]]:
        """Transactions of `(after, to]` in which changes are missing, in order, of streams that have any."""
        marks = (
            (table.stream, tx)
            for manifest in self._overlapping(after, to)
            for table in manifest.tables
            for tx, _ in table.untold
            if after <= tx < to
        )
        found: dict[StreamId, set[int]] = {}
        for stream, tx in marks:
            found.setdefault(stream, set()).add(tx)
        return {stream: tuple(sorted(txs)) for stream, txs in found.items()}

    def _range(self, tables: Sequence[TableEntry], after: Lsn, to: Lsn) -> LogRange:
        """What `(after, to]` holds of one stream, of which these are the steps' entries."""
        files = (file for table in tables for file in table.files)
        kept = (file for file in files if file.rows and file.last_tx >= after and file.first_tx < to)
        return LogRange(
            tuple(map(self._log_file, kept)),
            tuple(at for table in tables for at in table.truncates if after <= at[0] < to),
            tuple(at for table in tables for at in table.leaf_truncates if after <= at[0] < to),
            tuple(at for table in tables for at in table.altered if after <= at[0] < to),
            tuple(at for table in tables for at in table.alterations if after <= at[0] < to),
        )

    def schema(self, schema_id: str) -> TableSchema:
        if schema_id not in self._schemas:
            path = self.directory / SCHEMA_DIRECTORY / f"{schema_id}.json"
            try:
                self._schemas[schema_id] = TableSchema.from_json(json.loads(path.read_bytes()))
            except (OSError, ValueError, KeyError) as error:
                raise StateError(
                    f"The change log's schema file {path.name} cannot be read.",
                    remedy=f"Restore {path} from a backup, or run `penstock resync --yes`.",
                ) from error
        return self._schemas[schema_id]

    def boundaries(self, after: Lsn, to: Lsn, max_bytes: int) -> list[Lsn]:
        """Step ends that cut `(after, to]` into batches of about `max_bytes`, at least a step each."""
        ends: list[Lsn] = []
        size = 0
        last: Lsn | None = None
        for manifest in self.after(after):
            if manifest.end > to:
                break
            if last is not None and size and size + manifest.bytes > max_bytes:
                ends.append(last)
                size = 0
            size += manifest.bytes
            last = manifest.end
        return ends if last is None else [*ends, last]

    def _overlapping(self, after: Lsn, to: Lsn) -> list[Manifest]:
        return self.after(after, to)

    def _log_file(self, entry: FileEntry) -> LogFile:
        return LogFile(
            self.directory / entry.path,
            entry.schema_id,
            entry.leaf,
            entry.rows,
            entry.bytes,
            entry.operations,
            entry.first_tx,
            entry.last_tx,
        )


def read_rows(
    files: Sequence[LogFile],
    after: Lsn,
    to: Lsn,
    columns: Sequence[str] | None = None,
    share: tuple[int, int] = (0, 1),
) -> Iterator[pa.Table]:
    """Rows with `after <= _tx < to`, file by file and in order; a table per row group.

    Tables of different files may differ in their columns. Without rows in the range nothing comes.
    `share` (i, n) reads every n-th row group from the i-th on, for n readers that share the work.
    """
    for file in files:
        yield from _read_file(file, after, to, columns, share)


def read_batches(file: LogFile, after: Lsn, to: Lsn, rows_max: int) -> Iterator[pa.RecordBatch]:
    """Rows of one file with `after <= _tx < to`, in order, no more than `rows_max` in memory at a time."""
    whole = after <= file.first_tx and file.last_tx < to
    with pq.ParquetFile(file.path, buffer_size=_READ_BYTES) as parquet:
        for rows in parquet.iter_batches(rows_max, use_threads=False):
            kept = rows if whole else rows.filter(_inside(rows.column(log_columns.TX), after, to))
            if kept.num_rows:
                yield kept


def _inside(tx: pa.ChunkedArray | pa.Array, after: Lsn, to: Lsn) -> pa.ChunkedArray | pa.Array:
    return pc.and_(
        pc.greater_equal(tx, pa.scalar(int(after), pa.int64())),
        pc.less(tx, pa.scalar(int(to), pa.int64())),
    )


def _read_file(
    file: LogFile, after: Lsn, to: Lsn, columns: Sequence[str] | None, share: tuple[int, int]
) -> Iterator[pa.Table]:
    whole = after <= file.first_tx and file.last_tx < to
    wanted = None if columns is None else list(columns)
    read = wanted if wanted is None or whole else [*dict.fromkeys([*wanted, log_columns.TX])]
    with pq.ParquetFile(file.path) as parquet:
        for group in range(share[0], parquet.num_row_groups, share[1]):
            table = parquet.read_row_group(group, columns=read)
            if not whole:
                table = table.filter(_inside(table.column(log_columns.TX), after, to))
            if wanted is not None:
                table = table.select(wanted)
            if table.num_rows:
                yield table
