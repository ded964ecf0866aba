"""The two sides of a comparison as blocks of rows, wherever a task reads them.

Of the source, chunks under the exported snapshot; rows with a value that the table cannot hold are told
apart. Of the table, its files without the rows that are deleted from them. Both give the columns of the
comparison and nothing else, in its order and in the table's types.

Memory: a block of the source (4 MiB of text), or a batch of a file (131,072 rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.core.stream import StreamId
from penstock.destinations.iceberg_schema import names_by_id
from penstock.destinations.records import HeldDeletes
from penstock.lake.dead_letters import any_bad, without
from penstock.lake.delete_task import deleted_positions
from penstock.lake.target import DELETED_AT, Target
from penstock.sources.base import ChunkReading
from penstock.sources.pace import Pace
from penstock.verify.sampling import KeyRanges
from penstock.verify.sip_kernels import Flags

ROWS_PER_READ = 128 * 1024


@dataclass(frozen=True, slots=True)
class Block:
    """`columns`: those of the comparison. `unfit`: how many rows the table cannot hold, and are not here."""

    columns: list[pa.Array]
    rows: int
    unfit: int = 0


@dataclass(frozen=True, slots=True)
class SourceSide:
    """A share of the source's chunks. `target` is the table's, whose schema the source is read by.

    Each chunk with whether it is read as the source prints it, or as a load reads it.
    """

    chunks: tuple[tuple[ChunkReading, bool], ...]
    target: Target
    columns: tuple[str, ...]  # by the names that the table has for them, those of the key first
    key_width: int
    is_held: bool = False  # read by sessions of this process, and nowhere else
    rows_per_second: float | None = None

    def __repr__(self) -> str:
        return f"SourceSide({self.target.schema.stream}, {len(self.chunks)} chunks)"

    def blocks(self) -> Iterator[Block]:
        place = {name: index for index, name in enumerate(self.target.names)}
        pace = Pace(self.rows_per_second)
        for chunk, as_text in self.chunks:
            blocks = chunk.blocks(self.target.schema, self.target.condition, as_text=as_text)
            with closing(blocks):
                for block in blocks:
                    pace.read(block.rows)
                    columns = [block.values[place[name]] for name in self.columns]
                    if block.bad is None:
                        yield Block(columns, block.rows)
                    else:
                        unfit = any_bad(block.bad)
                        count = int(unfit.sum())
                        yield Block([without(column, unfit) for column in columns], len(unfit) - count, count)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a table, and what is deleted from it."""

    path: Path
    rows: int
    bytes: int
    location: str
    deletes: tuple[HeldDeletes, ...] = ()
    delete_paths: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSide:
    """A share of a table's files."""

    files: tuple[TableFile, ...]
    target: Target
    columns: tuple[str, ...]
    key_width: int
    #: Of an append table: only changes that the log brought from this position on, and before that one.
    between: tuple[int, int] | None = None
    ranges: KeyRanges | None = None  # only rows whose key begins in one of these

    def __repr__(self) -> str:
        return f"TableSide({self.target.schema.stream}, {len(self.files)} files)"

    def blocks(self) -> Iterator[Block]:
        for file in self.files:
            yield from self._read(file)

    def _read(self, file: TableFile) -> Iterator[Block]:
        schema = self.target.arrow_schema()
        with _damage(file, self.target), pq.ParquetFile(file.path) as parquet:
            dead = np.zeros(parquet.metadata.num_rows, np.bool_)
            for positions in deleted_positions(file.deletes, file.delete_paths, file.location):
                dead[positions[positions < dead.size]] = True
            names = _names_in_file(parquet.schema_arrow, self.target, self._read_columns)
            read = [name for name in names.values() if name is not None]
            groups = list(range(parquet.num_row_groups))
            if self.ranges is not None and (first := names[self.columns[0]]) is not None:
                groups = self.ranges.row_groups(parquet, first)
                dead = dead[_rows_of(parquet, groups)]
            start = 0
            for batch in parquet.iter_batches(ROWS_PER_READ, row_groups=groups, columns=read):
                here = dead[start : start + batch.num_rows]
                start += batch.num_rows
                keep = self._kept(batch, names, here)
                rows = batch if keep is None else batch.filter(pa.array(keep))
                columns = [_column(rows, names[name], schema.field(name).type) for name in self.columns]
                yield Block(columns, rows.num_rows)

    @property
    def _read_columns(self) -> tuple[str, ...]:
        more = [DELETED_AT.name] if self.target.soft_deletes else []
        more += ["_tx"] if self.between is not None else []
        return tuple(dict.fromkeys([*self.columns, *more]))

    def _kept(self, batch: pa.RecordBatch, names: dict[str, str | None], dead: Flags) -> Flags | None:
        """Which rows count; None: all."""
        keep = ~dead
        if self.target.soft_deletes and (name := names[DELETED_AT.name]) is not None:
            keep &= batch.column(name).is_null().to_numpy(zero_copy_only=False)
        if self.between is not None:
            tx = batch.column(names["_tx"]).to_numpy()
            keep &= (tx >= self.between[0]) & (tx < self.between[1])
        if self.ranges is not None and (first := names[self.columns[0]]) is not None:
            keep &= self.ranges.holds(batch.column(first))
        return None if keep.all() else keep


def _rows_of(file: pq.ParquetFile, groups: Sequence[int]) -> NDArray[np.int64]:
    """Positions in the file of the rows of these row groups, in order."""
    ends = np.cumsum([file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)])
    parts = [np.arange(ends[n] - file.metadata.row_group(n).num_rows, ends[n]) for n in groups]
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


class UnreadableFileError(Exception):
    """A file of a table cannot be read; which one, and what to do about it, is for people."""

    def __init__(self, path: Path, stream: StreamId) -> None:
        super().__init__(
            f"a file of the table cannot be read, {path}: if rounds went on for longer than `readers.grace` "
            "meanwhile and took it away, raise that and verify again; else it is damaged, and "
            f"`penstock resync {stream}` loads the table anew"
        )


@contextmanager
def _damage(file: TableFile, target: Target) -> Iterator[None]:
    """A file that cannot be read is found, too; which one, is all that can be said of it."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFileError(file.path, target.schema.stream) from error


def _names_in_file(file: pa.Schema, target: Target, columns: Sequence[str]) -> dict[str, str | None]:
    """What a file calls these columns; None: it was written without, and its rows are null there."""
    if not target.field_ids:
        return {name: name for name in columns}
    by_id = names_by_id(file)
    return {name: by_id.get(int(target.field_ids[name])) for name in columns}


def _column(rows: pa.RecordBatch, name: str | None, kind: pa.DataType) -> pa.Array:
    if name is None:
        return pa.nulls(rows.num_rows, kind)
    column = rows.column(name)
    return column if column.type == kind else pc.cast(column, kind)


Side = SourceSide | TableSide


def is_held(side: Side) -> bool:
    """Whether a side can be read in this process alone."""
    return isinstance(side, SourceSide) and side.is_held
