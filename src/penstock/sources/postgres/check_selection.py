"""What a stream's `columns` and `where` need of its table: findings from the catalog alone, without I/O."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from penstock.core.schema import SourceColumn
from penstock.core.where import Condition, WhereError
from penstock.sources.finding import Finding, Level, StreamNeed
from penstock.sources.postgres.catalog import TableInfo

_HEADER_BYTES = 4
_SMALL_NUMERIC_DIGITS = 20
_SMALL_VARCHAR_CHARACTERS = 5  # of four bytes each
_FULL = "Set `replica_identity: full` for this stream."


def check_selection(table: TableInfo, need: StreamNeed) -> Iterator[Finding]:
    yield from _check_list(table, need)
    if need.where is None:
        return
    try:
        condition = Condition.compile(need.where, table.schema.columns)
    except WhereError as error:
        yield _finding(
            table,
            "error",
            f"`where`, {error}.",
            "Correct the condition; docs/guides/filter.md says what can be written.",
        )
        return
    if need.reads_log:
        yield from _check_old_rows(table, need, condition)


def _check_list(table: TableInfo, need: StreamNeed) -> Iterator[Finding]:
    for name in need.columns:
        if name not in table.schema.names:
            yield _finding(
                table,
                "error",
                f"`columns` names {name}, which {_what_it_is(table, name)}.",
                _nearest(table, name),
            )
    cursor = need.cursor.names if need.cursor is not None else ()
    if need.columns and not set(cursor) <= set(need.columns):
        yield _finding(
            table,
            "error",
            "`columns` lacks a column of `cursor`, by which rows that were read are known again.",
            f"Add {', '.join(name for name in cursor if name not in need.columns)} to `columns`.",
        )
    lacking = [name for name in table.schema.key if name not in need.columns]
    if need.columns and lacking and need.mode != "full_refresh":
        yield _finding(
            table,
            "error",
            f"`columns` lacks {', '.join(lacking)} of the key, by which changes find their rows.",
            f"Add {', '.join(lacking)} to `columns`, or set `mode: full_refresh`.",
        )


def _what_it_is(table: TableInfo, name: str) -> str:
    generated = name in table.generated_columns
    return "is generated and not in the log" if generated else "the table does not have"


def _nearest(table: TableInfo, name: str) -> str:
    by_lower = {known.lower(): known for known in table.schema.names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {by_lower[close[0]]}?"
    return f"Correct or remove it; the columns are: {', '.join(table.schema.names)}."


def _check_old_rows(table: TableInfo, need: StreamNeed, condition: Condition) -> Iterator[Finding]:
    """The filter must be able to judge changes by what the source sends of the old row."""
    if need.replica_identity == "full" or all(leaf.replica_identity == "f" for leaf in table.leaves):
        return
    beside_key = condition.columns.difference(table.schema.key)
    large = [
        column.name for column in table.schema.columns if column.name in beside_key and can_be_large(column)
    ]
    if large:
        yield _finding(
            table,
            "error",
            f"`where` reads {', '.join(large)}, and the source does not send a large value again that an "
            "update leaves as it is.",
            _FULL,
        )
    elif beside_key and need.write == "append":
        yield _finding(
            table,
            "error",
            f"`where` reads {', '.join(sorted(beside_key))}, and without whole old rows nobody can tell "
            "whether a deleted row was ever in this append table.",
            _FULL,
        )
    elif need.mode == "cdc" and any(map(can_be_large, _held_beside_key(table, need))):
        yield _finding(
            table,
            "warning",
            "An update that brings a row into the filter and leaves a large value of it as it is will have "
            "the whole table loaded again.",
            f"If that happens often: {_FULL[0].lower()}{_FULL[1:]}",
        )


def _held_beside_key(table: TableInfo, need: StreamNeed) -> list[SourceColumn]:
    held = set(need.columns or table.schema.names).difference(table.schema.key)
    return [column for column in table.schema.columns if column.name in held]


def can_be_large(column: SourceColumn) -> bool:
    """Whether Postgres may store a value out of line, and leave it out of an update that does not change it.

    It never does so with a value of at most 24 bytes, which is what it would put in its place.
    """
    if not column.toastable or column.type_modifier < _HEADER_BYTES:
        return column.toastable
    limit = column.type_modifier - _HEADER_BYTES
    if column.type_name == "numeric":
        precision = limit >> 16 & 0xFFFF  # four digits take two bytes
        return precision > _SMALL_NUMERIC_DIGITS
    return column.type_name != "varchar" or limit > _SMALL_VARCHAR_CHARACTERS


def _finding(table: TableInfo, level: Level, message: str, remedy: str) -> Finding:
    return Finding("selection", level, message, remedy, str(table.stream))
