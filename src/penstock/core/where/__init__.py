"""Conditions on rows, written as in SQL: one grammar for the filters of streams and for shapes.

A `Condition` is checked against a table's columns once; then the same tree is evaluated over changes and
printed for the source, and both give the answer that Postgres gives. What cannot be evaluated exactly is
refused when the condition is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.schema import SourceColumn
from penstock.core.where import tree
from penstock.core.where.errors import WhereError

if TYPE_CHECKING:  # the pipeline file is read without Arrow
    import pyarrow as pa

__all__ = ["Condition", "WhereError", "check_syntax"]


@dataclass(frozen=True, slots=True)
class Condition:
    """`text` is what a person wrote, for messages and for telling whether it was changed."""

    text: str
    expression: tree.Expression

    @classmethod
    def compile(cls, text: str, columns: Sequence[SourceColumn]) -> Condition:
        """A `WhereError` says what is wrong, and where."""
        from penstock.core.where.compile import compile_condition

        return cls(text, compile_condition(text, {column.name: column for column in columns}))

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(column.name for column in tree.columns_in(self.expression))

    def sql(self) -> str:
        from penstock.core.where.print_sql import print_sql

        return print_sql(self.expression)

    def evaluate(self, columns: Mapping[str, pa.StringArray], rows: int) -> pa.BooleanArray:
        """For each row true, false or null; `columns` as Postgres prints the values."""
        from penstock.core.where.evaluate import evaluate

        return evaluate(self.expression, columns, rows)


def check_syntax(text: str) -> None:
    """A `WhereError` if `text` cannot be a condition on any table."""
    from penstock.core.where.syntax import parse

    parse(text)
