"""What tests of conditions look at: a column, or what follows from one column alone, such as `lower(name)`.

There are few of them, shared by all programs, and each is read once per batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.core.where import tree
from penstock.core.where.kinds import EnumOf, Kind, ValueKind
from penstock.shapes.routing.program_kernels import BYTES, DECIMALS, NUMBERS

_FORMS: dict[ValueKind, int] = {
    Kind.BOOLEAN: NUMBERS,
    Kind.INTEGER: NUMBERS,
    Kind.REAL: NUMBERS,
    Kind.DOUBLE: NUMBERS,
    Kind.DATE: NUMBERS,
    Kind.TIMESTAMP: NUMBERS,
    Kind.TIMESTAMPTZ: NUMBERS,
    Kind.NUMERIC: DECIMALS,
    Kind.TEXT: BYTES,
    Kind.NAME: BYTES,
    Kind.TIME: BYTES,
    Kind.UUID: BYTES,
    Kind.BYTEA: BYTES,
}


class NoProgramError(Exception):
    """The condition needs more than tests of operands."""


class Operands:
    """A number for each thing that tests look at."""

    def __init__(self) -> None:
        self._numbers: dict[tree.Expression, int] = {}
        self._expressions: list[tree.Expression] = []

    def __len__(self) -> int:
        return len(self._expressions)

    def __getitem__(self, number: int) -> tree.Expression:
        return self._expressions[number]

    def number(self, expression: tree.Expression) -> int:
        if not _is_operand(expression):
            raise NoProgramError
        if expression not in self._numbers:
            self._numbers[expression] = len(self._expressions)
            self._expressions.append(expression)
        return self._numbers[expression]


def form_of(expression: tree.Expression) -> int:
    """Labels of an enumeration are told apart by their bytes, but not ordered by them."""
    if isinstance(expression.kind, EnumOf):
        return BYTES
    if expression.kind not in _FORMS:
        raise NoProgramError
    return _FORMS[expression.kind]


def is_number(expression: tree.Expression) -> bool:
    """Whether its text has to be read; else it is compared as it is, or only looked at for null."""
    return _FORMS.get(expression.kind) == NUMBERS


def sortable(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Whole numbers in Postgres' order of floats: -0 equals 0; NaN equals NaN and is above everything."""
    bits = (values + 0.0).view(np.int64)
    ordered = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    return np.where(np.isnan(values), np.int64(2**63 - 1), ordered)


def _is_operand(expression: tree.Expression) -> bool:
    match expression:
        case tree.Column():
            return True
        case tree.Cast(tree.Column(_, _, Kind.INTEGER | Kind.NUMERIC), Kind.NUMERIC):
            return True
        case tree.ChangeCase(_, operand) | tree.Cast(operand, _):
            return expression.kind is not Kind.NUMERIC and _is_operand(operand)
    return False
