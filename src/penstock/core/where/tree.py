"""A condition after it was checked: every node has a kind, every conversion is a node of its own.

Only this tree is evaluated and only this tree is printed for the source, so that both mean the same. Nodes
are plain values: they can be compared, hashed and sent to a Spark task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal as OneOf
from typing import get_args

from penstock.core.where.kinds import ArrayOf, Kind, ValueKind

ComparisonOperator = OneOf["=", "<>", "<", "<=", ">", ">="]
ArithmeticOperator = OneOf["+", "-", "*", "/", "%"]
LikeOperator = OneOf["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"]
BitOperator = OneOf["&", "|", "#"]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_name: str
    kind: ValueKind


@dataclass(frozen=True, slots=True)
class Literal:
    """`text`: the value as Postgres prints it; None: NULL. `parameter`: the number of the one it was."""

    text: str | None
    kind: ValueKind
    parameter: int = field(default=0, compare=False, repr=False)


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
    kind: ValueKind


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


@dataclass(frozen=True, slots=True)
class Convert:
    """A conversion that may fail or round, as Postgres' does; `type_name` is what was asked for."""

    operand: Expression
    kind: ValueKind
    type_name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function of `calls.py`, one row at a time."""

    function: str
    operands: tuple[Expression, ...]
    kind: ValueKind


@dataclass(frozen=True, slots=True)
class MakeArray:
    """ARRAY[…] of values that differ by row."""

    operands: tuple[Expression, ...]
    kind: ArrayOf


@dataclass(frozen=True, slots=True)
class Quantified:
    """`operand` compared with every element of `array`, or like it: one has to hold, or `every` one."""

    operator: ComparisonOperator | LikeOperator
    operand: Expression
    array: Expression
    every: bool
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class InSubquery:
    """The columns' values are a row of the subquery with that number in `Condition.subqueries`.

    It stands under AND, OR and NOT only. Who evaluates it tells what the subquery's rows are.
    """

    columns: tuple[Column, ...]
    subquery: int
    negated: bool
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
    | Convert
    | Call
    | MakeArray
    | Quantified
    | InSubquery
)


_HOLDERS = frozenset({"operand", "operands", "left", "right", "literals", "array", "columns"})
#: Of each node, the fields that hold other nodes, one or several.
_PARTS: dict[type, tuple[str, ...]] = {
    node: tuple(each.name for each in fields(node) if each.name in _HOLDERS) for node in get_args(Expression)
}


def children(expression: Expression) -> Iterator[Expression]:
    for name in _PARTS[type(expression)]:
        value = getattr(expression, name)
        if type(value) in _PARTS:
            yield value
        else:
            yield from value


def every_node(expression: Expression) -> Iterator[Expression]:
    yield expression
    for child in children(expression):
        yield from every_node(child)


def columns_in(expression: Expression) -> Iterator[Column]:
    """Every mention of a column, in order."""
    return (node for node in every_node(expression) if isinstance(node, Column))
