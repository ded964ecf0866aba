"""Source and destination side by side: rows and a checksum over every value, each computed where the data is.

The checksum of a table is the sum of its rows' checksums, so the order of rows does not matter while a
missing, doubled or different row does. A row is written the same way on both sides: its values as text,
timestamps as microseconds since 1970, with a sign between them that is in no value. Postgres does this in
SQL over its own rows, this module over the Parquet files; they share the rule and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.sources.postgres.connection import Connection

_SEPARATOR = "\x1f"
_NULL = "\x1e"
_DIGITS = 15  # of md5, in hexadecimal: 60 bits, which both sides add up exactly


@dataclass(frozen=True, slots=True)
class Comparison:
    stream: str
    source_rows: int
    table_rows: int
    source_checksum: str
    table_checksum: str

    @property
    def equal(self) -> bool:
        return self.source_rows == self.table_rows and self.source_checksum == self.table_checksum

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.equal}


def compare(connection: Connection, stream: str, table: pa.Table) -> Comparison:
    columns = _columns(connection, stream)
    source_rows, source_checksum = _source_checksum(connection, stream, columns)
    rows = table.select([name for name, _ in columns])
    return Comparison(stream, source_rows, rows.num_rows, source_checksum, _table_checksum(rows))


def _columns(connection: Connection, stream: str) -> list[tuple[str, str]]:
    rows = connection.execute(
        "SELECT attname, atttypid::regtype::text FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (stream,),
    ).fetchall()
    return [(name, type_name) for name, type_name in rows]


def _source_checksum(
    connection: Connection, stream: str, columns: Sequence[tuple[str, str]]
) -> tuple[int, str]:
    values = [sql.SQL("coalesce({}, {})").format(_as_text(*each), sql.Literal(_NULL)) for each in columns]
    separator = sql.Literal(_SEPARATOR).as_string(connection)
    row_text = sql.SQL(f" || {separator} || ").join(values)
    query = sql.SQL(
        "SELECT count(*), coalesce(sum(('x' || left(md5({}), {}))::bit({})::bigint), 0)::text FROM {}"
    ).format(row_text, sql.Literal(_DIGITS), sql.Literal(4 * _DIGITS), sql.Identifier(*stream.split(".", 1)))
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0]), _short(int(row[1]))


def _as_text(name: str, type_name: str) -> sql.Composed:
    column = sql.Identifier(name)
    if type_name.startswith("timestamp"):
        return sql.SQL("(extract(epoch FROM {}) * 1000000)::bigint::text").format(column)
    return sql.SQL("{}::text").format(column)


def _table_checksum(rows: pa.Table) -> str:
    texts = []
    for column in rows.columns:
        plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        texts.append(pc.fill_null(plain.cast(pa.string()), _NULL))
    joined = pc.binary_join_element_wise(*texts, _SEPARATOR)
    # A loop over rows is fine here: this is a check beside the pipeline, not a part of it.
    total = sum(int(_md5(text)[:_DIGITS], 16) for text in joined.to_pylist())
    return _short(total)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _short(total: int) -> str:
    return f"{total % 2**64:016x}"
