"""Reads one chunk of a table into one Parquet file: the body of a Spark task of a load.

Promise: the file holds exactly the chunk's rows as of the exported snapshot. It holds because the
read runs in a REPEATABLE READ transaction that took over that snapshot; because row-level security is
off (a role that it would filter gets an error instead of fewer rows); and because the leaf's file node
is compared after the read: while we read, our lock keeps VACUUM FULL and rewriting ALTERs away, and one
that ran before this chunk moved the rows to other pages, which no query can tell (correctness 11, 12).

Values come natively through ADBC where that is exact, as text where it is not, and end in the same
Arrow types either way. A chunk with a value its column cannot hold (an infinite date) is read again as
text, so that its dead letters are the source's own words.

Cost: about 2 CPU-seconds per million rows of 11 columns, half of it in Parquet encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from psycopg import sql

from penstock.core.errors import SourceError
from penstock.core.schema import SourceColumn
from penstock.destinations.base import DataFile
from penstock.lake.change_set import Flags
from penstock.lake.dead_letters import any_bad, dead_letter_rows, without
from penstock.lake.output import OutputFile
from penstock.lake.target import Target
from penstock.sources.postgres.chunks import ChunkMethod, PlannedChunk, chunk_query
from penstock.sources.postgres.types import cast_text, from_adbc, load_expression, text_expression

BATCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, repr=False)
class LoadTask:
    connection: str  # a libpq connection string; holds the password, so it is never printed
    snapshot: str
    chunk: PlannedChunk
    leaf_oid: int
    method: ChunkMethod
    target: Target
    path: Path
    dead_letter_path: Path

    def __repr__(self) -> str:
        return f"LoadTask({self.target.schema.stream}, {self.chunk})"


@dataclass(frozen=True, slots=True)
class LoadResult:
    file: DataFile | None
    dead_letters: DataFile | None
    rows: int
    table_rewritten: bool = False  # the leaf's file node changed: the load must start again


class _HasBadValuesError(Exception):
    """The native read met a value that must be told in the source's own words."""


def load_chunk(task: LoadTask) -> LoadResult:
    try:
        with (
            closing(adbc.connect(task.connection, autocommit=True)) as connection,
            connection.cursor() as cursor,
        ):
            _take_over_snapshot(cursor, task.snapshot)
            try:
                result = _read(cursor, task, as_text=False)
            except _HasBadValuesError:
                result = _read(cursor, task, as_text=True)
            if _file_node(cursor, task.leaf_oid) != task.chunk.filenode:
                return LoadResult(None, None, 0, table_rewritten=True)
            return result
    except adbc.Error as error:
        raise SourceError(
            "Reading a chunk of the table failed.",
            stream=str(task.target.schema.stream),
            remedy="Run the same command again: chunks that were committed are not read again.",
            detail=f"SQLSTATE {getattr(error, 'sqlstate', None) or 'unknown'}.",
        ) from error


def _take_over_snapshot(cursor: adbc.Cursor, snapshot: str) -> None:
    cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    # The name is Postgres' own (hexadecimal digits and dashes); a parameter is not allowed here.
    cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")


def _read(cursor: adbc.Cursor, task: LoadTask, *, as_text: bool) -> LoadResult:
    columns = task.target.schema.columns
    forms = {column.name: "text" if as_text else load_expression(column) for column in columns}
    # Small batches keep memory low and the server busy while we encode.
    cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
    cursor.execute(
        chunk_query(task.target.schema, task.chunk, task.method, _select_list(columns, forms)).as_string(None)
    )
    schema = task.target.arrow_schema()
    key = task.target.key[0] if task.target.key else None
    dead_letters = OutputFile(task.dead_letter_path, task.target.dead_letter_schema())
    # The first chunk leaves a file in any case: an empty table can be read too.
    output = OutputFile(task.path, schema, key, even_if_empty=task.chunk.min is None)
    with output, dead_letters:
        for batch in _batches(cursor):
            arrays, bad = _convert(batch, columns, forms)
            if bad is not None and not as_text:
                raise _HasBadValuesError
            if bad is not None:
                dead_letters.write_batch(dead_letter_rows(batch, bad, task.target))
                arrays = [without(array, any_bad(bad)) for array in arrays]
            if task.target.write == "append":
                arrays += _loaded_row_marks(len(arrays[0]) if arrays else batch.num_rows)
            output.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return LoadResult(output.data_file, dead_letters.data_file, output.rows)


def _select_list(columns: Sequence[SourceColumn], forms: Mapping[str, str]) -> sql.Composable:
    selected = []
    for column in columns:
        quoted = sql.Identifier(column.name).as_string(None)
        selected.append(sql.SQL(text_expression(quoted, column) if forms[column.name] == "text" else quoted))
    # A table without columns still has rows.
    return sql.SQL(", ").join(selected) if selected else sql.SQL("NULL::text")


def _batches(cursor: adbc.Cursor) -> Iterator[pa.RecordBatch]:
    with closing(cursor.fetch_record_batch()) as reader:
        yield from (batch for batch in reader if batch.num_rows)


def _convert(
    batch: pa.RecordBatch, columns: tuple[SourceColumn, ...], forms: Mapping[str, str]
) -> tuple[list[pa.Array], dict[str, Flags] | None]:
    """Final arrays, and for each column with bad values its mask (None: there are none)."""
    arrays, bad = [], {}
    for column, array in zip(columns, batch.columns, strict=bool(columns)):
        result = cast_text(array, column) if forms[column.name] == "text" else from_adbc(array, column)
        arrays.append(result.values)
        if result.bad is not None:
            bad[column.name] = result.bad.to_numpy(zero_copy_only=False)
    return arrays, bad or None


def _loaded_row_marks(rows: int) -> list[pa.Array]:
    return [
        pa.repeat(pa.scalar("r"), rows),
        pa.repeat(pa.scalar(0, pa.int64()), rows),
        pa.repeat(pa.scalar(0, pa.int64()), rows),
        pa.nulls(rows, pa.timestamp("us", "UTC")),
        pa.nulls(rows, pa.list_(pa.string())),
    ]


def _file_node(cursor: adbc.Cursor, oid: int) -> int:
    cursor.execute(f"SELECT coalesce(pg_relation_filenode({int(oid)}), 0)::bigint")
    row = cursor.fetchone()
    return int(row[0]) if row else 0
