"""What each stream needs of its table: findings from the catalog and a few facts, without I/O."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.core.cursor import RESERVED_NAMES
from penstock.core.errors import SourceError
from penstock.core.held_as import HeldAs
from penstock.core.stream import StreamId
from penstock.core.where import Condition, WhereError
from penstock.sources.finding import Finding, Level, StreamNeed
from penstock.sources.mysql.binlog.charsets import BINARY, conversion
from penstock.sources.mysql.catalog import MysqlTable, is_working_table
from penstock.sources.mysql.types import BYTES, GEOMETRIES, TEXTS, TYPES

_KINDS = {"view": "a view", "sequence": "a sequence"}
#: MariaDB's own, which the log has as bytes, in an order of their own, and does not name.
_BYTES_IN_LOG = ("uuid", "inet4", "inet6")
#: How a setting of the server's is changed.
PERSIST = "SET PERSIST (MariaDB and managed services: the server's configuration)"
#: Types that the server holds as BLOB.
_LARGE = frozenset({*TEXTS[2:], *BYTES[2:], "json", "vector", *GEOMETRIES})
_INSTEAD = "Name the tables behind it instead, or leave it out."


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the server said beside its catalog."""

    logs_cascades: bool  # rows that foreign keys change are in the log
    readable: frozenset[StreamId]
    may_lock: bool  # for the moment in which a table is read with its place in the log, if that needs it
    user: str
    row_image: str = "FULL"  # what new sessions log of a row (binlog_row_image)


def check_streams(
    needs: Sequence[StreamNeed], tables: Sequence[MysqlTable], facts: LogFacts
) -> list[Finding]:
    """Findings of all streams; one that has no problem gets one finding that says so."""
    findings: list[Finding] = []
    for need in needs:
        matching = [table for table in tables if need.stream.matches(table.stream)]
        if not matching:
            findings.append(_missing(need.stream, tables))
        for table in matching:
            if (need.stream.is_pattern or need.by_pattern) and is_working_table(table.stream.name):
                findings.append(_left_out(table, need.stream))
                continue
            found = [
                *_check_kind(table),
                *_check_reading(table, facts),
                *_check_columns(table, need, facts),
                *_check_cursor(table, need),
                *(_check_log(table, need, facts) if need.reads_log else ()),
            ]
            if not any(finding.level == "error" for finding in found):
                found.insert(0, _fine(table))
            findings += found
    return findings


def _finding(table: MysqlTable, name: str, level: Level, message: str, remedy: str = "") -> Finding:
    return Finding(name, level, message, remedy, str(table.stream))


def _missing(stream: StreamId, tables: Sequence[MysqlTable]) -> Finding:
    if stream.is_pattern:
        remedy = "Correct the pattern in penstock.yaml; `penstock discover` lists the tables."
        return Finding("table", "warning", "No table matches this pattern.", remedy, str(stream))
    close = difflib.get_close_matches(str(stream), [str(table.stream) for table in tables], n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    remedy = f"{hint}Correct the name in penstock.yaml; `penstock discover` lists the tables."
    return Finding("table", "error", "There is no such table at the source.", remedy, str(stream))


def _left_out(table: MysqlTable, pattern: StreamId) -> Finding:
    return _finding(
        table,
        "table",
        "warning",
        f"{pattern} leaves this table out: by its name it belongs to an online schema change, which will "
        "rename or drop it.",
        "Name it on its own if it is a table of yours.",
    )


def _fine(table: MysqlTable) -> Finding:
    identity = f", identified by {', '.join(table.schema.key)}" if table.schema.key else ", without a key"
    return _finding(table, "table", "ok", f"About {table.estimated_rows:,} rows{identity}.")


def _check_kind(table: MysqlTable) -> Iterator[Finding]:
    if table.kind in _KINDS:
        message = f"It is {_KINDS[table.kind]}, which has no rows of its own."
        yield _finding(table, "table kind", "error", message, _INSTEAD)
    elif table.kind == "versioned":
        yield _finding(
            table,
            "table kind",
            "warning",
            "The table keeps its own history (SYSTEM VERSIONING): its present rows are read and followed, "
            "and nothing of its history. One that keeps it by transactions (BIGINT) is logged as statements: "
            "it is loaded again whenever it is changed.",
            "Nothing, if the present rows are what is wanted.",
        )


def _check_reading(table: MysqlTable, facts: LogFacts) -> Iterator[Finding]:
    if table.stream not in facts.readable and table.kind not in _KINDS:
        name = f"`{table.stream.namespace}`.`{table.stream.name}`"
        yield _finding(
            table,
            "select privilege",
            "error",
            "The user may not read the table.",
            f"Run: GRANT SELECT ON {name} TO {facts.user}.",
        )
    for charset in sorted(table.charsets - {BINARY}):
        try:
            conversion(charset, str(table.stream))
        except SourceError as error:
            yield Finding.of_error("character set", error)
    if table.compressed_columns:
        yield _finding(
            table,
            "compressed columns",
            "error",
            f"MariaDB logs these columns in compressed form: {', '.join(table.compressed_columns)}.",
            "Change them to columns that are not COMPRESSED, or leave the table out.",
        )


def _check_columns(table: MysqlTable, need: StreamNeed, facts: LogFacts) -> Iterator[Finding]:
    if table.generated_columns:
        yield _finding(
            table,
            "generated columns",
            "warning",
            f"Generated columns are left out: {', '.join(table.generated_columns)}.",
            "Compute them where the table is read.",
        )
    yield from _check_selection(table, need)
    yield from _check_filter(table, need, facts)
    for column in need.columns or table.schema.names:
        if need.rename.get(column, column) in need.added_columns:
            yield _finding(
                table,
                "column names",
                "error",
                f"The column {column} has the name of a column that Penstock adds to the table.",
                f"Rename it at the destination: `rename: {{{column}: source{column}}}`.",
            )
    yield from _check_types(table, need)


def _check_selection(table: MysqlTable, need: StreamNeed) -> Iterator[Finding]:
    names = table.schema.names
    for name in need.columns:
        if name not in names:
            what = "is generated" if name in table.generated_columns else "the table does not have"
            yield _finding(
                table,
                "selection",
                "error",
                f"`columns` names {name}, which {what}.",
                f"Correct or remove it; the columns are: {', '.join(names)}.",
            )
    lacking = [name for name in table.schema.key if need.columns and name not in need.columns]
    if lacking and need.reads_log:
        yield _finding(
            table,
            "selection",
            "error",
            f"`columns` lacks {', '.join(lacking)} of the key, by which changes find their rows.",
            f"Add {', '.join(lacking)} to `columns`, or set `mode: full_refresh`.",
        )


def _check_filter(table: MysqlTable, need: StreamNeed, facts: LogFacts) -> Iterator[Finding]:
    if need.where is None:
        return
    try:
        condition = Condition.compile(need.where, table.schema.columns)
    except WhereError as error:
        yield _finding(
            table,
            "selection",
            "error",
            f"`where`, {error}.",
            "Correct the condition; docs/guides/filter.md says what can be written.",
        )
        return
    left_out = _left_out_values(table, need, condition, facts.row_image) if need.reads_log else []
    if left_out:
        yield _finding(
            table,
            "selection",
            "warning",
            f"`where` reads {', '.join(left_out)}, and binlog_row_image is {facts.row_image}: of a change "
            "without these nobody can tell whether it is inside.",
            f"Set binlog_row_image = FULL by {PERSIST}, and let sessions begin anew: old ones keep theirs.",
        )


def _left_out_values(table: MysqlTable, need: StreamNeed, condition: Condition, image: str) -> list[str]:
    """Columns that the condition reads, and that changes may come without.

    NOBLOB leaves out large columns alone; of rows of an append table the old ones must be whole too, which
    they are in a table without such columns.
    """
    if image.upper() not in ("MINIMAL", "NOBLOB"):
        return []
    read = sorted(condition.columns.difference(table.schema.key))
    large = {column.name for column in table.schema.columns if column.type_name in _LARGE}
    if image.upper() == "MINIMAL" or (need.write == "append" and large):
        return read
    return [name for name in read if name in large]


def _check_cursor(table: MysqlTable, need: StreamNeed) -> Iterator[Finding]:
    if need.mode != "incremental" or need.cursor is None:
        return
    problem = need.cursor.problem(table.schema)
    clash = [name for name in need.cursor.names if name in RESERVED_NAMES]
    lacking = [name for name in need.cursor.names if need.columns and name not in need.columns]
    if problem is not None:
        yield _finding(table, "cursor", "error", *problem)
    elif clash:
        yield _finding(
            table,
            "cursor",
            "error",
            f"The cursor {clash[0]} has the name of another field in the state file.",
            "Choose another cursor for this stream.",
        )
    elif lacking:
        yield _finding(
            table,
            "cursor",
            "error",
            f"`columns` lacks the cursor {lacking[0]}, by which rows that were read are known again.",
            f"Add {lacking[0]} to `columns`.",
        )
    elif all(table.schema.column(name).nullable for name in need.cursor.names):
        yield _finding(
            table,
            "cursor",
            "warning",
            "The cursor may be null: such rows are not read.",
            f'Name a second cursor that is never null: `cursor: "{need.cursor.names[0]}:id"`.',
        )


def _check_types(table: MysqlTable, need: StreamNeed) -> Iterator[Finding]:
    columns = {column.name: column for column in table.schema.columns}
    for name, text in need.types.items():
        if name not in columns:
            if not need.by_pattern:
                yield _finding(
                    table,
                    "column types",
                    "error",
                    f"`types` names the column {name}, which the table does not have.",
                    f"Correct or remove it; the columns are: {', '.join(columns)}.",
                )
        elif not TYPES.can_be_held_as(columns[name], HeldAs.parse(text)):
            yield _finding(
                table,
                "column types",
                "error",
                f"The column {name} of type {columns[name].type_text} cannot be held as {text}.",
                f"Possible in `types` for this column: {', '.join(TYPES.possible_types(columns[name]))}.",
            )


def _check_log(table: MysqlTable, need: StreamNeed, facts: LogFacts) -> Iterator[Finding]:
    if table.kind in _KINDS:
        return
    unread = [column.name for column in table.schema.columns if column.type_name in _BYTES_IN_LOG]
    if unread:
        yield _finding(
            table,
            "column types",
            "error",
            f"Columns of types that the log has in a form of its own: {', '.join(unread)}.",
            "Set `mode: full_refresh` for this stream, or change them to CHAR or BINARY.",
        )
    if not table.schema.key and need.write == "upsert":
        yield _finding(
            table,
            "primary key",
            "error",
            "The table has no primary key and no unique index of columns that are never null, and "
            "`write: upsert` needs one to tell rows apart.",
            "Add a primary key, or set `write: append` for this stream.",
        )
    exact = need.mode == "cdc" and (need.write == "append" or need.deletes == "soft")
    if exact and not facts.may_lock:
        yield _finding(
            table,
            "lock privilege",
            "warning",
            "The table is loaded at an exact place of the log. If it is written to without a pause, it must "
            "be locked for that moment, and the user may not do so.",
            f"Run: GRANT LOCK TABLES ON `{table.stream.namespace}`.* TO {facts.user}.",
        )
    if exact and not table.is_transactional:
        yield _finding(
            table,
            "storage engine",
            "error",
            f"The engine {table.engine or 'of the table'} has no snapshots: nobody could tell which changes "
            "a load has, and each must count once.",
            f"Run: ALTER TABLE `{table.stream.name}` ENGINE = InnoDB, or set `write: upsert`.",
        )
    elif not table.is_transactional:
        yield _finding(
            table,
            "storage engine",
            "warning",
            f"The engine {table.engine or 'of the table'} has no transactions: what a failed or rolled back "
            "statement changed stays changed, and a load stands in the way of writers.",
            f"Run: ALTER TABLE `{table.stream.name}` ENGINE = InnoDB.",
        )
    for cascade in table.cascades if not facts.logs_cascades else ():
        yield _finding(
            table,
            "foreign key cascades",
            "warning",
            f"The foreign key {cascade.name} changes rows when {cascade.parent} is changed (ON UPDATE "
            f"{cascade.on_update}, ON DELETE {cascade.on_delete}), and the server does not log that.",
            "Let the application change the rows, use MySQL 9.6 or later, or set `mode: full_refresh`.",
        )
