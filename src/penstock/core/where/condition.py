"""`Condition`: a checked condition, as the rest of the program holds it, and the subqueries in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.core.where import tree
from penstock.core.where.wording import Wording

if TYPE_CHECKING:  # the pipeline file is read without Arrow
    import pyarrow as pa

    from penstock.core.where.evaluate import Membership


@dataclass(frozen=True, slots=True)
class SubqueryTable:
    """A table that a subquery may read, as `Condition.compile` is told of it. `only`: not those that inherit
    from it, whose rows are changed under their own names."""

    stream: StreamId
    columns: Sequence[SourceColumn]
    enums: Mapping[str, Sequence[str]] = field(default_factory=dict)
    nondeterministic: Collection[str] = ()
    only: bool = False


#: None: there is no such table.
SubqueryResolver = Callable[[StreamId], SubqueryTable | None]


@dataclass(frozen=True, slots=True)
class Subquery:
    """`SELECT columns FROM stream WHERE condition`; the condition may have subqueries of its own."""

    stream: StreamId
    columns: tuple[tree.Column, ...]
    condition: Condition | None
    only: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """`text` is what a person wrote, for messages and for telling whether it was changed.

    `deterministic`: texts of its columns are equal only if they are the same, whatever their collation.
    """

    text: str
    expression: tree.Expression
    subqueries: tuple[Subquery, ...] = ()
    deterministic: bool = False

    @classmethod
    def compile(
        cls,
        text: str,
        columns: Sequence[SourceColumn],
        *,
        params: Mapping[int, str] | None = None,
        subqueries: SubqueryResolver | None = None,
        enums: Mapping[str, Sequence[str]] | None = None,
        nondeterministic: Collection[str] = (),
        wording: Wording = "penstock",
    ) -> Condition:
        """A `WhereError` says what is wrong, and where.

        `params` are the values of $1, $2, …; `enums` the labels of columns that are enumerations, in their
        order; `nondeterministic` names columns whose equal texts may differ, which are refused. In the
        wording of shapes, a condition may also use what has no answer for some values.
        """
        from penstock.core.where.compile import compile_condition

        return compile_condition(
            text,
            SubqueryTable(StreamId("", ""), columns, enums or {}, nondeterministic),
            params=params or {},
            tables=subqueries,
            wording=wording,
        )

    @property
    def columns(self) -> frozenset[str]:
        """Of the condition's own table."""
        return frozenset(column.name for column in tree.columns_in(self.expression))

    def sql(self, membership: Callable[[tree.InSubquery], str] | None = None) -> str:
        """`membership`: what to print for a subquery, NOT and all, instead of its SELECT."""
        from penstock.core.where.print_sql import Printer

        return Printer(self.subqueries, membership, self.deterministic).sql(self.expression)

    def evaluate(
        self, columns: Mapping[str, pa.StringArray], rows: int, membership: Membership | None = None
    ) -> pa.BooleanArray:
        """For each row true, false or null; `columns` as Postgres prints the values.

        An `EvaluationError` if a row has no answer; one of the pipeline file always has one.
        """
        from penstock.core.where.evaluate import evaluate

        return evaluate(self.expression, columns, rows, membership)
