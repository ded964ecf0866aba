"""The judge of append tables: is each change of the source there, once and in order?

The source keeps a history of its own: triggers write each change, in the transaction that made it, to
`oracle.audit`. Changes of one key are serialised by its row lock, so the audit's order per key is the
order of their commits, whatever other transactions did meanwhile; TRUNCATE locks the whole table, so its
place in the history of every key is exact too. Like `tests.oracle`, this shares no code with Penstock.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.oracle import (
    EXAMPLES_MAX,
    OPTIONS,
    OWN_COLUMNS,
    Row,
    Table,
    Value,
    assert_equal_rows,
    columns_of,
    destination_rows,
    primary_key,
    print_column,
    read_parquet,
    relation_of,
    source_rows,
)


def install_audit(url: str, tables: Iterable[str]) -> None:
    """Have the source write down each change of these tables, in the transaction that makes it."""
    with psycopg.connect(url, options=OPTIONS, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS oracle")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS oracle.audit (seq bigserial PRIMARY KEY, relation text NOT NULL, "
            "op text NOT NULL, old text[], new text[], xid text NOT NULL DEFAULT pg_current_xact_id()::text, "
            "at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        for table in tables:
            _install_triggers(connection, table)


def _install_triggers(connection: psycopg.Connection[Any], table: str) -> None:
    relation = relation_of(table)
    name = "audit_" + "".join(letter if letter.isalnum() else "_" for letter in table)
    columns = columns_of(connection, relation)

    def values(record: str) -> sql.Composed:
        # format('%s') prints like the wire does; a cast to text would say `true` for `t`.
        printed = [
            sql.SQL("CASE WHEN num_nonnulls({c}) = 0 THEN NULL ELSE format('%s', {c}) END").format(
                c=sql.SQL(record + ".") + sql.Identifier(column)
            )
            for column in columns
        ]
        return sql.SQL("ARRAY[{}]::text[]").format(sql.SQL(", ").join(printed))

    body = sql.SQL(
        "BEGIN "
        "IF TG_OP = 'INSERT' THEN INSERT INTO oracle.audit (relation, op, new) VALUES ({t}, 'i', {new}); "
        "ELSIF TG_OP = 'UPDATE' THEN "
        "INSERT INTO oracle.audit (relation, op, old, new) VALUES ({t}, 'u', {old}, {new}); "
        "ELSIF TG_OP = 'DELETE' THEN INSERT INTO oracle.audit (relation, op, old) VALUES ({t}, 'd', {old}); "
        "ELSE INSERT INTO oracle.audit (relation, op) VALUES ({t}, 't'); END IF; RETURN NULL; END"
    ).format(t=sql.Literal(table), old=values("OLD"), new=values("NEW"))
    connection.execute(
        sql.SQL("CREATE OR REPLACE FUNCTION oracle.{} () RETURNS trigger LANGUAGE plpgsql AS {}").format(
            sql.Identifier(name), sql.Literal(body.as_string(connection))
        )
    )
    for suffix, event in (("row", "INSERT OR UPDATE OR DELETE"), ("statement", "TRUNCATE")):
        level = "FOR EACH ROW" if suffix == "row" else "FOR EACH STATEMENT"
        connection.execute(
            sql.SQL("CREATE OR REPLACE TRIGGER {} AFTER {} ON {} {} EXECUTE FUNCTION oracle.{} ()").format(
                sql.Identifier(f"{name}_{suffix}"),
                sql.SQL(event),
                relation,
                sql.SQL(level),
                sql.Identifier(name),
            )
        )


@dataclass(frozen=True)
class Change:
    """One row of an append table, or what it should be. `row` is the key alone for a delete."""

    op: str
    row: Row
    at: datetime.datetime  # when it was made; at the destination: when it was committed
    xid: str = ""  # of the source's transaction; not known at the destination
    unchanged: frozenset[str] = frozenset()
    number: int = 0  # in the source's own list, of all tables


@dataclass(frozen=True)
class Layout:
    columns: tuple[str, ...]
    key: tuple[str, ...]

    def key_of(self, row: Sequence[Value]) -> Row:
        return tuple(row[self.columns.index(name)] for name in self.key)

    def by_key(self, changes: Iterable[Change]) -> dict[Row, list[Change]]:
        """Each key's own changes and, since they concern every key, all truncates; in order."""
        truncates: list[Change] = []
        result: dict[Row, list[Change]] = {}
        for change in changes:
            if change.op == "t":
                truncates.append(change)
                for history in result.values():
                    history.append(change)
            else:
                key = change.row if change.op == "d" else self.key_of(change.row)
                result.setdefault(key, list(truncates)).append(change)
        return result


def assert_append_is_history(url: str, table: str, path: Path | str, *, one_moment: bool = True) -> int:
    """The table holds the rows of one moment, and each change since then once, in order per key.

    The moment of the load is not told, but one must exist: a set of whole transactions that are in the
    loaded rows while all others are among the changes, and none of the former began after one of the
    latter had committed. The audit must have been there before the table's first row.
    `one_moment=False` is for a load that was resumed: each key has a moment of its own then.
    Returns the number of changes.
    """
    layout, audit = audited(url, table)
    return assert_is_history(table, layout, audit, source_rows(url, table), Path(path), one_moment=one_moment)


def assert_is_history(
    table: str, layout: Layout, audit: list[Change], source: Table, path: Path, *, one_moment: bool = True
) -> int:
    """The same of any source: `audit` is what it wrote down, `source` the rows that it has now."""
    loaded, changes = _appended(path, layout)
    expected, found = layout.by_key(audit), layout.by_key(changes)
    found_truncates = [change for change in changes if change.op == "t"]
    problems: list[str] = []
    in_load: set[str] = set()
    in_changes: set[str] = set()
    for key in sorted({*expected, *found, *loaded}, key=str):
        history, got = expected.get(key, []), found.get(key, found_truncates)
        cut = max(len(history) - len(got), 0)
        in_load.update(change.xid for change in history[:cut])
        in_changes.update(change.xid for change in history[cut:])
        problem = _difference(layout, history, got, loaded.get(key, []))
        if problem:
            problems.append(f"key {', '.join(map(str, key))}: {problem}")
    if one_moment:
        problems += _no_common_moment(audit, changes, in_load, in_changes)
    _assert_none(table, problems)
    replayed = Table(layout.columns, _replay(layout, loaded, changes), layout.key)
    assert_equal_rows(f"{table}, replayed,", source, replayed)
    return len(changes)


def assert_changes_since(url: str, table: str, path: Path | str, before: int, begun: int) -> int:
    """A table that was never loaded holds each change since it began once, in order per key.

    None up to number `before` of the source's list is there, and each after `begun`; of those in between as
    many as fit one moment, as of a load. Returns the number of changes.
    """
    layout, audit = audited(url, table)
    loaded, changes = _appended(Path(path), layout)
    assert not loaded, f"{table}: {len(loaded)} keys were loaded"
    expected, found = layout.by_key(audit), layout.by_key(changes)
    problems: list[str] = []
    early: set[str] = set()
    late: set[str] = set()
    for key in sorted({*expected, *found}, key=str):
        history, got = expected.get(key, []), found.get(key, [])
        cut = max(len(history) - len(got), 0)
        early.update(change.xid for change in history[:cut])
        late.update(change.xid for change in history[cut:])
        lost = sum(change.number > begun for change in history[:cut])
        surplus = sum(change.number <= before for change in history[cut:])
        problem = _different_changes(layout, history, got) or (
            f"{lost} changes are missing, {surplus} are older than the table" if lost or surplus else ""
        )
        if problem:
            problems.append(f"key {', '.join(map(str, key))}: {problem}")
    problems += _no_common_moment(audit, changes, early, late)
    _assert_none(table, problems)
    return len(changes)


def assert_rows_since(url: str, table: str, path: Path | str, before: int, begun: int) -> int:
    """A table that was never loaded, and is kept up, holds the rows that were written since it began.

    `before` and `begun` as in `assert_changes_since`. Returns the number of rows.
    """
    layout, audit = audited(url, table)
    source, found = source_rows(url, table), destination_rows(path)
    assert set(found.columns) == set(layout.columns), f"{table}: columns are {found.columns}"
    held = destination_rows(path, layout.columns)
    written = {change.number: layout.key_of(change.row) for change in audit if change.op in "iu"}
    certain = {key for number, key in written.items() if number > begun}
    possible = {key for number, key in written.items() if number > before}
    due = certain | ({layout.key_of(row) for row in held.rows} & possible)
    expected = [row for row in source.rows if layout.key_of(row) in due]
    assert_equal_rows(table, Table(source.columns, expected, layout.key), held)
    return len(held.rows)


def audited(url: str, table: str) -> tuple[Layout, list[Change]]:
    """What the source has written down of a table's changes, in order per key."""
    relation = relation_of(table)
    with psycopg.connect(url, options=OPTIONS, autocommit=True) as connection:
        layout = Layout(tuple(columns_of(connection, relation)), primary_key(connection, relation))
        return layout, _audited(connection, table, layout)


def audit_end(url: str) -> int:
    """The number of the last change that is written down, of any table."""
    with psycopg.connect(url, autocommit=True) as connection:
        (row,) = connection.execute("SELECT coalesce(max(seq), 0) FROM oracle.audit").fetchall()
    return int(row[0])


def _audited(connection: psycopg.Connection[Any], table: str, layout: Layout) -> list[Change]:
    rows = connection.execute(
        "SELECT op, old, new, xid, at, seq FROM oracle.audit WHERE relation = %s ORDER BY seq", (table,)
    ).fetchall()
    return changes_of(layout, rows)


def changes_of(layout: Layout, rows: Iterable[tuple[Any, ...]]) -> list[Change]:
    """As an append table has what was written down: (op, old row, new row, transaction, time, number)."""
    changes: list[Change] = []
    for op, old, new, xid, at, number in rows:
        if op == "t":
            changes.append(Change("t", (), at, xid, number=number))
        elif op == "d":
            changes.append(Change("d", layout.key_of(old), at, xid, number=number))
        elif op == "u" and layout.key_of(old) == layout.key_of(new):
            same = (name for name, a, b in zip(layout.columns, old, new, strict=True) if a == b)
            changes.append(Change("u", tuple(new), at, xid, frozenset(same), number))
        else:
            if op == "u":
                changes.append(Change("d", layout.key_of(old), at, xid, number=number))
            same = (name for name, a, b in zip(layout.columns, old or [], new, strict=False) if a == b)
            changes.append(Change("i", tuple(new), at, xid, frozenset(same), number))
    return changes


def _appended(path: Path, layout: Layout) -> tuple[dict[Row, list[Row]], list[Change]]:
    """Loaded rows by key, and changes in the order of their offsets."""
    table = read_parquet(path).sort_by([("_tx", "ascending"), ("_op_index", "ascending")])
    rows = zip(*(print_column(table.column(name)) for name in layout.columns), strict=True)
    own = [table.column(name).to_pylist() for name in OWN_COLUMNS]
    loaded: dict[Row, list[Row]] = defaultdict(list)
    changes: list[Change] = []
    offsets: set[tuple[int, int]] = set()
    for row, op, tx, index, committed, unchanged in zip(rows, *own, strict=True):
        if op == "r":
            assert tx == 0, "a loaded row belongs to no transaction"
            loaded[layout.key_of(row)].append(row)
            continue
        assert (tx, index) not in offsets, f"two changes have the offset ({tx}, {index})"
        offsets.add((tx, index))
        content = layout.key_of(row) if op == "d" else () if op == "t" else row
        changes.append(Change(op, content, committed, unchanged=frozenset(unchanged or ())))
    return loaded, changes


def _assert_none(table: str, problems: list[str]) -> None:
    if problems:
        shown = "\n  ".join(problems[:EXAMPLES_MAX])
        raise AssertionError(
            f"{table}: {len(problems)} keys or transactions are not as they happened:\n  {shown}"
        )


def _difference(layout: Layout, history: list[Change], got: list[Change], loaded: list[Row]) -> str:
    """What is wrong with one key: `history` as it happened, `got` and `loaded` as the table has it."""
    if problem := _different_changes(layout, history, got):
        return problem
    cut = len(history) - len(got)
    last = history[cut - 1] if cut else None
    at_load = [last.row] if last is not None and last.op in "iu" else []
    if loaded != at_load:
        return f"was loaded {len(loaded)} times, with {len(at_load)} expected, or with other values"
    return ""


def _different_changes(layout: Layout, history: list[Change], got: list[Change]) -> str:
    """What is wrong with the changes of one key, the last of those that happened."""
    if len(got) > len(history):
        return f"has {len(got)} changes, but only {len(history)} were made"
    cut = len(history) - len(got)
    for place, (change, other) in enumerate(zip(history[cut:], got, strict=True), start=1):
        where = f"change {place} of {len(got)}"
        if change.op != other.op:
            return f"{where} should be {change.op!r}, is {other.op!r}"
        if not other.unchanged <= change.unchanged:
            return f"{where} says that {sorted(other.unchanged - change.unchanged)} did not change"
        if change.op in "iu":
            pairs = zip(layout.columns, change.row, other.row, strict=True)
            wrong = [name for name, a, b in pairs if a != b and name not in other.unchanged]
            if wrong:
                return f"{where} has other values in {', '.join(wrong)}"
    return ""


def _no_common_moment(
    audit: list[Change], changes: list[Change], in_load: set[str], in_changes: set[str]
) -> list[str]:
    problems = [f"transaction {xid} is half in the load, half in the changes" for xid in in_load & in_changes]
    if changes:
        # Commit times are taken just before the commit is written: close calls prove nothing.
        certain = min(change.at for change in changes) + datetime.timedelta(seconds=1)
        late = {change.xid for change in audit if change.xid in in_load and change.at > certain}
        problems += [f"transaction {xid} is missing: it was made long after the load" for xid in late]
    return problems


def _replay(layout: Layout, loaded: dict[Row, list[Row]], changes: list[Change]) -> list[Row]:
    """The table that the changes lead to. Unchanged values are those of the row before, under its old key."""
    state = {key: rows[-1] for key, rows in loaded.items()}
    left: Row | None = None  # the row that the delete just before took away: of a key change, its old half
    for change in changes:
        if change.op == "t":
            state.clear()
        elif change.op == "d":
            left = state.pop(change.row, None)
            continue
        else:
            key = layout.key_of(change.row)
            before = state.get(key) or left
            row = [
                before[place] if before is not None and name in change.unchanged else value
                for place, (name, value) in enumerate(zip(layout.columns, change.row, strict=True))
            ]
            state[key] = tuple(row)
        left = None
    return list(state.values())
