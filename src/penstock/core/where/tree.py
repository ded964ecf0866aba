"""A condition after it was checked: every node has a kind, every conversion is a node of its own.

Only this tree is evaluated and only this tree is printed for the source, so that both mean the same. Nodes
are plain values: they can be compared, hashed and sent to a Spark task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal as OneOf

from penstock.core.where.kinds import Kind

ComparisonOperator = OneOf["=", "<>", "<", "<=", ">", ">="]
ArithmeticOperator = OneOf["+", "-", "*", "/", "%"]
BitOperator = OneOf["&", "|", "#"]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Literal:
    """`text`: the value as Postgres prints it; None: NULL."""

    text: str | None
    kind: Kind


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion that neither fails nor rounds, for any value."""

    operand: Expression
    kind: Kind


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Whole numbers and numerics without bounds: no sum overflows. `/` and `%` are of whole numbers, by a
    literal that is not zero."""

    operator: ArithmeticOperator
    left: Expression
    right: Expression
    kind: Kind


@dataclass(frozen=True, slots=True)
class Absolute:
    operand: Expression
    kind: Kind


@dataclass(frozen=True, slots=True)
class Bits:
    operator: BitOperator
    left: Expression
    right: Expression
    kind: Kind = Kind.INTEGER


@dataclass(frozen=True, slots=True)
class ChangeCase:
    """ASCII letters only, as in COLLATE "C"."""

    function: OneOf["lower", "upper"]
    operand: Expression
    kind: Kind = Kind.TEXT


@dataclass(frozen=True, slots=True)
class Concatenate:
    left: Expression
    right: Expression
    kind: Kind = Kind.TEXT


@dataclass(frozen=True, slots=True)
class Coalesce:
    operands: tuple[Expression, ...]
    kind: Kind


@dataclass(frozen=True, slots=True)
class Compare:
    """Both sides are of one kind."""

    operator: ComparisonOperator
    left: Expression
    right: Expression
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class IsDistinct:
    left: Expression
    right: Expression
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class IsIn:
    """`operand` equals one of the literals, all of its kind."""

    operand: Expression
    literals: tuple[Literal, ...]
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class Like:
    operand: Expression
    pattern: str
    ignore_case: bool
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Expression
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class IsTruth:
    """IS TRUE, IS FALSE, IS UNKNOWN (None)."""

    operand: Expression
    truth: bool | None
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class Not:
    operand: Expression
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class AllOf:
    operands: tuple[Expression, ...]
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class AnyOf:
    operands: tuple[Expression, ...]
    kind: Kind = Kind.BOOLEAN


Expression = (
    Column
    | Literal
    | Cast
    | Arithmetic
    | Absolute
    | Bits
    | ChangeCase
    | Concatenate
    | Coalesce
    | Compare
    | IsDistinct
    | IsIn
    | Like
    | IsNull
    | IsTruth
    | Not
    | AllOf
    | AnyOf
)


def columns_in(expression: Expression) -> Iterator[Column]:
    """Every mention of a column, in order."""
    if isinstance(expression, Column):
        yield expression
        return
    for each in fields(expression):
        value = getattr(expression, each.name)
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, Expression):
                yield from columns_in(child)
