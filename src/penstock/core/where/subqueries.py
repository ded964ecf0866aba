"""`column IN (SELECT …)`: membership in the rows of another table.

The inner SELECT takes plain columns of one table and a condition of its own, nothing else: so it is a shape
too, and what is in it can be told from that shape's rows alone. Values are compared as the texts that
Postgres prints, hence only kinds are taken whose equal values print alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.core.stream import StreamId
from penstock.core.where import tree
from penstock.core.where.condition import Condition, Subquery
from penstock.core.where.convert import type_of
from penstock.core.where.kinds import EnumOf, Kind
from penstock.core.where.syntax import text_of
from penstock.core.where.wording import RefusedError

if TYPE_CHECKING:
    from penstock.core.where.compile import Compiler

_PRINTED_ALIKE = frozenset(
    {
        Kind.BOOLEAN,
        Kind.INTEGER,
        Kind.TEXT,
        Kind.NAME,
        Kind.UUID,
        Kind.BYTEA,
        Kind.DATE,
        Kind.TIME,
        Kind.TIMESTAMP,
        Kind.TIMESTAMPTZ,
    }
)
_SELECT_PARTS = frozenset({"target_list", "from_clause", "where_clause", "limit_option", "op"})
_TABLE_PARTS = frozenset({"schemaname", "relname", "inh", "relpersistence", "alias", "location"})


def membership(compiler: Compiler, link: Any) -> tree.Expression:
    if compiler.name_of(link, "sub_link_type") != "ANY_SUBLINK" or link.oper_name:
        raise RefusedError("a subquery is supported as column IN (SELECT …) only")
    columns = _left_side(compiler, link.testexpr)
    found = _subquery(compiler, link.subselect.select_stmt)
    if len(found.columns) != len(columns):
        raise RefusedError(
            "subquery has too many columns"
            if len(found.columns) > len(columns)
            else "subquery has too few columns"
        )
    for outer, inner in zip(columns, found.columns, strict=True):
        if outer.kind != inner.kind:
            raise RefusedError(
                f"the types of {outer.name} and of the subquery's {inner.name} differ: "
                f"{type_of(outer)} and {type_of(inner)}"
            )
    if found not in compiler.subqueries:
        compiler.subqueries.append(found)
    return tree.InSubquery(columns, compiler.subqueries.index(found), negated=False)


def negated(node: tree.InSubquery) -> tree.InSubquery:
    return replace(node, negated=not node.negated)


def check_places(expression: tree.Expression) -> None:
    """Only under AND, OR and NOT, and each subquery on one side of NOT."""
    polarities: dict[int, set[bool]] = {}
    _check(expression, negative=False, polarities=polarities)
    if any(len(found) > 1 for found in polarities.values()):
        raise RefusedError(
            "a subquery dependency cannot be used with both positive and negative polarity in the same filter"
        )


def _check(expression: tree.Expression, *, negative: bool, polarities: dict[int, set[bool]]) -> None:
    match expression:
        case tree.InSubquery():
            polarities.setdefault(expression.subquery, set()).add(negative != expression.negated)
        case tree.AllOf() | tree.AnyOf():
            for operand in expression.operands:
                _check(operand, negative=negative, polarities=polarities)
        case tree.Not():
            _check(expression.operand, negative=not negative, polarities=polarities)
        case _:
            if any(isinstance(node, tree.InSubquery) for node in tree.every_node(expression)):
                raise RefusedError("a subquery is supported under AND, OR and NOT only")


def _left_side(compiler: Compiler, node: Any) -> tuple[tree.Column, ...]:
    nodes = node.row_expr.args if node.WhichOneof("node") == "row_expr" else [node]
    found = tuple(compiler.expression(each) for each in nodes)
    if not all(isinstance(each, tree.Column) for each in found):
        raise RefusedError("the left side of IN (SELECT …) must be columns")
    return _comparable(found)


def _subquery(compiler: Compiler, select: Any) -> Subquery:
    if {field.name for field, _ in select.ListFields()} - _SELECT_PARTS or (
        compiler.name_of(select, "op") != "SETOP_NONE"
    ):
        raise RefusedError("a subquery takes columns, one table and WHERE, and no further clauses")
    stream, alias = _table(select.from_clause)
    assert compiler.tables is not None
    table = compiler.tables(stream)
    if table is None:
        raise RefusedError(f'Table "{stream.namespace}"."{stream.name}" does not exist')
    # Positions stay those of the whole text; parameters have one type throughout.
    inner = replace(compiler, table=table, alias=alias, subqueries=[])
    targets = [target.res_target.val for target in select.target_list]
    if any(target.WhichOneof("node") != "column_ref" for target in targets):
        raise RefusedError("a subquery selects columns only")
    columns = _comparable([inner.expression(target) for target in targets])
    condition = None
    if select.HasField("where_clause"):
        expression = inner.whole(select.where_clause)
        text = text_of(select.where_clause)
        condition = Condition(text, expression, tuple(inner.subqueries), deterministic=not inner.total)
    return Subquery(table.stream, columns, condition, table.only)


def _table(tables: Sequence[Any]) -> tuple[StreamId, str]:
    if len(tables) != 1 or tables[0].WhichOneof("node") != "range_var":
        raise RefusedError("a subquery reads one table")
    table = tables[0].range_var
    if {field.name for field, _ in table.ListFields()} - _TABLE_PARTS or not table.inh:
        raise RefusedError("a subquery reads one table, by its schema and name")
    if table.alias.colnames:
        raise RefusedError("the columns of a subquery's table cannot be renamed")
    return StreamId(table.schemaname or "public", table.relname), table.alias.aliasname or table.relname


def _comparable(columns: Sequence[tree.Expression]) -> tuple[tree.Column, ...]:
    found = tuple(column for column in columns if isinstance(column, tree.Column))
    for column in found:
        if column.kind not in _PRINTED_ALIKE and not isinstance(column.kind, EnumOf):
            raise RefusedError(
                f"unsupported type {column.type_name} of the column {column.name} in a subquery"
            )
    return found
