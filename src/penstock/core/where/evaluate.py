"""Evaluates a condition over columns of text, a batch at a time, with Postgres' own answers.

Logic has three values: a null in the answer is Postgres' unknown. Text compares by its bytes, as in
COLLATE "C"; a database whose encoding is not UTF-8 may sort letters outside ASCII otherwise.

Cost of a comparison of a million values: 10 to 20 ms for whole numbers and text, 100 ms for numerics and
timestamps, nearly all of it reading the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.where import exact, floats, tree
from penstock.core.where.calendar import DAY_US, NEGATIVE_INFINITY, POSITIVE_INFINITY
from penstock.core.where.columns import Values, read
from penstock.core.where.exact import Long
from penstock.core.where.kinds import EXACT_NUMBERS, FLOATS, Kind

_INFINITIES = pa.array([POSITIVE_INFINITY, NEGATIVE_INFINITY], pa.int64())


def evaluate(
    expression: tree.Expression, columns: Mapping[str, pa.StringArray], rows: int
) -> pa.BooleanArray:
    """True, false or null for each of `rows` rows; `columns` holds at least those the condition names."""
    answer = _Evaluator(columns, rows).values(expression)
    assert not isinstance(answer, Long)
    return pa.repeat(answer, rows) if isinstance(answer, pa.Scalar) else answer


class _Evaluator:
    def __init__(self, columns: Mapping[str, pa.StringArray], rows: int) -> None:
        self._columns = columns
        self._rows = rows
        self._read: dict[str, Values] = {}

    def values(self, expression: tree.Expression) -> Values:
        return _RULES[type(expression)](self, expression)

    def column(self, node: tree.Column) -> Values:
        if node.name not in self._read:
            self._read[node.name] = read(self._columns[node.name], node.kind)
        return self._read[node.name]

    def literal(self, node: tree.Literal) -> Values:
        values = read(pa.array([node.text], pa.string()), node.kind)
        return values if isinstance(values, Long) else values[0]

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
        return self._columns[operand.name]

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
            values, pattern = pc.ascii_lower(values), _ascii_lower(pattern)
        return pc.match_substring_regex(values, _regex(pattern))

    def is_null(self, node: tree.IsNull) -> Values:
        return exact.missing(self.values(node.operand))

    def is_truth(self, node: tree.IsTruth) -> Values:
        values = self.values(node.operand)
        if node.truth is None:
            return pc.is_null(values)
        return pc.fill_null(values if node.truth else pc.invert(values), False)

    def negate(self, node: tree.Not) -> Values:
        return pc.invert(self.values(node.operand))

    def all_of(self, node: tree.AllOf) -> Values:
        return reduce(pc.and_kleene, [self.values(operand) for operand in node.operands])

    def any_of(self, node: tree.AnyOf) -> Values:
        return reduce(pc.or_kleene, [self.values(operand) for operand in node.operands])


def _compare(symbol: tree.ComparisonOperator, left: Values, right: Values, kind: Kind) -> Values:
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


def _ascii_lower(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def _regex(pattern: str) -> str:
    r"""A LIKE pattern as a regular expression: % is any text, _ any character, \ takes the next as it is."""
    parts = []
    escaped = False
    for character in pattern:
        if escaped or character not in "%_\\":
            parts.append(_quoted(character))
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            parts.append(".*" if character == "%" else ".")
    return r"(?s)\A" + "".join(parts) + r"\z"


def _quoted(character: str) -> str:
    return (
        re.escape(character)
        if character.isascii() and character.isprintable()
        else (rf"\x{{{ord(character):x}}}")
    )


_RULES: dict[type[tree.Expression], Callable[[_Evaluator, Any], Values]] = {
    tree.Column: _Evaluator.column,
    tree.Literal: _Evaluator.literal,
    tree.Cast: _Evaluator.cast,
    tree.Arithmetic: _Evaluator.arithmetic,
    tree.Absolute: _Evaluator.absolute,
    tree.Bits: _Evaluator.bits,
    tree.ChangeCase: _Evaluator.change_case,
    tree.Concatenate: _Evaluator.concatenate,
    tree.Coalesce: _Evaluator.coalesce,
    tree.Compare: _Evaluator.compare,
    tree.IsDistinct: _Evaluator.is_distinct,
    tree.IsIn: _Evaluator.is_in,
    tree.Like: _Evaluator.like,
    tree.IsNull: _Evaluator.is_null,
    tree.IsTruth: _Evaluator.is_truth,
    tree.Not: _Evaluator.negate,
    tree.AllOf: _Evaluator.all_of,
    tree.AnyOf: _Evaluator.any_of,
}
