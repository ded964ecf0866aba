"""One chunk of a Postgres table, read wherever its description is taken to.

Promise: the blocks hold exactly the chunk's rows as of the exported snapshot. It holds because the
read runs in a REPEATABLE READ transaction that took over that snapshot; because row-level security is
off (a role that it would filter gets an error instead of fewer rows); and because the leaf's file node
is compared after the read: while we read, our lock keeps VACUUM FULL and rewriting ALTERs away, and one
that ran before this chunk moved the rows to other pages, which no query can tell (correctness 11, 12).

Values come in Postgres' binary form where we decode that, as text where we do not, and end in the same
Arrow types either way.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql

from penstock.core.errors import SourceError
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.where import Condition
from penstock.sources.chunk import Block, ChunkMethod, PlannedChunk, TableRewrittenError
from penstock.sources.postgres.binary_values import text
from penstock.sources.postgres.chunks import chunk_query
from penstock.sources.postgres.connection import Connection, connect, query_errors
from penstock.sources.postgres.copy_binary import CopyBlock, CopyFormatError, read_copy
from penstock.sources.postgres.snapshot_reading import file_node, take_over_snapshot
from penstock.sources.postgres.types import cast_text, from_binary, load_expression, text_expression
from penstock.values.parse import Flags


@dataclass(frozen=True, slots=True, repr=False)
class PostgresChunk:
    url: str  # holds the password, so it is never printed
    application_name: str
    settings: Mapping[str, str]
    snapshot: str
    chunk: PlannedChunk
    leaf_oid: int
    method: ChunkMethod
    condition: str = ""  # SQL; empty: every row of the chunk

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
        condition = self._condition(where, outside)
        try:
            yield from self._read(schema, condition, as_text=as_text)
        except CopyFormatError as error:
            # A column whose type was altered sends other bytes, and its table has another file.
            if self._is_rewritten(schema):
                raise TableRewrittenError(str(schema.stream)) from error
            raise SourceError(
                "The server sent rows in another form than the table's columns have.",
                stream=str(schema.stream),
                remedy="Run the same command again. If that does not help, something between Postgres and "
                "Penstock changes the data: connect to the server itself.",
                detail=str(error),
            ) from error

    def _read(self, schema: TableSchema, condition: str, *, as_text: bool) -> Iterator[Block]:
        """In a session of its own: one that is left in the midst of its rows is of no use any more."""
        columns = schema.columns
        forms = {column.name: "text" if as_text else load_expression(column) for column in columns}
        query = chunk_query(schema, self.chunk, self.method, _select_list(columns, forms), condition)
        with closing(self._open()) as connection, _errors(schema):
            take_over_snapshot(connection, self.snapshot)
            for block in read_copy(connection, query, max(1, len(columns))):
                yield _converted(block, columns, forms, as_text=as_text)
            if file_node(connection, self.leaf_oid) != self.chunk.filenode:
                raise TableRewrittenError(str(schema.stream))

    def _is_rewritten(self, schema: TableSchema) -> bool:
        with closing(self._open()) as connection, _errors(schema):
            return file_node(connection, self.leaf_oid) != self.chunk.filenode

    def _open(self) -> Connection:
        return connect(self.url, application_name=self.application_name, settings=self.settings)

    def _condition(self, where: Condition | None, outside: Condition | None) -> str:
        """The chunk's own condition and the stream's filter."""
        filtered = where.sql() if where is not None else ""
        left_out = f"({outside.sql()}) IS NOT TRUE" if outside is not None else ""
        return " AND ".join(f"({each})" for each in (self.condition, filtered, left_out) if each)


def _errors(schema: TableSchema) -> AbstractContextManager[None]:
    return query_errors("reading a chunk of the table", stream=str(schema.stream))


def _select_list(columns: Sequence[SourceColumn], forms: Mapping[str, str]) -> sql.Composable:
    selected = []
    for column in columns:
        quoted = sql.Identifier(column.name).as_string(None)
        selected.append(sql.SQL(text_expression(quoted, column) if forms[column.name] == "text" else quoted))
    # A table without columns still has rows.
    return sql.SQL(", ").join(selected) if selected else sql.SQL("NULL::text")


def _converted(
    block: CopyBlock, columns: Sequence[SourceColumn], forms: Mapping[str, str], *, as_text: bool
) -> Block:
    arrays: list[pa.Array] = []
    bad: dict[str, Flags] = {}
    for index, column in enumerate(columns):
        fields = block.column(index)
        by_text = forms[column.name] == "text"
        result = cast_text(text(fields), column) if by_text else from_binary(fields, column)
        arrays.append(result.values)
        if result.bad is not None:
            bad[column.name] = result.bad.to_numpy(zero_copy_only=False)

    def printed() -> pa.RecordBatch:
        names = [column.name for column in columns]
        return pa.RecordBatch.from_arrays([text(block.column(index)) for index in range(len(names))], names)

    return Block(block.rows, arrays, bad or None, printed if as_text else None)
