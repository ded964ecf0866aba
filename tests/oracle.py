"""The judge of every end-to-end test: is the table what the source says it is?

It shares no code with Penstock, so that no mistake can be made twice and cancel out. The source is read
as the text its own output functions print (what `psql` shows, and what replication sends); the
destination's typed values are turned *back* into that text by the small rules below, and every value of
every row is compared as text. Rows are compared as a multiset: one row too many is as wrong as one lost.
"""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql

Value = str | None
Row = tuple[Value, ...]

#: Fixed output, as options of a connection string. Writers of audited tables need them too.
OPTIONS = " ".join(
    f"-c {name}={value}"
    for name, value in {
        "DateStyle": "ISO,DMY",
        "IntervalStyle": "iso_8601",
        "bytea_output": "hex",
        "extra_float_digits": "1",
        "TimeZone": "UTC",
        "lc_monetary": "C",
        "row_security": "off",
    }.items()
)
#: Columns that append tables have beside the source's.
OWN_COLUMNS = ("_op", "_tx", "_op_index", "_commit_ts", "_unchanged")
EXAMPLES_MAX = 5


@dataclass(frozen=True)
class Table:
    """Rows with named columns; `key` names those that identify a row (all of them, if none do)."""

    columns: tuple[str, ...]
    rows: list[Row]
    key: tuple[str, ...] = ()

    def by_key(self) -> Callable[[Row], Row]:
        places = [self.columns.index(name) for name in self.key or self.columns]
        return lambda row: tuple(row[place] for place in places)


# -- the source ---------------------------------------------------------------------------------------


def source_rows(url: str, table: str, columns: Sequence[str] | None = None) -> Table:
    """Every row of `schema.table`, each value as the server prints it, read in one statement."""
    with psycopg.connect(url, options=OPTIONS, autocommit=True) as connection:
        name = relation_of(table)
        key = primary_key(connection, name)
        names = tuple(columns or columns_of(connection, name))
        query = sql.SQL("SELECT {} FROM {}").format(_list_of(names), name)
        return Table(names, _printed(connection, query), key)


def _printed(connection: psycopg.Connection[Any], query: sql.Composable) -> list[Row]:
    """The result as printed by the server: psycopg's own conversions are not asked."""
    result = connection.pgconn.exec_(query.as_bytes(connection))
    if result.error_message:
        raise AssertionError(f"the oracle could not read the source: {result.error_message.decode()}")
    return [
        tuple(
            None if (value := result.get_value(row, column)) is None else value.decode()
            for column in range(result.nfields)
        )
        for row in range(result.ntuples)
    ]


def relation_of(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split(".", 1))


def _list_of(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)


def columns_of(connection: psycopg.Connection[Any], relation: sql.Identifier) -> list[str]:
    """All columns but generated ones that logical replication does not send: virtual ones, and stored ones
    before Postgres 18."""
    rows = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
        "AND NOT attisdropped AND (attgenerated = '' OR "
        "attgenerated = 's' AND current_setting('server_version_num')::int >= 180000) ORDER BY attnum",
        (relation.as_string(connection),),
    ).fetchall()
    return [name for (name,) in rows]


def primary_key(connection: psycopg.Connection[Any], relation: sql.Identifier) -> tuple[str, ...]:
    rows = connection.execute(
        "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey) "
        "WHERE indrelid = %s::regclass AND indisprimary ORDER BY array_position(indkey::int2[], attnum)",
        (relation.as_string(connection),),
    ).fetchall()
    return tuple(name for (name,) in rows)


# -- the destination ----------------------------------------------------------------------------------


def destination_rows(path: Path | str, columns: Sequence[str] | None = None) -> Table:
    """Every row of the Parquet files that a reader finds at `path`, as the source would print it."""
    table = read_parquet(Path(path))
    names = tuple(columns or (name for name in table.column_names if name not in OWN_COLUMNS))
    printed = [print_column(table.column(name)) for name in names]
    return Table(names, list(zip(*printed, strict=True)) if names else [])


def read_parquet(path: Path) -> pa.Table:
    files = sorted(file for file in path.resolve().iterdir() if file.suffix == ".parquet")
    tables = [pq.ParquetFile(file).read() for file in files]
    if not tables:
        raise AssertionError(f"there is no Parquet file in {path}: a reader cannot even learn the columns")
    schemas = {table.schema.remove_metadata() for table in tables}
    assert len(schemas) == 1, f"files of one version of {path} have different columns: {schemas}"
    return pa.concat_tables(tables)


def print_column(column: pa.ChunkedArray[Any]) -> list[Value]:
    printer = _printer(column.type)
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())  # Python's own dates end at year 1
    return [None if value is None else printer(value) for value in column.to_pylist()]


def _printer(kind: pa.DataType) -> Callable[[Any], str]:
    if isinstance(kind, pa.TimestampType):
        assert kind.unit == "us", f"a timestamp in {kind.unit} does not keep microseconds exactly"
        suffix = "+00" if kind.tz is not None else ""
        return lambda microseconds: _print_timestamp(microseconds, suffix)
    rules: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]]] = [
        (pa.types.is_boolean, lambda value: "t" if value else "f"),
        (pa.types.is_integer, str),
        (pa.types.is_decimal, _print_decimal),
        (pa.types.is_float64, lambda value: print_float(np.float64(value), 15)),
        (pa.types.is_float32, lambda value: print_float(np.float32(value), 6)),
        (pa.types.is_date, _print_date),
        (pa.types.is_time, _print_time),
        (pa.types.is_binary, lambda value: "\\x" + value.hex()),
        (pa.types.is_large_binary, lambda value: "\\x" + value.hex()),
        (pa.types.is_string, str),
        (pa.types.is_large_string, str),
    ]
    for applies, printer in rules:
        if applies(kind):
            return printer
    raise AssertionError(f"the oracle has no rule for {kind}")


def _print_decimal(value: decimal.Decimal) -> str:
    text = f"{value:f}"
    return text.removeprefix("-") if value == 0 else text  # numeric knows no negative zero


def print_float(value: np.floating[Any], digits: int) -> str:
    """The shortest text that reads back as the same number; scientific below 1e-4 and from 1e`digits` on."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    mantissa, exponent = _shortest(value).split("e")
    if value != 0 and not -4 <= int(exponent) < digits:
        return f"{mantissa}e{exponent}"
    return f"{decimal.Decimal(f'{mantissa}e{exponent}'):f}"


def _shortest(value: np.floating[Any]) -> str:
    """numpy's shortest text, but longer where that lies half-way to the next number.

    It would read back right, by the rule that ties go to the even one; Postgres does not rely on that.
    """
    text = np.format_float_scientific(value, unique=True, trim="-", exp_digits=2)
    if abs(value) < 1 / np.finfo(value.dtype).eps:
        return text  # half-way between numbers with fraction digits is a longer text than both
    largest = np.finfo(value.dtype).max
    neighbours = (np.nextafter(value, towards) for towards in (-largest, largest))
    halves = [(Fraction(float(value)) + Fraction(float(other))) / 2 for other in neighbours]
    digits = len(text.split("e")[0].lstrip("-").replace(".", "")) - 1
    while Fraction(text) in halves:
        digits += 1
        text = f"{float(value):.{digits}e}"
    mantissa, exponent = text.split("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{exponent}"


def _print_date(days: int) -> str:
    year, month, day = _civil(days)
    return f"{_print_year(year)}-{month:02}-{day:02}{' BC' if year <= 0 else ''}"


def _print_timestamp(microseconds: int, suffix: str) -> str:
    days, rest = divmod(microseconds, 86_400_000_000)
    year, month, day = _civil(days)
    clock = _print_clock(rest)
    era = " BC" if year <= 0 else ""
    return f"{_print_year(year)}-{month:02}-{day:02} {clock}{suffix}{era}"


def _print_time(value: datetime.time) -> str:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _print_clock(seconds * 1_000_000 + value.microsecond)


def _print_clock(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def _print_year(year: int) -> str:
    return f"{year if year > 0 else 1 - year:04}"  # there is no year 0: 1 BC stands before 1


def _civil(days: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month and day of a number of days since 1970-01-01, in the Gregorian calendar."""
    cycles, rest = divmod(days + 719_468, 146_097)  # 400 years from 0000-03-01
    year = (rest - rest // 1_460 + rest // 36_524 - rest // 146_096) // 365
    day_of_year = rest - (365 * year + year // 4 - year // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    return year + 400 * cycles + (month <= 2), month, day


# -- comparison ---------------------------------------------------------------------------------------


def assert_same(url: str, table: str, path: Path | str, columns: Sequence[str] | None = None) -> int:
    """Every value of every row is equal on both sides; the number of rows, if so."""
    source = source_rows(url, table, columns)
    destination = destination_rows(path, columns)
    assert set(destination.columns) == set(source.columns), (
        f"{table}: columns differ: source {source.columns}, destination {destination.columns}"
    )
    if destination.columns != source.columns:
        destination = destination_rows(path, source.columns)
    assert_equal_rows(table, source, destination)
    return len(source.rows)


def assert_equal_rows(table: str, source: Table, destination: Table) -> None:
    wanted, found = Counter(source.rows), Counter(destination.rows)
    if wanted == found:
        return
    key_of = source.by_key()
    lost_rows, surplus_rows = wanted - found, found - wanted
    lost, surplus = Counter(map(key_of, lost_rows)), Counter(map(key_of, surplus_rows))
    doubled = {key for row, count in found.items() if count > wanted[row] > 0 for key in [key_of(row)]}
    other_values = set(lost) & set(surplus)
    lines = [
        f"{table}: {len(source.rows)} rows at the source, {len(destination.rows)} at the destination",
        _keys("missing", set(lost) - other_values),
        _keys("doubled", doubled),
        _keys("should not be there", set(surplus) - other_values - doubled),
        _keys("with other values", other_values),
        *_different_columns(source.columns, key_of, lost_rows, surplus_rows, other_values),
    ]
    raise AssertionError("\n  ".join(line for line in lines if line))


def _keys(what: str, keys: set[Row]) -> str:
    if not keys:
        return ""
    examples = [", ".join(map(str, key)) for key in sorted(keys, key=str)[:EXAMPLES_MAX]]
    return f"{len(keys)} {what}: {'; '.join(examples)}{' …' if len(keys) > EXAMPLES_MAX else ''}"


def _different_columns(
    columns: tuple[str, ...],
    key_of: Callable[[Row], Row],
    lost: Iterable[Row],
    surplus: Iterable[Row],
    keys: set[Row],
) -> list[str]:
    wanted = {key_of(row): row for row in lost}
    found = {key_of(row): row for row in surplus}
    lines = []
    for key in sorted(keys, key=str)[:EXAMPLES_MAX]:
        differences = [
            f"{name}: {_short(a)} is {_short(b)}"
            for name, a, b in zip(columns, wanted[key], found[key], strict=True)
            if a != b
        ]
        lines.append(f"  {', '.join(map(str, key))}: {'; '.join(differences)}")
    return lines


def _short(value: Value) -> str:
    return "null" if value is None else repr(value if len(value) <= 60 else value[:57] + "…")
