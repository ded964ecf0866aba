"""What each stream needs of its table: findings from the catalog alone, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from penstock.core.held_as import HeldAs
from penstock.core.stream import StreamId
from penstock.sources.finding import Finding, Level, StreamNeed
from penstock.sources.postgres.catalog import Leaf, TableInfo
from penstock.sources.postgres.check_cursor import check_cursor
from penstock.sources.postgres.check_options import check_options
from penstock.sources.postgres.check_selection import check_selection
from penstock.sources.postgres.publication import (
    PublicationInfo,
    PublicationMode,
    publish_generated_statement,
    quoted,
)
from penstock.sources.postgres.types import can_be_held_as, possible_types

_FULL_REFRESH = "Set `mode: full_refresh` for it, or leave it out."


def check_streams(
    needs: Sequence[StreamNeed],
    tables: Sequence[TableInfo],
    publication_name: str,
    publication: PublicationInfo | None,
    *,
    mode: PublicationMode,
    role: str,
) -> list[Finding]:
    """Findings of all streams; one that has no problem gets one finding that says so."""
    findings: list[Finding] = []
    for need in needs:
        wildcard = need.stream.is_pattern
        matching = [
            table
            for table in tables
            if need.stream.matches(table.stream) and not (wildcard and table.is_partition)
        ]
        if not matching:
            findings.append(_missing(need.stream))
        for table in matching:
            if wildcard and need.reads_log and not table.can_be_captured:
                findings.append(_left_out(table, need.stream))
                continue
            found = [
                *_check_reading(table, role),
                *(_check_at_replica(table) if need.at_replica and not need.reads_log else ()),
                *_check_columns(table, need),
                *check_selection(table, need),
                *check_cursor(table, need),
                *check_options(table, need),
                *(_check_log(table, need) if need.reads_log else ()),
                *(
                    _check_membership(table, need, publication_name, publication, mode)
                    if need.reads_log
                    else ()
                ),
            ]
            if not any(finding.level == "error" for finding in found):
                found.insert(0, _fine(table, need))
            findings += found
    return findings


def _missing(stream: StreamId) -> Finding:
    what = "No table matches this pattern." if stream.is_pattern else "There is no such table at the source."
    level: Level = "warning" if stream.is_pattern else "error"
    remedy = "Correct the name in penstock.yaml; `penstock discover` lists the tables."
    return Finding("table", level, what, remedy, str(stream))


def _left_out(table: TableInfo, pattern: StreamId) -> Finding:
    message = f"{pattern} leaves this table out: Postgres keeps no log of {_kind(table)}."
    return Finding("table", "warning", message, f"Name it on its own. {_FULL_REFRESH}", str(table.stream))


def _fine(table: TableInfo, need: StreamNeed) -> Finding:
    parts = "" if table.kind == "table" else f", {len(table.leaves)} partitions"
    if not need.reads_log:
        identity = ""
    elif need.replica_identity == "full" or table.replica_identity == "f":
        identity = ", replica identity full"
    else:
        identity = f", identified by {', '.join(table.schema.key)}"
    message = f"About {table.estimated_rows:,} rows{parts}{identity}."
    return Finding("table", "ok", message, stream=str(table.stream))


def _kind(table: TableInfo) -> str:
    if table.kind in ("table", "partitioned"):
        return "an unlogged table" if table.unlogged else "a temporary table"
    return f"a {table.kind}" if table.kind.endswith("view") else f"a {table.kind} table"


def _finding(table: TableInfo, name: str, level: Level) -> Callable[[str, str], Finding]:
    return lambda message, remedy: Finding(name, level, message, remedy, str(table.stream))


def _names(leaves: Sequence[Leaf]) -> str:
    shown = ", ".join(quoted(leaf.stream) for leaf in leaves[:3])
    return shown + (f" and {len(leaves) - 3} more" if len(leaves) > 3 else "")


def _check_reading(table: TableInfo, role: str) -> Iterator[Finding]:
    unreadable = [leaf for leaf in table.leaves if not leaf.may_select]
    if unreadable:
        statement = (
            f"GRANT USAGE ON SCHEMA {quoted(table.stream.namespace)} TO {quoted(role)}; "
            f"GRANT SELECT ON {_names(unreadable)} TO {quoted(role)}"
        )
        why = "" if table.kind != "partitioned" else " Partitions are read one by one, each needs the right."
        yield _finding(table, "select privilege", "error")(
            f"The role {role} may not read {_names(unreadable)}.{why}", f"As the owner run: {statement}."
        )
    filtered = [leaf for leaf in table.leaves if leaf.row_security_active]
    if filtered:
        yield _finding(table, "row security", "error")(
            f"Row-level security would hide rows of {_names(filtered)} from the role {role}.",
            f"As a superuser run: ALTER ROLE {quoted(role)} BYPASSRLS; "
            "or let Penstock connect as the owner of a table without FORCE ROW LEVEL SECURITY.",
        )
    elif table.row_security:
        yield _finding(table, "row security", "ok")(
            f"Row-level security is on, and does not apply to the role {role}.", ""
        )


def _check_at_replica(table: TableInfo) -> Iterator[Finding]:
    if table.unlogged:
        yield _finding(table, "replica", "error")(
            "An unlogged table has no rows at a replica.",
            "Leave it out, or give it to a pipeline without `source.replica_url`.",
        )


def _check_columns(table: TableInfo, need: StreamNeed) -> Iterator[Finding]:
    if table.generated_columns:
        yield _finding(table, "generated columns", "warning")(
            f"Generated columns are not in the log and are left out: {', '.join(table.generated_columns)}.",
            "Compute them where the table is read, or make them STORED."
            if table.virtual_columns
            else "Compute them where the table is read; from Postgres 18 on, stored ones are in the log.",
        )
    if not table.schema.columns:
        yield _finding(table, "columns", "error")(
            "The table has no columns that could be followed.", "Leave it out, or give it a column."
        )
    yield from _check_types(table, need)
    for column in need.columns or table.schema.names:
        if need.rename.get(column, column) in need.added_columns:
            yield _finding(table, "column names", "error")(
                f"The column {column} has the name of a column that Penstock adds to the table.",
                f"Rename it at the destination: `rename: {{{column}: source{column}}}`.",
            )


def _check_types(table: TableInfo, need: StreamNeed) -> Iterator[Finding]:
    """Whether each column that `types` names is there and can be held as it says."""
    refused = _finding(table, "column types", "error")
    for name, text in need.types.items():
        column = next((column for column in table.schema.columns if column.name == name), None)
        if column is None:
            if not need.by_pattern:
                yield refused(
                    f"`types` names the column {name}, which the table does not have.",
                    f"Correct or remove it; the columns are: {', '.join(table.schema.names)}.",
                )
            continue
        choice = HeldAs.parse(text)
        if not can_be_held_as(column, choice):
            yield refused(
                f"The column {name} of type {column.type_text} cannot be held as {choice}.",
                f"Possible in `types` for this column: {', '.join(possible_types(column))}.",
            )
        elif choice.kind == "list" and name in table.schema.key:
            yield refused(
                f"The column {name} is part of the key and cannot be held as a list.",
                "Hold it as text, which is what an array is without `types`.",
            )


def _check_log(table: TableInfo, need: StreamNeed) -> Iterator[Finding]:
    foreign = [leaf for leaf in table.leaves if leaf.kind != "table"]
    if not table.can_be_captured or foreign:
        what = _kind(table) if not foreign or table.kind != "partitioned" else "foreign partitions"
        yield _finding(table, "table kind", "error")(
            f"Postgres keeps no log of {what}, so changes cannot be followed.", _FULL_REFRESH
        )
        return
    if table.is_partition:
        yield _finding(table, "table kind", "error")(
            "It is a partition: its changes are followed as changes of the table it belongs to.",
            f"Name that table instead, or set `mode: full_refresh` for {table.stream}.",
        )
    full = need.replica_identity == "full"
    if need.write == "upsert" and not table.primary_key and not table.schema.key:
        yield _finding(table, "primary key", "error")(
            "The table has no primary key, and `write: upsert` needs one to tell rows apart.",
            "Add a primary key, or set `write: append` with `replica_identity: full` for this stream.",
        )
    if full:
        yield from _check_full_identity(table)
    elif not table.has_identity:
        yield _without_identity(table)
    if table.virtual_columns and (full or any(leaf.replica_identity == "f" for leaf in table.leaves)):
        yield _finding(table, "replica identity", "error")(
            f"It has virtual generated columns ({', '.join(table.virtual_columns)}), which Postgres cannot "
            "publish: with REPLICA IDENTITY FULL, UPDATE and DELETE would fail in the application.",
            "Make them STORED, or leave the table its primary key as replica identity.",
        )
    if table.deferrable_key and need.mode == "strict_cdc" and need.write == "upsert":
        yield _finding(table, "deferrable key", "error")(
            "The primary key is deferrable: rows that trade keys can only be told apart by a table that "
            "holds all rows, and `mode: strict_cdc` begins without any.",
            "Set `mode: cdc` or `write: append` for this stream, or make the key not deferrable.",
        )
    elif table.deferrable_key and (full or table.has_identity):
        yield _finding(table, "deferrable key", "ok")(
            "The primary key is deferrable; rows that trade keys in one transaction are followed correctly.",
            "",
        )


def _check_full_identity(table: TableInfo) -> Iterator[Finding]:
    lacking = [leaf for leaf in table.leaves if leaf.replica_identity != "f"]
    if not lacking:
        return
    if all(leaf.owned for leaf in lacking):
        yield _finding(table, "replica identity", "ok")(
            "Replica identity becomes full at the first sync (`replica_identity: full`).", ""
        )
        return
    statement = f"ALTER TABLE {quoted(lacking[0].stream)} REPLICA IDENTITY FULL"
    yield _finding(table, "replica identity", "error")(
        "`replica_identity: full` is asked for, and only the table's owner can set it.",
        f"As {lacking[0].owner} run: {statement}"
        + (" (and so on for each partition)." if lacking[1:] else "."),
    )


def _without_identity(table: TableInfo) -> Finding:
    lacking = [leaf for leaf in table.leaves if not leaf.has_identity]
    if any(leaf.replica_identity == "n" for leaf in lacking):
        why = "Its replica identity is NOTHING"
        remedy = (
            f"As the owner run: ALTER TABLE {quoted(lacking[0].stream)} REPLICA IDENTITY DEFAULT "
            "(with a primary key), or set `replica_identity: full` for this stream."
        )
    elif table.deferrable_key:
        why = "Its primary key is deferrable, which Postgres does not take as replica identity"
        remedy = "Set `replica_identity: full` for this stream, or make the key not deferrable."
    else:
        why = "It has no primary key and no other replica identity"
        remedy = "Add a primary key, or set `replica_identity: full` for this stream (rows are logged whole)."
    message = f"{why}: published like this, UPDATE and DELETE would fail in the application."
    return _finding(table, "replica identity", "error")(message, remedy)


def _check_membership(
    table: TableInfo,
    need: StreamNeed,
    name: str,
    publication: PublicationInfo | None,
    mode: PublicationMode,
) -> Iterator[Finding]:
    if not table.can_be_captured:
        return
    filtered = publication.filter_of(table) if publication else None
    if filtered is not None:
        yield _finding(table, "publication content", "error")(
            f"The publication {name} has {filtered} for this table: part of its changes would be missing.",
            f"Run: ALTER PUBLICATION {quoted(name)} DROP TABLE {quoted(table.stream)}; "
            f"ALTER PUBLICATION {quoted(name)} ADD TABLE {quoted(table.stream)}.",
        )
    lacks = publication is not None and not publication.publishes_generated and _holds_generated(table, need)
    if publication and lacks and (mode == "manual" or not publication.owned):
        found = _finding(table, "publication content", "error")(
            f"The publication {name} leaves out generated columns, and the table has stored ones.",
            f"As {publication.owner} run: {publish_generated_statement(name)}.",
        )
        yield replace(found, is_waited_for=name in table.publications)
    if name in table.publications:
        return
    statement = f"ALTER PUBLICATION {quoted(name)} ADD TABLE {quoted(table.stream)}"
    if mode == "manual":
        yield _finding(table, "publication content", "error")(
            f"The table is not in the publication {name}, which is managed by hand.", f"Run: {statement}."
        )
    elif not all(leaf.owned for leaf in table.leaves):
        yield _finding(table, "publication content", "error")(
            f"The table is not in the publication {name}, and only its owner can add it.",
            f"As {table.leaves[0].owner} run: {statement}; or grant that role to Penstock's.",
        )
    elif publication is not None and not publication.owned:
        yield _finding(table, "publication content", "error")(
            f"The table is not in the publication {name}, which only {publication.owner} can change.",
            f"As {publication.owner} run: {statement}; or grant that role to Penstock's.",
        )


def _holds_generated(table: TableInfo, need: StreamNeed) -> bool:
    """Whether the stream has stored generated columns; its filter may read any."""
    chosen = need.columns if need.where is None else ()
    return any(column.generated and (not chosen or column.name in chosen) for column in table.schema.columns)
