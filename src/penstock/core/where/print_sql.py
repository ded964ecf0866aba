"""Prints a checked condition as SQL for the source.

Every literal carries its type, every text its collation, every name of a function or type its schema: what
the source makes of it does not depend on settings, search path or the column's own collation. Only nodes of
the tree are printed, never what a person wrote; names and literals are quoted here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.where import tree
from penstock.core.where.kinds import Kind

_C = 'COLLATE "C"'


def print_sql(expression: tree.Expression) -> str:
    return _RULES[type(expression)](expression)


def quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """Holds whether or not the server takes a backslash for an escape in plain quotes."""
    doubled = text.replace("'", "''")
    return f"E'{doubled.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{doubled}'"


def _typed(sql: str, kind: Kind) -> str:
    typed = f"{sql}::pg_catalog.{kind.value}"
    return f"({typed} {_C})" if kind is Kind.TEXT else f"({typed})"


def _column(node: tree.Column) -> str:
    name = quoted_name(node.name)
    return _typed(name, Kind.TEXT) if node.kind is Kind.TEXT else name


def _literal(node: tree.Literal) -> str:
    return _typed("NULL" if node.text is None else quoted_text(node.text), node.kind)


def _cast(node: tree.Cast) -> str:
    operand = print_sql(node.operand)
    if node.operand.kind is Kind.PRINTED:
        printed = f"pg_catalog.format('%s', {operand}) {_C}"
        return f"(CASE WHEN pg_catalog.num_nonnulls({operand}) = 0 THEN NULL ELSE {printed} END)"
    if node.operand.kind is Kind.TIMESTAMPTZ and node.kind is Kind.DATE:
        return f"(({operand} AT TIME ZONE 'UTC')::pg_catalog.date)"
    return _typed(operand, node.kind)


def _arithmetic(node: tree.Arithmetic) -> str:
    left, right = _typed(print_sql(node.left), Kind.NUMERIC), _typed(print_sql(node.right), Kind.NUMERIC)
    if node.operator in ("/", "%"):
        return f"pg_catalog.{'div' if node.operator == '/' else 'mod'}({left}, {right})"
    return f"({left} {node.operator} {right})"


def _absolute(node: tree.Absolute) -> str:
    return f"pg_catalog.abs({_typed(print_sql(node.operand), Kind.NUMERIC)})"


def _bits(node: tree.Bits) -> str:
    left, right = _typed(print_sql(node.left), Kind.INTEGER), _typed(print_sql(node.right), Kind.INTEGER)
    return f"({left} {node.operator} {right})"


def _change_case(node: tree.ChangeCase) -> str:
    return f"pg_catalog.{node.function}({print_sql(node.operand)})"


def _concatenate(node: tree.Concatenate) -> str:
    return f"({print_sql(node.left)} || {print_sql(node.right)})"


def _coalesce(node: tree.Coalesce) -> str:
    return f"COALESCE({', '.join(map(print_sql, node.operands))})"


def _compare(node: tree.Compare) -> str:
    return f"({print_sql(node.left)} {node.operator} {print_sql(node.right)})"


def _is_distinct(node: tree.IsDistinct) -> str:
    return f"({print_sql(node.left)} IS DISTINCT FROM {print_sql(node.right)})"


def _is_in(node: tree.IsIn) -> str:
    return f"({print_sql(node.operand)} IN ({', '.join(map(print_sql, node.literals))}))"


def _like(node: tree.Like) -> str:
    pattern = _typed(quoted_text(node.pattern), Kind.TEXT)
    return f"({print_sql(node.operand)} {'ILIKE' if node.ignore_case else 'LIKE'} {pattern})"


def _is_null(node: tree.IsNull) -> str:
    return f"({print_sql(node.operand)} IS NULL)"


def _is_truth(node: tree.IsTruth) -> str:
    truth = "UNKNOWN" if node.truth is None else str(node.truth).upper()
    return f"({print_sql(node.operand)} IS {truth})"


def _not(node: tree.Not) -> str:
    return f"(NOT {print_sql(node.operand)})"


def _all_of(node: tree.AllOf) -> str:
    return f"({' AND '.join(map(print_sql, node.operands))})"


def _any_of(node: tree.AnyOf) -> str:
    return f"({' OR '.join(map(print_sql, node.operands))})"


_RULES: dict[type[tree.Expression], Callable[[Any], str]] = {
    tree.Column: _column,
    tree.Literal: _literal,
    tree.Cast: _cast,
    tree.Arithmetic: _arithmetic,
    tree.Absolute: _absolute,
    tree.Bits: _bits,
    tree.ChangeCase: _change_case,
    tree.Concatenate: _concatenate,
    tree.Coalesce: _coalesce,
    tree.Compare: _compare,
    tree.IsDistinct: _is_distinct,
    tree.IsIn: _is_in,
    tree.Like: _like,
    tree.IsNull: _is_null,
    tree.IsTruth: _is_truth,
    tree.Not: _not,
    tree.AllOf: _all_of,
    tree.AnyOf: _any_of,
}
