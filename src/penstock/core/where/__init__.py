"""Conditions on rows, written as in SQL: one grammar for the filters of streams and for shapes.

A `Condition` is checked against a table's columns once; then the same tree is evaluated over changes and
printed for the source, and both give the answer that Postgres gives. What cannot be evaluated exactly is
refused when the condition is made.
"""

from __future__ import annotations

from penstock.core.where.condition import Condition, Subquery, SubqueryResolver, SubqueryTable
from penstock.core.where.errors import EvaluationError, WhereError
from penstock.core.where.wording import Wording

__all__ = [
    "Condition",
    "EvaluationError",
    "Subquery",
    "SubqueryResolver",
    "SubqueryTable",
    "WhereError",
    "Wording",
    "check_syntax",
]


def check_syntax(text: str) -> None:
    """A `WhereError` if `text` cannot be a condition on any table."""
    from penstock.core.where.syntax import parse

    parse(text)
