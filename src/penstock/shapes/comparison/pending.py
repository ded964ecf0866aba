"""The SELECT of a shape with subqueries, with what is not told yet: which of its rows cannot be judged now.

A row is *pending* if a value that it has at a subquery was held at some time of the watch (`subquery.watch`):
the shape may rightly lack it, or have it still. That goes for values too that rows of a shape inside select
which are pending there. The condition here is met by all such rows, and may be met by others, which are then
judged later.

One query gives the rows that the shape's own condition selects, and those that are pending, each with what it
is (`inside`, `pending` among its headers). A row that is neither is not to be in the shape.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg import sql

from penstock.core.where import tree
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.rendering.row_lines import RowLines
from penstock.shapes.source.catalog import CardColumn
from penstock.shapes.source.sql import condition_of, output_text, table_name
from penstock.shapes.subquery.candidates import is_one_of
from penstock.shapes.subquery.members import form_of
from penstock.shapes.subquery.values import Value
from penstock.shapes.subquery.watch import Unsettled

_TRUE = sql.SQL("TRUE")


def rows_to_judge(definition: ShapeDefinition, unsettled: Unsettled | None) -> RowLines:
    """What to ask the source for."""
    (inside,) = condition_of(definition)
    pending = pending_condition(definition, unsettled)
    if pending is None:
        return RowLines(definition, headers=',"inside":true,"pending":false')
    headers = sql.SQL("({} || {})").format(_header("inside", inside), _header("pending", pending))
    either = sql.SQL("({}) OR ({})").format(inside, pending)
    return RowLines(definition, row_headers=headers, conditions=[either])


def _header(name: str, condition: sql.Composable) -> sql.Composable:
    told = sql.SQL("CASE WHEN ({}) IS TRUE THEN {} ELSE {} END")
    yes, no = (sql.Literal(f',"{name}":{word}') for word in ("true", "false"))
    return told.format(condition, yes, no)


def pending_condition(definition: ShapeDefinition, unsettled: Unsettled | None) -> sql.Composable | None:
    """Met by the rows of its table that are pending; None: there are none."""
    form = form_of(definition)
    if unsettled is None or form is None:
        return None
    parts = []
    for atom in form.positions:
        if isinstance(atom, tree.InSubquery):
            if atom.subquery in unsettled.whole:
                return _TRUE
            if unsettled.held[atom.subquery]:
                parts.append(_is_held(definition, atom, unsettled.held[atom.subquery]))
            inner = _may_be_selected(definition, atom, unsettled.inside[atom.subquery])
            if inner is not None:
                parts.append(inner)
    return sql.SQL("({})").format(sql.SQL(" OR ").join(parts)) if parts else None


def _is_held(definition: ShapeDefinition, atom: tree.InSubquery, values: Collection[Value]) -> sql.Composable:
    """Column by column: a row with parts of several values is one too many."""
    parts = []
    for place, (column, inner) in enumerate(zip(*_sides(definition, atom), strict=True)):
        texts = sorted({text for value in values if (text := value[place]) is not None})
        either = [_is_one_of(column, inner, texts)] if texts else []
        if any(value[place] is None for value in values):
            either.append(sql.SQL("{} IS NULL").format(sql.Identifier(column.name)))
        parts.append(sql.SQL("({})").format(sql.SQL(" OR ").join(either)))
    return sql.SQL("({})").format(sql.SQL(" AND ").join(parts))


def _is_one_of(column: CardColumn, inner: CardColumn, texts: list[str]) -> sql.Composable:
    """By the column's own type, so that an index can be used, where it has all the values that the inner one
    has; else as texts."""
    if column.source.type_oid == inner.source.type_oid:
        return is_one_of(column, texts)
    return sql.SQL("{} = ANY ({}::pg_catalog.text[])").format(_text(column), sql.Literal(texts))


def _may_be_selected(
    definition: ShapeDefinition, atom: tree.InSubquery, unsettled: Unsettled | None
) -> sql.Composable | None:
    """By the pending rows of the shape inside. Of NOT IN a null among them concerns every value: any row is
    pending while there are such."""
    assert definition.where is not None
    inside = definition.where.subqueries[atom.subquery].definition
    condition = pending_condition(inside, unsettled)
    if condition is None:
        return None
    own, inner = _sides(definition, atom)
    selected: Sequence[sql.Composable] = [sql.SQL("1")] if atom.negated else [_text(each) for each in inner]
    rows = sql.SQL("(SELECT {} FROM {} WHERE {})").format(
        sql.SQL(", ").join(selected), table_name(inside.card), condition
    )
    if atom.negated:
        return sql.SQL("EXISTS {}").format(rows)
    return sql.SQL("({}) IN {}").format(sql.SQL(", ").join(_text(each) for each in own), rows)


def _sides(
    definition: ShapeDefinition, atom: tree.InSubquery
) -> tuple[tuple[CardColumn, ...], tuple[CardColumn, ...]]:
    """The columns of the row, and those that the subquery selects."""
    assert definition.where is not None
    inner = definition.where.subqueries[atom.subquery]
    return (
        tuple(definition.card.column(column.name) for column in atom.columns),
        tuple(inner.definition.card.column(name) for name in inner.columns),
    )


def _text(column: CardColumn) -> sql.Composable:
    """Collated in one way, whatever the two columns say."""
    return sql.SQL('({}) COLLATE "C"').format(output_text(column))
