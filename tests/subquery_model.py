"""A source with three tables in a model: transactions that commit, are logged and become visible at different
times, and what conditions with subqueries say of the rows. No server."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.capture.tail_items import Piece
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.core.where import Condition, tree
from penstock.core.where.evaluate import evaluate
from penstock.log import columns as log_columns
from penstock.shapes.definition import DefinitionRequest, ShapeDefinition, define
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.source.catalog import CardColumn, TableCard
from tests.logged_changes import Logged, Row
from tests.logged_changes import _row as logged_row

START = 1000
Tables = dict[str, dict[str, Row]]


def _column(name: str, number: int, type_name: str = "int4", *, nullable: bool = True) -> SourceColumn:
    oid, formatted = {"int4": (23, "integer"), "text": (25, "text")}[type_name]
    return SourceColumn(name, oid, -1, type_name, formatted, attribute_number=number, nullable=nullable)


COLUMNS = {
    "teams": (_column("id", 1, nullable=False), _column("kind", 2, "text")),
    "users": (_column("id", 1, nullable=False), _column("team", 2), _column("flag", 3, "text")),
    "items": (
        _column("id", 1, nullable=False), _column("owner", 2), _column("other", 3), _column("note", 4, "text")
    ),
}  # fmt: skip
STREAMS = {name: StreamId("public", name) for name in COLUMNS}
CARDS = {
    STREAMS[name]: TableCard(
        STREAMS[name],
        16384 + n,
        "r",
        tuple(CardColumn(each, each.type_name, 0, -1) for each in columns),
        ("id",),
    )
    for n, (name, columns) in enumerate(COLUMNS.items())
}


def defined(table: str, where: str, **given: Any) -> ShapeDefinition:
    return define(DefinitionRequest(f"public.{table}", where=where, **given), CARDS.get)


def pieces(changes: Sequence[tuple[str, Logged]]) -> list[Piece]:
    found = []
    for name, columns in COLUMNS.items():
        own = [change for table, change in changes if table == name]
        if not own:
            continue
        leaf = f"public.{name}"
        schema = TableSchema(STREAMS[name], columns, ("id",), "f", storage=leaf)
        rows = pa.RecordBatch.from_pylist(
            [logged_row(change, [column.name for column in columns]) for change in own],
            schema=log_columns.log_schema(schema, leaf),
        )
        found.append(Piece(STREAMS[name], StreamId.parse(leaf), schema.id, rows))
    return found


@dataclass
class Transaction:
    xid: int
    changes: list[tuple[str, Logged]] = field(default_factory=list)
    tx: int = 0

    @property
    def touched(self) -> set[tuple[str, str]]:
        found = set()
        for table, change in self.changes:
            for row in (change.new, change.old):
                if row is not None:
                    found.add((table, str(row["id"])))
        return found


class ModelSource:
    """Rows that a transaction has written are locked until it can be seen."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.committed: Tables = {name: {} for name in COLUMNS}
        self.visible: Tables = {name: {} for name in COLUMNS}
        self.lsn = START
        self.next_xid = 10
        self.running: list[Transaction] = []
        self.invisible: list[Transaction] = []
        self.unread: list[Transaction] = []
        self.all_transactions: list[Transaction] = []

    def begin(self) -> None:
        chance = self.chance
        locked = {each for one in (*self.running, *self.invisible) for each in one.touched}
        made = Transaction(self.next_xid)
        self.next_xid += 1
        tables = {name: dict(rows) for name, rows in self.committed.items()}
        for n in range(chance.randint(1, 4)):
            table = chance.choice(["teams", "users", "items", "items", "users"])
            row_id = str(chance.randint(1, 6 if table != "items" else 10))
            if (table, row_id) in locked:
                continue
            old = tables[table].get(row_id)
            new: Row | None = self._row(table, row_id)
            if old is not None and chance.random() < 0.3:
                new = None
            elif old is not None and chance.random() < 0.15:
                other = str(chance.randint(1, 10))
                if other not in tables[table] and (table, other) not in locked:
                    assert new is not None
                    new = {**new, "id": other}
            kind = "i" if old is None else "d" if new is None else "u"
            made.changes.append((table, Logged(0, 2 * n, kind, new, old, made.xid)))
            if old is not None:
                del tables[table][row_id]
            if new is not None:
                tables[table][str(new["id"])] = new
        if made.changes:
            self.running.append(made)

    def _row(self, table: str, row_id: str) -> Row:
        chance = self.chance

        def reference() -> str | None:
            return None if chance.random() < 0.1 else str(chance.randint(1, 6))

        if table == "teams":
            return {"id": row_id, "kind": chance.choice("ab")}
        if table == "users":
            return {"id": row_id, "team": reference(), "flag": chance.choice("yn")}
        return {"id": row_id, "owner": reference(), "other": reference(), "note": chance.choice("12")}

    def commit(self) -> None:
        """One of those that run is in the log from now on, and not yet to be seen."""
        if not self.running:
            return
        done = self.running.pop(self.chance.randrange(len(self.running)))
        done.tx = self.lsn
        self.lsn += 100
        done.changes = [
            (table, Logged(done.tx, each.op, each.kind, each.new, each.old, each.xid))
            for table, each in done.changes
        ]
        _write(self.committed, done)
        self.invisible.append(done)
        self.unread.append(done)
        self.all_transactions.append(done)

    def show(self, *, all_of_them: bool = False) -> None:
        for each in list(self.invisible):
            if all_of_them or self.chance.random() < 0.6:
                _write(self.visible, each)
                self.invisible.remove(each)

    def snapshot(self) -> tuple[SnapshotPoint, Tables]:
        unseen = sorted(each.xid for each in (*self.running, *self.invisible))
        xmin = unseen[0] if unseen else self.next_xid
        point = SnapshotPoint(xmin, self.next_xid, tuple(unseen), self.lsn)
        return point, {name: dict(rows) for name, rows in self.visible.items()}


def _write(tables: Tables, done: Transaction) -> None:
    for table, change in done.changes:
        if change.old is not None:
            del tables[table][str(change.old["id"])]
        if change.new is not None:
            tables[table][str(change.new["id"])] = change.new


def selected(definition: ShapeDefinition, tables: Tables) -> dict[str, Row]:
    """The rows that a definition means, by key."""
    rows = list(tables[definition.table.name].values())
    where = definition.where
    truths = (
        [True] * len(rows)
        if where is None
        else truth(where.condition, where.condition.expression, rows, tables)
    )
    return {
        f'"public"."{definition.table.name}"/"{row["id"]}"': {name: row[name] for name in definition.columns}
        for row, inside in zip(rows, truths, strict=True)
        if inside
    }


def truth(
    condition: Condition,
    expression: tree.Expression,
    rows: Sequence[Mapping[str, str | None]],
    tables: Tables,
) -> list[bool]:
    """By what the tables hold: for each row whether it is true."""
    if not rows:
        return []

    def member(node: tree.InSubquery, columns: tuple[pa.StringArray, ...]) -> pa.BooleanArray:
        subquery = condition.subqueries[node.subquery]
        inner = list(tables[subquery.stream.name].values())
        kept = (
            [True] * len(inner)
            if subquery.condition is None
            else truth(subquery.condition, subquery.condition.expression, inner, tables)
        )
        values = [
            tuple(row[column.name] for column in subquery.columns)
            for row, is_in in zip(inner, kept, strict=True)
            if is_in
        ]
        own = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([_member(value, values) for value in own], pa.bool_())

    names = list(rows[0])
    columns = {name: pa.array([row[name] for row in rows], pa.string()) for name in names}
    answer = evaluate(expression, columns, len(rows), member)
    return [bool(each) for each in answer.to_pylist()]


def _member(value: tuple[str | None, ...], values: Sequence[tuple[str | None, ...]]) -> bool | None:
    unknown = False
    for other in values:
        parts = [None if a is None or b is None else a == b for a, b in zip(value, other, strict=True)]
        if all(parts):
            return True
        unknown = unknown or False not in parts
    return None if unknown else False
