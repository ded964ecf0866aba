"""One chunk of a MySQL or MariaDB table, read wherever its description is taken to.

Promise: the blocks hold exactly the chunk's rows at one moment, that of the query. It holds because one
SELECT of a transactional engine reads one snapshot, and one of another engine holds a lock on the table
while it reads. Which moment that was, whoever asks for the chunk finds out by the log's position before
and after it (correctness 54): this server exports no snapshots. Or the chunk finds the place itself, by a
snapshot of its own (`snapshots`), and its blocks say it. A table that was altered since it was looked at, so
that a column is missing, is a `TableRewrittenError`.

A stream's filter is evaluated here, on the text of the rows, by the function that evaluates it for changes:
the server would compare by its own rules.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import TableChangedError
from penstock.core.place import Place
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.where import Condition
from penstock.sources.chunk import Block, PlannedChunk, TableRewrittenError
from penstock.sources.mysql.chunks import chunk_query
from penstock.sources.mysql.connection import Connection, connect
from penstock.sources.mysql.results import BLOCK_BYTES, TextBlock, read_texts
from penstock.sources.mysql.snapshots import begin_snapshot
from penstock.sources.mysql.types import TYPES
from penstock.values.parse import Flags


@dataclass(frozen=True, slots=True, repr=False)
class MysqlChunk:
    url: str  # holds the password, so it is never printed
    program_name: str
    chunk: PlannedChunk
    condition: str = ""  # SQL; empty: every row of the chunk
    block_bytes: int = BLOCK_BYTES
    own_snapshot: bool = False

    def __repr__(self) -> str:
        return repr(self.chunk)

    def blocks(
        self,
        schema: TableSchema,
        where: Condition | None = None,
        *,
        outside: Condition | None = None,
        as_text: bool = False,
    ) -> Generator[Block]:
        with closing(connect(self.url, program_name=self.program_name)) as connection:
            place = begin_snapshot(connection, self.url, schema.stream) if self.own_snapshot else None
            read = ChunkQuery(self.chunk, self.condition, self.block_bytes, place)
            yield from read.blocks(connection, schema, where, outside, as_text=as_text)


@dataclass(frozen=True, slots=True)
class ChunkQuery:
    """The reading of a chunk on a connection that is there. `place`: of the snapshot that it is in."""

    chunk: PlannedChunk
    condition: str = ""
    block_bytes: int = BLOCK_BYTES
    place: Place | None = None

    def blocks(
        self,
        connection: Connection,
        schema: TableSchema,
        where: Condition | None,
        outside: Condition | None,
        *,
        as_text: bool,
    ) -> Iterator[Block]:
        filtered = where is not None or outside is not None
        columns = (*schema.columns, *(schema.hidden if filtered else ()))
        query = chunk_query(schema, self.chunk, columns, self.condition)
        if self.place is not None:
            nothing = TextBlock(0, [pa.array([], pa.string()) for _ in columns])
            yield _converted(nothing, schema.columns, self.place, as_text=as_text)
        try:
            for block in read_texts(
                connection,
                query,
                columns or (NOTHING,),
                stream=str(schema.stream),
                block_bytes=self.block_bytes,
            ):
                left = kept(block, columns, where, outside)
                yield _converted(left, schema.columns, self.place, as_text=as_text)
        except TableChangedError as error:
            raise TableRewrittenError(str(schema.stream)) from error


#: A table of which no columns are asked for still has rows.
NOTHING = SourceColumn("", 0, -1, "varchar", "varchar")


def kept(
    block: TextBlock, columns: Sequence[SourceColumn], where: Condition | None, outside: Condition | None
) -> TextBlock:
    """The rows that `where` is true for and `outside` is not."""
    if where is None and outside is None:
        return block
    texts = dict(zip((column.name for column in columns), block.columns, strict=True))
    kept: pa.BooleanArray | None = None
    if where is not None:
        kept = pc.fill_null(where.evaluate(texts, block.rows), False)
    if outside is not None:
        left = pc.invert(pc.fill_null(outside.evaluate(texts, block.rows), False))
        kept = left if kept is None else pc.and_(kept, left)
    remaining = [column.filter(kept) for column in block.columns]
    return TextBlock(int(pc.sum(kept).as_py() or 0), remaining)


def _converted(
    block: TextBlock, columns: Sequence[SourceColumn], place: Place | None, *, as_text: bool
) -> Block:
    arrays: list[pa.Array] = []
    bad: dict[str, Flags] = {}
    texts = block.columns[: len(columns)]
    for text, column in zip(texts, columns, strict=True):
        result = TYPES.cast_text(text, column)
        arrays.append(result.values)
        if result.bad is not None:
            bad[column.name] = result.bad.to_numpy(zero_copy_only=False)

    def printed() -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(texts, [column.name for column in columns])

    return Block(block.rows, arrays, bad or None, printed if as_text else None, place)
