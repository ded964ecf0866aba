"""Evaluates a condition over columns of text, a batch at a time, with Postgres' own answers.

Logic has three values: a null in the answer is Postgres' unknown. Text compares by its bytes, as in
COLLATE "C"; a database whose encoding is not UTF-8 may sort letters outside ASCII otherwise.

A condition of a shape may have no answer for a row, as `1 / x > 2` for a zero: an `EvaluationError`, unless
the row's answer does not hang on it (`x <> 0 AND 1 / x > 2`). Batches with such rows are halved until the row
is alone, so one of them costs the others little.

Cost of a comparison of a million values: 10 to 20 ms for whole numbers and text, 100 ms for numerics and
timestamps, nearly all of it reading the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.where import arrays, calls, conversions, exact, floats, single, tree
from penstock.core.where.calendar import DAY_US, NEGATIVE_INFINITY, POSITIVE_INFINITY
from penstock.core.where.columns import Values, read
from penstock.core.where.errors import EvaluationError
from penstock.core.where.exact import Long
from penstock.core.where.kinds import EXACT_NUMBERS, FLOATS, Kind, ValueKind
from penstock.core.where.patterns import ascii_lower, regex

_INFINITIES = pa.array([POSITIVE_INFINITY, NEGATIVE_INFINITY], pa.int64())


#: Whether values are among those of a subquery: true, false or null, before any NOT.
Membership = Callable[[tree.InSubquery, tuple[pa.StringArray, ...]], pa.BooleanArray]


def evaluate(
    expression: tree.Expression,
    columns: Mapping[str, pa.StringArray],
    rows: int,
    membership: Membership | None = None,
) -> pa.BooleanArray:
    """True, false or null for each of `rows` rows; `columns` holds at least those the condition names."""
    try:
        answer = _Evaluator(columns, rows, membership).values(expression)
    except EvaluationError:
        if rows != 1:
            return _halved(expression, columns, rows, membership)
        answer = _Careful(columns, rows, membership).values(expression)
    assert isinstance(answer, pa.Array | pa.Scalar)
    return pa.repeat(answer, rows) if isinstance(answer, pa.Scalar) else answer


def _halved(
    expression: tree.Expression,
    columns: Mapping[str, pa.StringArray],
    rows: int,
    membership: Membership | None,
) -> pa.BooleanArray:
    if rows == 0:  # a literal has no answer, and no row asks
        return pa.array([], pa.bool_())
    half = rows // 2
    parts = []
    for start, length in ((0, half), (half, rows - half)):
        part = {
            column.name: columns[column.name].slice(start, length) for column in tree.columns_in(expression)
        }
        parts.append(evaluate(expression, part, length, membership))
    return pa.concat_arrays(parts)


class _Evaluator:
    def __init__(
        self, columns: Mapping[str, pa.StringArray], rows: int, membership: Membership | None
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._membership = membership
        self._read: dict[str, Values] = {}

    def values(self, expression: tree.Expression) -> Values:
        rule: Callable[[Any], Values] = getattr(self, _RULES[type(expression)])
        return rule(expression)

    def column(self, node: tree.Column) -> Values:
        if node.name not in self._read:
            self._read[node.name] = read(self.text(node.name), node.kind)
        return self._read[node.name]

    def text(self, name: str) -> pa.StringArray:
        """Not a slice: Arrow's `if_else` of a slice and a null gives texts from elsewhere (21.0)."""
        column = self._columns[name]
        return pa.concat_arrays([column]) if column.offset else column

    def literal(self, node: tree.Literal) -> Values:
        values = read(pa.array([node.text], pa.string()), node.kind)
        return values[0] if isinstance(values, pa.Array) else values

    def cast(self, node: tree.Cast) -> Values:
        if node.kind is Kind.TEXT:
            return self._printed(node.operand)
        values = self.values(node.operand)
        if node.kind is Kind.DOUBLE:
            return values.cast(pa.float64(), safe=False) if not isinstance(values, Long) else values
        if node.kind is Kind.DATE:
            return _days(values)
        return values  # a whole number is a numeric already

    def _printed(self, operand: tree.Expression) -> Values:
        """What `::text` gives; of a column it is what was sent, but for booleans."""
        if operand.kind is Kind.BOOLEAN:
            return pc.if_else(self.values(operand), "true", "false")
        assert isinstance(operand, tree.Column)
        return self.text(operand.name)

    def arithmetic(self, node: tree.Arithmetic) -> Values:
        return exact.calculate(node.operator, self.values(node.left), self.values(node.right))

    def absolute(self, node: tree.Absolute) -> Values:
        return exact.absolute(self.values(node.operand))

    def bits(self, node: tree.Bits) -> Values:
        function = {"&": pc.bit_wise_and, "|": pc.bit_wise_or, "#": pc.bit_wise_xor}[node.operator]
        return function(self.values(node.left), self.values(node.right))

    def change_case(self, node: tree.ChangeCase) -> Values:
        function = pc.ascii_lower if node.function == "lower" else pc.ascii_upper
        return function(self.values(node.operand))

    def concatenate(self, node: tree.Concatenate) -> Values:
        return pc.binary_join_element_wise(self.values(node.left), self.values(node.right), "")

    def coalesce(self, node: tree.Coalesce) -> Values:
        operands = [self.values(operand) for operand in node.operands]
        if node.kind in EXACT_NUMBERS:
            return reduce(lambda left, right: exact.first_known(left, right, self._rows), operands)
        return pc.coalesce(*operands)

    def compare(self, node: tree.Compare) -> Values:
        left, right = self.values(node.left), self.values(node.right)
        return _compare(node.operator, left, right, node.left.kind)

    def is_distinct(self, node: tree.IsDistinct) -> Values:
        left, right = self.values(node.left), self.values(node.right)
        same = pc.fill_null(_compare("=", left, right, node.left.kind), False)
        both_missing = pc.and_(exact.missing(left), exact.missing(right))
        return pc.invert(pc.or_(same, both_missing))

    def is_in(self, node: tree.IsIn) -> Values:
        operand, kind = self.values(node.operand), node.operand.kind
        known = [literal for literal in node.literals if literal.text is not None]
        if kind in EXACT_NUMBERS | FLOATS:
            comparisons = [_compare("=", operand, self.literal(literal), kind) for literal in known]
            found = reduce(pc.or_kleene, comparisons) if comparisons else pa.scalar(False)
        else:
            wanted = read(pa.array([literal.text for literal in known], pa.string()), kind)
            found = pc.is_in(operand, wanted)
        has_null = len(known) < len(node.literals)
        # Not found among literals with a NULL is unknown, and so is anything about a null.
        unknown = pc.or_(exact.missing(operand), pc.and_(pc.invert(pc.fill_null(found, False)), has_null))
        return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)

    def like(self, node: tree.Like) -> Values:
        values, pattern = self.values(node.operand), node.pattern
        if node.ignore_case:
            values, pattern = pc.ascii_lower(values), ascii_lower(pattern)
        return pc.match_substring_regex(values, regex(pattern))

    def is_null(self, node: tree.IsNull) -> Values:
        return exact.missing(self.values(node.operand))

    def is_truth(self, node: tree.IsTruth) -> Values:
        values = self.values(node.operand)
        if node.truth is None:
            return pc.is_null(values)
        return pc.fill_null(values if node.truth else pc.invert(values), False)

    def convert(self, node: tree.Convert) -> Values:
        function = conversions.function(node.operand.kind, node.kind, node.type_name)
        converted = calls.over(calls.CallRule(function, ""), [self.listed(node.operand)])
        return single.gathered(converted, node.kind)

    def call(self, node: tree.Call) -> Values:
        operands = [self.listed(operand) for operand in node.operands]
        return single.gathered(calls.over(calls.CALLS[node.function], operands), node.kind)

    def make_array(self, node: tree.MakeArray) -> Values:
        rule = calls.CallRule(lambda *items: arrays.flat(items), "", strict=False)
        return single.gathered(calls.over(rule, [self.listed(item) for item in node.operands]), node.kind)

    def quantified(self, node: tree.Quantified) -> Values:
        compare = calls.WITH_ELEMENT[node.operator]
        rule = calls.CallRule(partial(arrays.quantified, compare, node.every), "", strict=False)
        return single.gathered(
            calls.over(rule, [self.listed(node.operand), self.listed(node.array)]), Kind.BOOLEAN
        )

    def in_subquery(self, node: tree.InSubquery) -> Values:
        if self._membership is None:
            raise ValueError("a condition with a subquery needs to be told what the subquery holds")
        inside = self._membership(node, tuple(self._columns[column.name] for column in node.columns))
        return pc.invert(inside) if node.negated else inside

    def listed(self, operand: tree.Expression) -> list[Any]:
        return single.listed(self.values(operand), operand.kind)

    def negate(self, node: tree.Not) -> Values:
        return pc.invert(self.values(node.operand))

    def all_of(self, node: tree.AllOf) -> Values:
        return reduce(pc.and_kleene, [self.values(operand) for operand in node.operands])

    def any_of(self, node: tree.AnyOf) -> Values:
        return reduce(pc.or_kleene, [self.values(operand) for operand in node.operands])


class _Careful(_Evaluator):
    """One row: what an operand has no answer for matters only if the others do not settle it."""

    def all_of(self, node: tree.AllOf) -> Values:
        return self._settled(node.operands, False)

    def any_of(self, node: tree.AnyOf) -> Values:
        return self._settled(node.operands, True)

    def coalesce(self, node: tree.Coalesce) -> Values:
        return self._first(node.operands)

    def call(self, node: tree.Call) -> Values:
        if node.function == "coalesce":
            return self._first(node.operands)
        if node.function in ("subscript", "slice") and self.listed(node.operands[0])[0] is None:
            return single.gathered([None], node.kind)  # the indexes are not asked
        return super().call(node)

    def _first(self, operands: tuple[tree.Expression, ...]) -> Values:
        """The operands after it are not asked."""
        values = self.values(operands[0])
        if len(operands) == 1 or single.listed(values, operands[0].kind)[0] is not None:
            return values
        return self._first(operands[1:])

    def _settled(self, operands: tuple[tree.Expression, ...], settles: bool) -> Values:
        unknown, error = False, None
        for operand in operands:
            try:
                values = self.values(operand)
            except EvaluationError as failed:
                error = failed
                continue
            answer = (values if isinstance(values, pa.Scalar) else values[0]).as_py()
            if answer is settles:
                return pa.scalar(settles)
            unknown = unknown or answer is None
        if error is not None:
            raise error
        return pa.scalar(None if unknown else not settles, pa.bool_())


def _compare(symbol: tree.ComparisonOperator, left: Values, right: Values, kind: ValueKind) -> Values:
    if kind in EXACT_NUMBERS:
        return exact.compare(symbol, left, right)
    if kind in FLOATS:
        return floats.compare(symbol, left, right)
    return exact.ARROW_COMPARISONS[symbol](left, right)


def _days(moments: Values) -> Values:
    """The day of a timestamp; the infinities stay what they are."""
    days = pc.divide(moments, DAY_US)
    cut_upwards = pc.greater(pc.multiply(days, DAY_US), moments)
    days = pc.if_else(cut_upwards, pc.subtract(days, 1), days)
    infinite = pc.is_in(moments, _INFINITIES)
    return pc.if_else(infinite, moments, days)


#: The evaluator's method for each node.
_RULES: dict[type[tree.Expression], str] = {
    tree.Column: "column",
    tree.Literal: "literal",
    tree.Cast: "cast",
    tree.Arithmetic: "arithmetic",
    tree.Absolute: "absolute",
    tree.Bits: "bits",
    tree.ChangeCase: "change_case",
    tree.Concatenate: "concatenate",
    tree.Coalesce: "coalesce",
    tree.Compare: "compare",
    tree.IsDistinct: "is_distinct",
    tree.IsIn: "is_in",
    tree.Like: "like",
    tree.IsNull: "is_null",
    tree.IsTruth: "is_truth",
    tree.Not: "negate",
    tree.AllOf: "all_of",
    tree.AnyOf: "any_of",
    tree.Convert: "convert",
    tree.Call: "call",
    tree.MakeArray: "make_array",
    tree.Quantified: "quantified",
    tree.InSubquery: "in_subquery",
}
