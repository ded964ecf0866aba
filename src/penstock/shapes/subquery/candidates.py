"""Which rows to ask the source for when values of subqueries became active: a condition in SQL.

It is met by every row that may come in: one that has an activated value at a position of some disjunct, and
meets what that disjunct says without subqueries. That it may be met by others does no harm; they are told
apart by the columns that come along. Of a subquery whose nulls came or went, rows of any value are asked for.

Values are compared as their column's own type where its name is known to the system, so that an index can be
used, and else as texts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg import sql

from penstock.core.where import tree
from penstock.core.where.print_sql import Printer
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.source.catalog import CardColumn
from penstock.shapes.source.sql import output_text
from penstock.shapes.subquery.normal_form import NormalForm
from penstock.shapes.subquery.values import Value

_COMPARED_AS = frozenset(
    {"int2", "int4", "int8", "text", "varchar", "uuid", "date", "timestamp", "timestamptz"}
)
_FIRST_OWN_OID = 16384


def condition_of(
    definition: ShapeDefinition,
    form: NormalForm,
    values: Sequence[Collection[Value]],
    whole: Collection[int] = (),
) -> sql.Composable:
    """`values` by subquery; `whole`: of which subqueries any value is asked for."""
    assert definition.where is not None
    condition = definition.where.condition
    printer = Printer(condition.subqueries, None, condition.deterministic)
    alternatives = []
    for disjunct in form.disjuncts:
        atoms = [form.positions[position] for position in disjunct]
        asked = [
            sql.SQL("TRUE") if atom.subquery in whole else _has_one(definition, atom, values[atom.subquery])
            for atom in atoms
            if isinstance(atom, tree.InSubquery) and (values[atom.subquery] or atom.subquery in whole)
        ]
        if asked:
            plain = [sql.SQL(printer.sql(atom)) for atom in atoms if not isinstance(atom, tree.InSubquery)]
            either = sql.SQL("({})").format(sql.SQL(" OR ").join(asked))
            alternatives.append(sql.SQL("({})").format(sql.SQL(" AND ").join([either, *plain])))
    assert alternatives, "something is asked for"
    return sql.SQL(" OR ").join(alternatives)


def _has_one(definition: ShapeDefinition, atom: tree.InSubquery, values: Collection[Value]) -> sql.Composable:
    """Column by column: a row with parts of several values is one too many."""
    parts = []
    for place, column in enumerate(atom.columns):
        texts = sorted({text for value in values if (text := value[place]) is not None})
        card = definition.card.column(column.name)
        either = [is_one_of(card, texts)] if texts else []
        if any(value[place] is None for value in values):
            either.append(sql.SQL("{} IS NULL").format(sql.Identifier(column.name)))
        parts.append(sql.SQL("({})").format(sql.SQL(" OR ").join(either)))
    return sql.SQL("({})").format(sql.SQL(" AND ").join(parts))


def is_one_of(column: CardColumn, texts: list[str]) -> sql.Composable:
    """Whether a column has one of these values of its type, or of one that it can be made of."""
    listed = sql.Literal(texts)
    name = column.source.type_name
    if name not in _COMPARED_AS or column.source.type_oid >= _FIRST_OWN_OID:
        return sql.SQL("{} = ANY ({}::pg_catalog.text[])").format(output_text(column), listed)
    typed = sql.SQL("{} = ANY ({}::pg_catalog.{}[])")
    return typed.format(sql.Identifier(column.name), listed, sql.Identifier(name))
