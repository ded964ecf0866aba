"""Conditions as programs for compiled code (`program_kernels`).

A row is in a shape if the condition is TRUE; unknown is as good as false. So no program computes an unknown:
it is asked "is this true?" or "is this false?", which needs no third value. Both questions go down the tree
as follows, T and F for the two, by Kleene's tables:

    T(a AND b) = T(a) and T(b)      F(a AND b) = F(a) or F(b)      T(NOT a) = F(a)
    T(a OR b)  = T(a) or T(b)       F(a OR b)  = F(a) and F(b)     F(NOT a) = T(a)
    a IS TRUE = T(a), a IS FALSE = F(a), a IS UNKNOWN = neither; these are true or false themselves

At the leaves a test has three ways on, for true, false and unknown, and `and`, `or`, `not` are where they
lead. Programs are written from their end, so every place to go to is known when it is needed.

What a test looks at is an operand (`operands`). A condition that needs more has no program: its owner
evaluates it with Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.where import calendar, columns, tree
from penstock.core.where.kinds import FLOATS, EnumOf, Kind
from penstock.shapes.routing import program_kernels as kernels
from penstock.shapes.routing.operands import NoProgramError, Operands, form_of, sortable
from penstock.shapes.routing.program_kernels import (
    ACCEPT,
    BYTES,
    DECIMALS,
    EQUAL,
    GREATER,
    LESS,
    NUMBERS,
    REJECT,
)

_BITS = {
    "=": EQUAL,
    "<>": LESS | GREATER,
    "<": LESS,
    "<=": LESS | EQUAL,
    ">": GREATER,
    ">=": GREATER | EQUAL,
}
_MIRRORED = {LESS: GREATER, GREATER: LESS, LESS | EQUAL: GREATER | EQUAL, GREATER | EQUAL: LESS | EQUAL}
_TESTS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Program:
    tests: npt.NDArray[np.int32]
    entry: int
    constants: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    data: bytes


def compile_program(expression: tree.Expression, operands: Operands) -> Program:
    """`NoProgramError` if there is none."""
    writer = _Writer(operands)
    entry = writer.condition(expression, True, ACCEPT, REJECT)
    return Program(
        np.array(writer.tests, np.int32).reshape(-1, kernels.FIELDS),
        entry,
        np.array(writer.constants, np.int64),
        np.array(writer.lengths, np.int32),
        bytes(writer.data),
    )


def _number(literal: tree.Literal) -> int:
    assert literal.text is not None
    match literal.kind:
        case Kind.INTEGER:
            return int(literal.text)
        case Kind.BOOLEAN:
            return int(literal.text == "t")
        case Kind.DATE:
            return calendar.date_number(literal.text)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return calendar.timestamp_number(literal.text)
    assert literal.kind in FLOATS
    read = columns.read(pa.array([literal.text], pa.string()), literal.kind)
    return int(sortable(read.to_numpy())[0])


@dataclass
class _Writer:
    operands: Operands
    tests: list[tuple[int, ...]] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)

    def condition(self, node: tree.Expression, wanted: bool, then: int, otherwise: int) -> int:
        """Tests that go on at `then` if `node` is what is wanted, true or false, and else at `otherwise`;
        the place of the first."""
        rule = _RULES.get(type(node))
        if rule is None or len(self.tests) > _TESTS_MAX:
            raise NoProgramError
        return rule(self, node, wanted, then, otherwise)

    def all_of(self, node: tree.AllOf | tree.AnyOf, wanted: bool, then: int, otherwise: int) -> int:
        every = wanted == isinstance(node, tree.AllOf)
        for operand in reversed(node.operands):
            if every:
                then = self.condition(operand, wanted, then, otherwise)
            else:
                otherwise = self.condition(operand, wanted, then, otherwise)
        return then if every else otherwise

    def negate(self, node: tree.Not, wanted: bool, then: int, otherwise: int) -> int:
        return self.condition(node.operand, not wanted, then, otherwise)

    def is_truth(self, node: tree.IsTruth, wanted: bool, then: int, otherwise: int) -> int:
        if not wanted:
            then, otherwise = otherwise, then
        if node.truth is not None:
            return self.condition(node.operand, node.truth, then, otherwise)
        is_known = self.condition(node.operand, False, otherwise, then)
        return self.condition(node.operand, True, otherwise, is_known)

    def is_null(self, node: tree.IsNull, wanted: bool, then: int, otherwise: int) -> int:
        if node.operand.kind is Kind.BOOLEAN:
            return self.is_truth(tree.IsTruth(node.operand, None), wanted, then, otherwise)
        if not wanted:
            then, otherwise = otherwise, then
        return self._null_test(node.operand, then, otherwise)

    def literal(self, node: tree.Literal, wanted: bool, then: int, otherwise: int) -> int:
        return then if node.text == ("t" if wanted else "f") else otherwise

    def column(self, node: tree.Column, wanted: bool, then: int, otherwise: int) -> int:
        return self.compare(tree.Compare("=", node, tree.Literal("t", node.kind)), wanted, then, otherwise)

    def compare(self, node: tree.Compare, wanted: bool, then: int, otherwise: int) -> int:
        ways = (then, otherwise) if wanted else (otherwise, then)
        return self._comparison(_BITS[node.operator], node.left, node.right, *ways, otherwise)

    def is_distinct(self, node: tree.IsDistinct, wanted: bool, then: int, otherwise: int) -> int:
        if not wanted:
            then, otherwise = otherwise, then
        left, right = node.left, node.right
        if isinstance(left, tree.Literal):
            left, right = right, left
        if isinstance(right, tree.Literal):
            if right.text is None:
                return self._null_test(left, otherwise, then)
            return self._comparison(EQUAL, left, right, otherwise, then, then)
        second = self._null_test(right, otherwise, then)
        one_is_null = self._null_test(left, second, then)
        return self._comparison(EQUAL, left, right, otherwise, then, one_is_null)

    def is_in(self, node: tree.IsIn, wanted: bool, then: int, otherwise: int) -> int:
        texts = {literal.text: literal for literal in node.literals if literal.text is not None}
        form = form_of(node.operand)
        if form == NUMBERS:
            constants = [(number, 0) for number in sorted({_number(each) for each in texts.values()})]
        else:
            ordered = sorted(texts, key=_decimal_order if form == DECIMALS else str.encode)
            constants = [self._text(text) for text in ordered]
        is_present, is_absent = (then, otherwise) if wanted else (otherwise, then)
        if len(texts) < len({literal.text for literal in node.literals}):
            is_absent = otherwise  # beside a NULL it is unknown
        ways = (is_present, is_absent, otherwise)
        return self._test(
            kernels.IS_IN, form, node.operand, self._constants(constants), len(constants), *ways
        )

    def like(self, node: tree.Like, wanted: bool, then: int, otherwise: int) -> int:
        operand, pattern = node.operand, _pattern(node.pattern)
        if form_of(operand) != BYTES:
            raise NoProgramError
        if node.ignore_case:
            operand, pattern = tree.ChangeCase("lower", operand), pattern.lower()
        ways = (then, otherwise) if wanted else (otherwise, then)
        first = self._constants([self._bytes(pattern)])
        return self._test(kernels.IS_LIKE, BYTES, operand, first, 0, *ways, otherwise)

    def _comparison(
        self,
        bits: int,
        left: tree.Expression,
        right: tree.Expression,
        if_true: int,
        if_false: int,
        if_unknown: int,
    ) -> int:
        if isinstance(left, tree.Literal):
            left, right, bits = right, left, _MIRRORED.get(bits, bits)
        if isinstance(left.kind, EnumOf) and bits not in (EQUAL, LESS | GREATER):
            raise NoProgramError
        form = form_of(left)
        ways = (if_true, if_false, if_unknown)
        if not isinstance(right, tree.Literal):
            number = self.operands.number(right)
            return self._test(kernels.COMPARE_OPERAND, form, left, number, bits, *ways)
        if right.text is None:
            return if_unknown
        constant = (_number(right), 0) if form == NUMBERS else self._text(right.text)
        return self._test(kernels.COMPARE, form, left, self._constants([constant]), bits, *ways)

    def _null_test(self, operand: tree.Expression, then: int, otherwise: int) -> int:
        return self._test(kernels.IS_NULL, BYTES, operand, 0, 0, then, otherwise, otherwise)

    def _test(
        self, opcode: int, form: int, operand: tree.Expression, right: int, argument: int, *ways: int
    ) -> int:
        assert max(ways) < len(self.tests), "a test goes on to tests before it only"
        self.tests.append((opcode, form, self.operands.number(operand), right, argument, *ways))
        return len(self.tests) - 1

    def _constants(self, constants: list[tuple[int, int]]) -> int:
        first = len(self.constants)
        self.constants += [value for value, _ in constants]
        self.lengths += [length for _, length in constants]
        return first

    def _text(self, text: str) -> tuple[int, int]:
        return self._bytes(text.encode())

    def _bytes(self, data: bytes) -> tuple[int, int]:
        self.data += data
        return len(self.data) - len(data), len(data)


def _decimal_order(text: str) -> tuple[bool, Decimal]:
    value = Decimal(text)
    return (True, Decimal(0)) if value.is_nan() else (False, value)


def _pattern(like: str) -> bytes:
    """Escapes resolved; runs of `%` are one, or a text could be searched once for each."""
    pattern = bytearray()
    escaped = False
    for character in like:
        if escaped or character not in "%_\\":
            pattern += character.encode()
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "_":
            pattern.append(kernels.ANY_CHARACTER)
        elif not pattern or pattern[-1] != kernels.ANY_TEXT:
            pattern.append(kernels.ANY_TEXT)
    return bytes(pattern)


_RULES: dict[type[tree.Expression], Callable[[_Writer, Any, bool, int, int], int]] = {
    tree.Column: _Writer.column,
    tree.Literal: _Writer.literal,
    tree.Compare: _Writer.compare,
    tree.IsDistinct: _Writer.is_distinct,
    tree.IsIn: _Writer.is_in,
    tree.Like: _Writer.like,
    tree.IsNull: _Writer.is_null,
    tree.IsTruth: _Writer.is_truth,
    tree.Not: _Writer.negate,
    tree.AllOf: _Writer.all_of,
    tree.AnyOf: _Writer.all_of,
}
