"""What a stream that is read by a cursor needs of its table: findings from the catalog alone, without I/O."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.cursor import RESERVED_NAMES
from penstock.core.schema import TableSchema
from penstock.sources.cursor import CursorChoice
from penstock.sources.finding import Finding, Level, StreamNeed
from penstock.sources.postgres.catalog import TableInfo
from penstock.sources.postgres.publication import quoted


def check_cursor(table: TableInfo, need: StreamNeed) -> Iterator[Finding]:
    """Nothing for a stream of another mode."""
    if need.mode != "incremental" or need.cursor is None:
        return
    if table.kind not in ("table", "partitioned") or any(leaf.kind != "table" for leaf in table.leaves):
        yield _finding(
            table,
            "error",
            "Only tables can be read by a cursor.",
            "Set `mode: full_refresh` for it, or leave it out.",
        )
    if need.write == "upsert" and not table.primary_key and not table.schema.key:
        yield _finding(
            table,
            "error",
            "The table has no primary key, and `write: upsert` needs one to tell rows apart.",
            "Add a primary key, or set `write: append` for this stream.",
        )
    held = table.schema.held_as(need.types)
    problem = need.cursor.problem(held) or _unheld(need) or _like_a_state_field(need.cursor)
    if problem is not None:
        yield _finding(table, "error", *problem)
        return
    yield from _check_nulls(table, need.cursor, held)
    yield from _check_indexes(table, need.cursor)


def _unheld(need: StreamNeed) -> tuple[str, str] | None:
    assert need.cursor is not None
    lacking = [name for name in need.cursor.names if need.columns and name not in need.columns]
    if not lacking:
        return None
    return (
        f"`columns` lacks the cursor {lacking[0]}: the table must hold it, to tell rows that it has already.",
        f"Add {lacking[0]} to `columns`.",
    )


def _like_a_state_field(choice: CursorChoice) -> tuple[str, str] | None:
    clash = [name for name in choice.names if name in RESERVED_NAMES]
    if not clash:
        return None
    return (
        f"The cursor {clash[0]} has the name of another field in the state file.",
        "Choose another column, or give this one another name at the source.",
    )


def _check_nulls(table: TableInfo, choice: CursorChoice, schema: TableSchema) -> Iterator[Finding]:
    if all(schema.column(name).nullable for name in choice.names):
        others = "" if len(choice.names) == 1 else " in both"
        yield _finding(
            table,
            "warning",
            f"The cursor may be null: rows with null{others} are not read.",
            "Name a second cursor for them, which is never null: "
            f'`cursor: "{choice.names[0]}:id"`; or make the column NOT NULL.',
        )


def _check_indexes(table: TableInfo, choice: CursorChoice) -> Iterator[Finding]:
    for name in choice.names:
        if name not in table.indexed:
            column = table.schema.column(name)
            order = ' COLLATE "C"' if column.type_name in ("text", "varchar") else ""
            yield _finding(
                table,
                "warning",
                f"There is no index on the cursor {name}: every sync reads the whole table.",
                f"Run: CREATE INDEX CONCURRENTLY ON {quoted(table.stream)} ({quoted(name)}{order}).",
            )


def _finding(table: TableInfo, level: Level, message: str, remedy: str) -> Finding:
    return Finding("cursor", level, message, remedy, str(table.stream))
