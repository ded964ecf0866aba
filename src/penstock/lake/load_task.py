"""Reads one chunk of a table into a Parquet file, or one for each partition: a Spark task of a load.

Promise: the files hold exactly the chunk's rows as of the exported snapshot. It holds because the
read runs in a REPEATABLE READ transaction that took over that snapshot; because row-level security is
off (a role that it would filter gets an error instead of fewer rows); and because the leaf's file node
is compared after the read: while we read, our lock keeps VACUUM FULL and rewriting ALTERs away, and one
that ran before this chunk moved the rows to other pages, which no query can tell (correctness 11, 12).

Values come in Postgres' binary form where we decode that, as text where we do not, and end in the same
Arrow types either way. A chunk with a value its column cannot hold (an infinite date) is read again as
text, so that its dead letters are the source's own words.

Cost: about 0.6 CPU-seconds per million rows of 11 columns, half of it in Parquet encoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from psycopg import sql

from penstock.core.errors import SourceError
from penstock.core.schema import SourceColumn
from penstock.destinations.records import DataFile
from penstock.lake.change_set import Flags
from penstock.lake.dead_letters import DEAD_LETTERS, any_bad, dead_letter_rows, without
from penstock.lake.output import OutputFile
from penstock.lake.table_output import TableOutput
from penstock.lake.target import DELETED_AT, Target
from penstock.sources.pace import Pace
from penstock.sources.postgres.binary_values import text
from penstock.sources.postgres.chunks import ChunkMethod, PlannedChunk, chunk_query
from penstock.sources.postgres.connection import Connection, connect, query_errors
from penstock.sources.postgres.copy_binary import CopyBlock, CopyFormatError, read_copy
from penstock.sources.postgres.snapshot_reading import file_node, take_over_snapshot
from penstock.sources.postgres.types import from_binary, load_expression, text_expression
from penstock.sources.types import cast_text


@dataclass(frozen=True, slots=True, repr=False)
class LoadTask:
    url: str  # holds the password, so it is never printed
    application_name: str
    settings: Mapping[str, str]
    snapshot: str
    chunk: PlannedChunk
    leaf_oid: int
    method: ChunkMethod
    target: Target
    path: Path
    dead_letter_path: Path
    condition: str = ""  # SQL; empty: every row of the chunk
    position: int = 0  # at which dead letters stand
    rows_per_second: float | None = None  # this chunk's share of the limit

    def __repr__(self) -> str:
        return f"LoadTask({self.target.schema.stream}, {self.chunk})"


@dataclass(frozen=True, slots=True)
class LoadResult:
    files: tuple[DataFile, ...]
    dead_letters: DataFile | None
    rows: int
    table_rewritten: bool = False  # the leaf's file node changed: the load must start again


class Sieve(Protocol):
    """Sees every row that is read, and says which are not written. A chunk may be read, and seen, twice."""

    def drop(self, arrays: Sequence[pa.Array], unfit: Flags | None) -> Flags | None:
        """`arrays` are the source's columns of a block; rows that are `unfit` hold nulls and are dropped."""
        ...

    def letters(self, letters: pa.RecordBatch) -> pa.RecordBatch:
        """Those of a block's dead letters that are written."""
        ...


class _HasBadValuesError(Exception):
    """The binary read met a value that must be told in the source's own words."""


def load_chunk(task: LoadTask, sieve: Sieve | None = None) -> LoadResult:
    try:
        try:
            return _load(task, sieve, as_text=False)
        except _HasBadValuesError:
            return _load(task, sieve, as_text=True)
    except CopyFormatError as error:
        # A column whose type was altered sends other bytes, and its table has another file.
        if _is_rewritten(task):
            return LoadResult((), None, 0, table_rewritten=True)
        raise SourceError(
            "The server sent rows in another form than the table's columns have.",
            stream=str(task.target.schema.stream),
            remedy="Run the same command again. If that does not help, something between Postgres and "
            "Penstock changes the data: connect to the server itself.",
            detail=str(error),
        ) from error


def _load(task: LoadTask, sieve: Sieve | None, *, as_text: bool) -> LoadResult:
    """Read in a session of its own: one that is left in the midst of its rows is of no use any more."""
    with closing(_open(task)) as connection, _errors(task):
        take_over_snapshot(connection, task.snapshot)
        result = _read(connection, task, sieve, as_text=as_text)
        if file_node(connection, task.leaf_oid) != task.chunk.filenode:
            return LoadResult((), None, 0, table_rewritten=True)
        return result


def _is_rewritten(task: LoadTask) -> bool:
    with closing(_open(task)) as connection, _errors(task):
        return file_node(connection, task.leaf_oid) != task.chunk.filenode


def _open(task: LoadTask) -> Connection:
    return connect(task.url, application_name=task.application_name, settings=task.settings)


def _errors(task: LoadTask) -> AbstractContextManager[None]:
    return query_errors("reading a chunk of the table", stream=str(task.target.schema.stream))


def _read(connection: Connection, task: LoadTask, sieve: Sieve | None, *, as_text: bool) -> LoadResult:
    columns = task.target.schema.columns
    forms = {column.name: "text" if as_text else load_expression(column) for column in columns}
    selected = _select_list(columns, forms)
    query = chunk_query(task.target.schema, task.chunk, task.method, selected, _condition(task))
    schema = task.target.arrow_schema()
    dead_letters = OutputFile(task.dead_letter_path, DEAD_LETTERS)
    # The first chunk of a load leaves a file in any case: an empty table can be read too.
    output = TableOutput(task.path, task.target, even_if_empty=task.chunk.min is None and sieve is None)
    pace = Pace(task.rows_per_second)
    with output, dead_letters:
        for block in read_copy(connection, query, max(1, len(columns))):
            pace.read(block.rows)
            arrays, bad = _convert(block, columns, forms)
            if bad is not None and not as_text:
                raise _HasBadValuesError
            if bad is not None:
                letters = dead_letter_rows(_as_printed(block, columns), bad, task.target, _marks(task, block))
                dead_letters.write_batch(letters if sieve is None else sieve.letters(letters))
            unfit = None if bad is None else any_bad(bad)
            dropped = unfit if sieve is None else sieve.drop(arrays, unfit)
            if dropped is not None:
                arrays = [without(array, dropped) for array in arrays]
            if task.target.write == "append":
                arrays += _loaded_row_marks(len(arrays[0]) if arrays else block.rows)
            elif task.target.soft_deletes:
                arrays.append(pa.nulls(len(arrays[0]), DELETED_AT.type))
            output.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return LoadResult(output.files, dead_letters.data_file, output.rows)


def _condition(task: LoadTask) -> str:
    """The task's own condition and the stream's filter."""
    filtered = task.target.condition.sql() if task.target.condition is not None else ""
    return " AND ".join(f"({each})" for each in (task.condition, filtered) if each)


def _select_list(columns: Sequence[SourceColumn], forms: Mapping[str, str]) -> sql.Composable:
    selected = []
    for column in columns:
        quoted = sql.Identifier(column.name).as_string(None)
        selected.append(sql.SQL(text_expression(quoted, column) if forms[column.name] == "text" else quoted))
    # A table without columns still has rows.
    return sql.SQL(", ").join(selected) if selected else sql.SQL("NULL::text")


def _convert(
    block: CopyBlock, columns: Sequence[SourceColumn], forms: Mapping[str, str]
) -> tuple[list[pa.Array], dict[str, Flags] | None]:
    """Final arrays, and for each column with bad values its mask (None: there are none)."""
    arrays, bad = [], {}
    for index, column in enumerate(columns):
        fields = block.column(index)
        by_text = forms[column.name] == "text"
        result = cast_text(text(fields), column) if by_text else from_binary(fields, column)
        arrays.append(result.values)
        if result.bad is not None:
            bad[column.name] = result.bad.to_numpy(zero_copy_only=False)
    return arrays, bad or None


def _as_printed(block: CopyBlock, columns: Sequence[SourceColumn]) -> pa.RecordBatch:
    """The source's own words, of a block all of whose columns were selected as text."""
    names = [column.name for column in columns]
    return pa.RecordBatch.from_arrays([text(block.column(index)) for index in range(len(names))], names)


def _marks(task: LoadTask, block: CopyBlock) -> dict[str, pa.Array]:
    """Where rows stand that were read and did not come through the log."""
    rows = block.rows
    return {
        "_op": pa.repeat(pa.scalar("r"), rows),
        "_tx": pa.repeat(pa.scalar(task.position, pa.int64()), rows),
        "_op_index": pa.repeat(pa.scalar(0, pa.int64()), rows),
        "_commit_ts": pa.nulls(rows, pa.timestamp("us", "UTC")),
    }


def _loaded_row_marks(rows: int) -> list[pa.Array]:
    return [
        pa.repeat(pa.scalar("r"), rows),
        pa.repeat(pa.scalar(0, pa.int64()), rows),
        pa.repeat(pa.scalar(0, pa.int64()), rows),
        pa.nulls(rows, pa.timestamp("us", "UTC")),
        pa.nulls(rows, pa.list_(pa.string())),
    ]
