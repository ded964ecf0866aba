"""The SQL that reads a shape's rows: their values as text, which `row_lines` writes as JSON.

A value is printed by its type's output function, which is how the log has it too, under the same session
settings; booleans alone are `true` and `false` here, as clients know them from a first answer (in keys they
are `t` and `f`: a key is the same text wherever it comes from). Text is ordered in COLLATE "C".

Nothing that a client wrote gets into a query: conditions are printed from their checked tree, names are
quoted as identifiers, and constants as literals.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.source.catalog import CardColumn, TableCard
from penstock.sources.postgres.publication import identifier
from penstock.sources.postgres.snapshot_reading import printed


def select(
    card: TableCard,
    fields: Sequence[sql.Composable],
    conditions: Sequence[sql.Composable],
    rest: sql.Composable | None = None,
) -> sql.Composed:
    """`rest` follows the conditions: order and limit."""
    parts: list[sql.Composable] = [
        sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(fields), table_name(card))
    ]
    if conditions:
        met = sql.SQL(" AND ").join(sql.SQL("({})").format(each) for each in conditions)
        parts.append(sql.SQL("WHERE {}").format(met))
    if rest is not None:
        parts.append(rest)
    return sql.SQL(" ").join(parts)


def table_name(card: TableCard) -> sql.Composable:
    """ONLY: rows of tables that inherit from an ordinary one are in the log under those tables' names."""
    only = sql.SQL("") if card.kind == "p" else sql.SQL("ONLY ")
    return only + identifier(card.stream)


def condition_of(definition: ShapeDefinition) -> list[sql.Composable]:
    """The shape's own condition, if it has one."""
    return [sql.SQL(definition.where.text)] if definition.where is not None else []


def output_text(column: CardColumn) -> sql.Composable:
    """A value as the log prints it; null for null."""
    return printed(column.source)


def value_text(column: CardColumn) -> sql.Composable:
    """A value as clients get it in a first answer."""
    if column.source.type_name == "bool":
        return sql.SQL("{}::pg_catalog.text").format(sql.Identifier(column.name))
    return output_text(column)


def tables_read(definition: ShapeDefinition) -> list[TableCard]:
    """The shape's own table, and those of its subqueries at any depth."""
    atoms = definition.where.subqueries if definition.where is not None else ()
    return [definition.card, *(card for atom in atoms for card in tables_read(atom.definition))]
