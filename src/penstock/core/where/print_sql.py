"""Prints a checked condition as SQL for the source.

Every literal carries its type, every text its collation, every name of a function or type its schema: what
the source makes of it does not depend on settings, search path or the column's own collation. Only nodes of
the tree are printed, never what a person wrote; names and literals are quoted here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.where import tree
from penstock.core.where.calls import CALLS
from penstock.core.where.condition import Subquery
from penstock.core.where.kinds import ArrayOf, EnumOf, Kind, ValueKind
from penstock.core.where.written_times import CLOCK_WORDS, NO_WORD, OF_THE_CLOCK

_C = 'COLLATE "C"'
_UTC = "'UTC'::pg_catalog.text"
_PART = re.compile(r"\{(\w+)\}")
#: A name, which stays; or a text, with or without escapes. What is printed here has nothing else in quotes.
_QUOTED = re.compile(r"""("(?:[^"]|"")*")|E'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'""", re.DOTALL)


def quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """Holds whether or not the server takes a backslash for an escape in plain quotes."""
    doubled = text.replace("'", "''")
    return f"E'{doubled.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{doubled}'"


def without_literals(sql: str) -> str:
    """What was printed here, for who may not see the values that it compares with."""
    return _QUOTED.sub(lambda found: found[1] or "'…'", sql)


def _quoted(text: str | None) -> str:
    return "NULL" if text is None else quoted_text(text)


def _typed(sql: str, kind: ValueKind) -> str:
    if isinstance(kind, EnumOf):  # known by its column, whose schema is not known here
        return sql
    if isinstance(kind, ArrayOf):
        typed = f"{sql}::pg_catalog.{kind.element_type}[]"
        return f"({typed} {_C})" if kind.element is Kind.TEXT else f"({typed})"
    typed = f"{sql}::pg_catalog.{kind.value}"
    return f"({typed} {_C})" if kind in (Kind.TEXT, Kind.NAME) else f"({typed})"


@dataclass(frozen=True, slots=True)
class Printer:
    """`membership`: what to print for a subquery instead of its SELECT.

    `deterministic`: a text's collation does not matter to whether it equals another, so a column is left as
    it is where only that is asked. The source can then use its index.
    """

    subqueries: tuple[Subquery, ...] = ()
    membership: Callable[[tree.InSubquery], str] | None = None
    deterministic: bool = False

    def sql(self, expression: tree.Expression) -> str:
        return _RULES[type(expression)](self, expression)

    def column(self, node: tree.Column) -> str:
        name = quoted_name(node.name)
        collatable = node.kind in (Kind.TEXT, Kind.NAME) or node.kind == ArrayOf("text")
        return _typed(name, node.kind) if collatable else name

    def literal(self, node: tree.Literal) -> str:
        return _typed(_quoted(node.text), node.kind)

    def cast(self, node: tree.Cast) -> str:
        operand = self.sql(node.operand)
        if node.operand.kind is Kind.PRINTED or isinstance(node.operand.kind, EnumOf):
            printed = f"pg_catalog.format('%s', {operand}) {_C}"
            return f"(CASE WHEN pg_catalog.num_nonnulls({operand}) = 0 THEN NULL ELSE {printed} END)"
        if node.operand.kind is Kind.TIMESTAMPTZ and node.kind is Kind.DATE:
            return f"(({operand} AT TIME ZONE 'UTC')::pg_catalog.date)"
        return _typed(operand, node.kind)

    def arithmetic(self, node: tree.Arithmetic) -> str:
        left, right = _typed(self.sql(node.left), Kind.NUMERIC), _typed(self.sql(node.right), Kind.NUMERIC)
        if node.operator in ("/", "%"):
            return f"pg_catalog.{'div' if node.operator == '/' else 'mod'}({left}, {right})"
        return f"({left} {node.operator} {right})"

    def absolute(self, node: tree.Absolute) -> str:
        return f"pg_catalog.abs({_typed(self.sql(node.operand), Kind.NUMERIC)})"

    def bits(self, node: tree.Bits) -> str:
        left, right = _typed(self.sql(node.left), Kind.INTEGER), _typed(self.sql(node.right), Kind.INTEGER)
        return f"({left} {node.operator} {right})"

    def change_case(self, node: tree.ChangeCase) -> str:
        return f"pg_catalog.{node.function}({self.sql(node.operand)})"

    def concatenate(self, node: tree.Concatenate) -> str:
        return f"({self.sql(node.left)} || {self.sql(node.right)})"

    def coalesce(self, node: tree.Coalesce) -> str:
        return f"COALESCE({', '.join(map(self.sql, node.operands))})"

    def _equated(self, *nodes: tree.Expression) -> list[str]:
        """Of sides that are asked only whether they are equal."""
        plain = self.deterministic and all(isinstance(node, tree.Column | tree.Literal) for node in nodes)
        return [self._uncollated(node) if plain else self.sql(node) for node in nodes]

    def _uncollated(self, node: tree.Expression) -> str:
        match node:
            case tree.Column(name, _, Kind.TEXT | Kind.NAME):
                return quoted_name(name)
            case tree.Literal(text, Kind.TEXT | Kind.NAME as kind):
                return f"({_quoted(text)}::pg_catalog.{kind.value})"
        return self.sql(node)

    def compare(self, node: tree.Compare) -> str:
        if node.operator in ("=", "<>"):
            left, right = self._equated(node.left, node.right)
        else:
            left, right = self.sql(node.left), self.sql(node.right)
        return f"({left} {node.operator} {right})"

    def is_distinct(self, node: tree.IsDistinct) -> str:
        return f"({self.sql(node.left)} IS DISTINCT FROM {self.sql(node.right)})"

    def is_in(self, node: tree.IsIn) -> str:
        operand, *literals = self._equated(node.operand, *node.literals)
        return f"({operand} IN ({', '.join(literals)}))"

    def like(self, node: tree.Like) -> str:
        pattern = _typed(quoted_text(node.pattern), Kind.TEXT)
        return f"({self.sql(node.operand)} {'ILIKE' if node.ignore_case else 'LIKE'} {pattern})"

    def is_null(self, node: tree.IsNull) -> str:
        return f"({self.sql(node.operand)} IS NULL)"

    def is_truth(self, node: tree.IsTruth) -> str:
        truth = "UNKNOWN" if node.truth is None else str(node.truth).upper()
        return f"({self.sql(node.operand)} IS {truth})"

    def negation(self, node: tree.Not) -> str:
        return f"(NOT {self.sql(node.operand)})"

    def all_of(self, node: tree.AllOf) -> str:
        return f"({' AND '.join(map(self.sql, node.operands))})"

    def any_of(self, node: tree.AnyOf) -> str:
        return f"({' OR '.join(map(self.sql, node.operands))})"

    def convert(self, node: tree.Convert) -> str:
        operand, source = self.sql(node.operand), node.operand.kind
        if source is Kind.INTEGER and node.kind is Kind.BOOLEAN:
            operand = f"{operand}::pg_catalog.int4"
        if source in (Kind.TEXT, Kind.NAME) and node.kind in OF_THE_CLOCK:
            operand = f"pg_catalog.regexp_replace({operand}, '{CLOCK_WORDS}', '{NO_WORD}', 'gi')"
        elif node.kind is Kind.TIMESTAMPTZ:
            return f"({_typed(operand, Kind.TIMESTAMP)} AT TIME ZONE {_UTC})"
        if source is Kind.TIMESTAMPTZ:
            operand = f"({operand} AT TIME ZONE {_UTC})"
        if node.kind is Kind.INTEGER:
            return f"({operand}::pg_catalog.{node.type_name})"
        return _typed(operand, node.kind)

    def call(self, node: tree.Call) -> str:
        operands = [self.sql(operand) for operand in node.operands]
        indexes = [f"{operand}::pg_catalog.int4" for operand in operands[1:]]
        parts = {
            "all": ", ".join(operands),
            "indexes": "".join(f"[{index}]" for index in indexes),
            "slices": "".join(
                f"[{first}:{last}]" for first, last in zip(indexes[::2], indexes[1::2], strict=False)
            ),
            "element": f"::pg_catalog.{node.kind.element_type}" if isinstance(node.kind, ArrayOf) else "",
            **{str(place): operand for place, operand in enumerate(operands)},
        }
        # In one pass, so that nothing in an operand is taken for a part.
        printed = _PART.sub(lambda part: parts[part[1]], CALLS[node.function].sql)
        return f"({printed} {_C})" if node.kind is Kind.TEXT else printed

    def make_array(self, node: tree.MakeArray) -> str:
        return _typed(f"ARRAY[{', '.join(map(self.sql, node.operands))}]", node.kind)

    def quantified(self, node: tree.Quantified) -> str:
        quantifier = "ALL" if node.every else "ANY"
        return f"({self.sql(node.operand)} {node.operator} {quantifier} ({self.sql(node.array)}))"

    def in_subquery(self, node: tree.InSubquery) -> str:
        if self.membership is not None:
            return self.membership(node)
        subquery = self.subqueries[node.subquery]
        inner = subquery.condition
        selected = ", ".join(self._equated(*subquery.columns))
        only = "ONLY " if subquery.only else ""
        table = f"{only}{quoted_name(subquery.stream.namespace)}.{quoted_name(subquery.stream.name)}"
        where = f" WHERE {inner.sql()}" if inner is not None else ""
        columns = ", ".join(self._equated(*node.columns))
        operator = "NOT IN" if node.negated else "IN"
        return f"(({columns}) {operator} (SELECT {selected} FROM {table}{where}))"


_RULES: dict[type[tree.Expression], Callable[[Printer, Any], str]] = {
    tree.Column: Printer.column,
    tree.Literal: Printer.literal,
    tree.Cast: Printer.cast,
    tree.Arithmetic: Printer.arithmetic,
    tree.Absolute: Printer.absolute,
    tree.Bits: Printer.bits,
    tree.ChangeCase: Printer.change_case,
    tree.Concatenate: Printer.concatenate,
    tree.Coalesce: Printer.coalesce,
    tree.Compare: Printer.compare,
    tree.IsDistinct: Printer.is_distinct,
    tree.IsIn: Printer.is_in,
    tree.Like: Printer.like,
    tree.IsNull: Printer.is_null,
    tree.IsTruth: Printer.is_truth,
    tree.Not: Printer.negation,
    tree.AllOf: Printer.all_of,
    tree.AnyOf: Printer.any_of,
    tree.Convert: Printer.convert,
    tree.Call: Printer.call,
    tree.MakeArray: Printer.make_array,
    tree.Quantified: Printer.quantified,
    tree.InSubquery: Printer.in_subquery,
}
