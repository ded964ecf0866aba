"""What clients are told of a row so that events can move it: `tags` and `active_conditions`.

A tag stands for a disjunct: a slot for each position, joined by "/". The slot of a subquery is a hash of the
row's value there, that of another atom "1", and that of a position which the disjunct does not have is empty.
Hashes are salted with the stack's id and the shape's handle: nothing can be learnt from comparing them.

The same headers are made here for changes and in SQL for a first answer; a test compares them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from psycopg import sql

from penstock.core.where import tree
from penstock.core.where.print_sql import Printer
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.source.sql import output_text
from penstock.shapes.subquery.normal_form import NormalForm
from penstock.shapes.subquery.values import Value

_CACHED_MAX = 10_000
Slots = tuple[str, ...]


class Tags:
    """Of one shape."""

    def __init__(self, form: NormalForm, salt: str) -> None:
        self._form = form
        self._salt = salt
        self._columns = [
            tuple(column.name for column in atom.columns) if isinstance(atom, tree.InSubquery) else ()
            for atom in form.positions
        ]
        self._hashes: dict[tuple[int, Value], str] = {}
        self._headers: dict[tuple[Slots, tuple[bool, ...], Slots | None], bytes] = {}

    def slot(self, position: int, value: Value) -> str:
        found = self._hashes.get((position, value))
        if found is None:
            if len(self._hashes) >= _CACHED_MAX:
                self._hashes.clear()
            text = self._salt + _text(self._columns[position], value)
            found = hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
            self._hashes[position, value] = found
        return found

    def slots(self, values: Sequence[Value | None]) -> Slots:
        """By position; None: not a subquery."""
        return tuple(
            "1" if value is None else self.slot(position, value) for position, value in enumerate(values)
        )

    def tags(self, slots: Slots) -> list[str]:
        return [
            "/".join(slot if position in disjunct else "" for position, slot in enumerate(slots))
            for disjunct in self._form.disjuncts
        ]

    def headers(self, slots: Slots, active: Sequence[bool], before: Slots | None = None) -> bytes:
        """As JSON members after others. `before`: the slots of the row that was updated."""
        key = slots, tuple(active), before
        found = self._headers.get(key)
        if found is None:
            if len(self._headers) >= _CACHED_MAX:
                self._headers.clear()
            found = self._headers[key] = self._made_headers(slots, active, before)
        return found

    def _made_headers(self, slots: Slots, active: Sequence[bool], before: Slots | None) -> bytes:
        tags = self.tags(slots)
        text = f',"tags":{_json(tags)}'
        if before is not None and before != slots:
            removed = [tag for tag in self.tags(before) if tag not in tags]
            text += f',"removed_tags":{_json(removed)}' if removed else ""
        return f'{text},"active_conditions":{_json([bool(each) for each in active])}'.encode()


def slots_of(tags: Iterable[str]) -> Slots:
    """The slots that these tags were made of."""
    parts = [tag.split("/") for tag in tags]
    return tuple(next((slot for slot in each if slot), "") for each in zip(*parts, strict=True))


def _text(columns: tuple[str, ...], value: Value) -> str:
    if len(columns) == 1:
        return _marked(value[0])
    return "".join(f"{name}:{_marked(text)}" for name, text in zip(columns, value, strict=True))


def _marked(text: str | None) -> str:
    return "NULL" if text is None else "v:" + text


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def header_sql(definition: ShapeDefinition, form: NormalForm, salt: str) -> sql.Composable:
    """An expression that gives the headers of a row of the shape's table."""
    assert definition.where is not None
    condition = definition.where.condition
    printer = Printer(condition.subqueries, None, condition.deterministic)
    slots = [_slot_sql(definition, atom, salt) for atom in form.positions]
    pieces: list[sql.Composable] = [sql.Literal(',"tags":[')]
    for number, disjunct in enumerate(form.disjuncts):
        pieces.append(sql.Literal('"' if number == 0 else ',"'))
        for position, slot in enumerate(slots):
            if position:
                pieces.append(sql.Literal("/"))
            if position in disjunct:
                pieces.append(slot)
        pieces.append(sql.Literal('"'))
    for position, atom in enumerate(form.positions):
        pieces.append(sql.Literal('],"active_conditions":[' if position == 0 else ","))
        truth = sql.SQL("CASE WHEN ({}) IS TRUE THEN 'true' ELSE 'false' END")
        pieces.append(truth.format(sql.SQL(printer.sql(atom))))
    pieces.append(sql.Literal("]"))
    return _joined(pieces)


def _slot_sql(definition: ShapeDefinition, atom: tree.Expression, salt: str) -> sql.Composable:
    if not isinstance(atom, tree.InSubquery):
        return sql.Literal("1")
    pieces: list[sql.Composable] = [sql.Literal(salt)]
    for column in atom.columns:
        if len(atom.columns) > 1:
            pieces.append(sql.Literal(f"{column.name}:"))
        marked = sql.SQL("COALESCE('v:' || {}, 'NULL')")
        pieces.append(marked.format(output_text(definition.card.column(column.name))))
    return sql.SQL("pg_catalog.md5(pg_catalog.convert_to({}, 'UTF8'))").format(_joined(pieces))


def _joined(pieces: Sequence[sql.Composable]) -> sql.Composable:
    """Not a function call, which has a limit of 100 arguments."""
    return sql.SQL("(''::pg_catalog.text || {})").format(sql.SQL(" || ").join(pieces))
