"""Kinds brought together: what a literal in quotes is, what two sides are compared in, which casts there are.

By Postgres' rules. With `total`, as far as they can be followed without a conversion that fails or rounds for
some value, and the rest is refused: a filter of a table has to have an answer for every row. Nothing here
knows of places in the text: the caller adds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TypeGuard

from penstock.core.where import conversions, tree
from penstock.core.where.conversions import INTEGER_BITS
from penstock.core.where.kinds import (
    EXACT_NUMBERS,
    FLOATS,
    KIND_OF_CAST,
    MOMENTS,
    ArrayOf,
    EnumOf,
    Kind,
    ValueKind,
)
from penstock.core.where.literals import LiteralError, printed
from penstock.core.where.wording import RefusedError, refused

#: Kinds whose text in the log is what `::text` gives (of a boolean it is made).
_PRINTABLE = frozenset({Kind.BOOLEAN, Kind.INTEGER, Kind.NUMERIC, Kind.UUID, Kind.PRINTED, Kind.TEXT})
#: The same under the settings that every session of ours has.
_PRINTABLE_BY_SETTINGS = frozenset({*MOMENTS, Kind.TIME, Kind.BYTEA, Kind.INTERVAL, Kind.JSON, *FLOATS})
_IMPLICIT = frozenset({(Kind.INTEGER, Kind.NUMERIC), (Kind.INTEGER, Kind.DOUBLE), (Kind.REAL, Kind.DOUBLE)})
_EXPLICIT = frozenset(
    {(Kind.TIMESTAMP, Kind.DATE), (Kind.TIMESTAMPTZ, Kind.DATE), (Kind.INTEGER, Kind.NUMERIC)}
)


def type_of(expression: tree.Expression) -> str:
    """What people know the type by."""
    if isinstance(expression, tree.Column) and not isinstance(expression.kind, ArrayOf):
        return expression.type_name
    if isinstance(expression, tree.Literal) and expression.kind is Kind.INTEGER:
        return "int8" if expression.text is None or abs(int(expression.text)) >= 2**31 else "int4"
    return expression.type_name if isinstance(expression, tree.Convert) else expression.kind.value


def no_operator(symbol: str, left: tree.Expression | None, right: tree.Expression) -> RefusedError:
    before = f"{type_of(left)} " if left is not None else ""
    return refused("operator", before=before, symbol=symbol, right=type_of(right))


def read(expression: tree.Expression, kind: ValueKind, type_name: str = "") -> tree.Literal:
    """A literal in quotes as a value of `kind`, known to people as `type_name`."""
    assert isinstance(expression, tree.Literal)
    if expression.text is None:
        return replace(expression, kind=kind)
    if kind is Kind.PRINTED:
        raise RefusedError("values of this type can only be used as text: write `column::text`")
    try:
        return replace(expression, text=printed(expression.text, kind), kind=kind)
    except LiteralError as error:
        named = type_name or kind.value
        raise refused("literal", type=named, reason=error, text=expression.text) from None


def known(expression: tree.Expression, kind: ValueKind = Kind.TEXT, type_name: str = "") -> tree.Expression:
    """The same with a kind of its own: a literal in quotes is read as `kind`."""
    return read(expression, kind, type_name) if expression.kind is Kind.UNKNOWN else expression


def textual(expression: tree.Expression) -> tree.Expression:
    """What takes a text takes a name too."""
    found = known(expression)
    return converted(found, Kind.TEXT, total=False) if found.kind is Kind.NAME else found


def unified(
    left: tree.Expression, right: tree.Expression, symbol: str, *, total: bool = True
) -> tuple[tree.Expression, tree.Expression]:
    """Both sides in the kind that Postgres would compare them in."""
    left = known(left, Kind.TEXT if right.kind is Kind.UNKNOWN else right.kind, type_of(right))
    right = known(right, left.kind, type_of(left))
    if left.kind is Kind.PRINTED or right.kind is Kind.PRINTED:
        raise RefusedError("values of this type can only be used as text: write `column::text`")
    if left.kind == right.kind:
        return left, right
    if isinstance(left.kind, ArrayOf) and isinstance(right.kind, ArrayOf):
        return _same_arrays(left, right, symbol)
    common = _common_kind(left.kind, right.kind)
    if common is None:
        raise no_operator(symbol, left, right)
    return converted(left, common, total=total), converted(right, common, total=total)


def narrowed(operand: tree.Expression, type_name: str) -> tree.Expression:
    """A whole number as one of so many bits, where an operator takes no other; fails if it does not fit."""
    if operand.kind is not Kind.INTEGER or INTEGER_BITS.get(type_name) is None:
        return operand
    if isinstance(operand, tree.Literal):
        return _in_range(operand, type_name)
    return operand if _widens(operand, type_name) else tree.Convert(operand, Kind.INTEGER, type_name)


def _same_arrays(
    left: tree.Expression, right: tree.Expression, symbol: str
) -> tuple[tree.Expression, tree.Expression]:
    """An array that is written out takes its elements' type from the other one."""
    if isinstance(left, tree.Literal):
        return read(left, right.kind), right
    if isinstance(right, tree.Literal):
        return left, read(right, left.kind)
    if isinstance(left, tree.MakeArray) and _holds(right.kind, left.kind):
        return replace(left, kind=right.kind), right
    if isinstance(right, tree.MakeArray) and _holds(left.kind, right.kind):
        return left, replace(right, kind=left.kind)
    raise no_operator(symbol, left, right)


def _holds(kind: ValueKind, array: ArrayOf) -> TypeGuard[ArrayOf]:
    """Whether every element of the array fits into one of the kind."""
    if not isinstance(kind, ArrayOf) or {array.element, kind.element} != {Kind.INTEGER}:
        return False
    return INTEGER_BITS[array.element_type] <= INTEGER_BITS[kind.element_type]


def alike(operands: Sequence[tree.Expression], name: str, *, total: bool) -> list[tree.Expression]:
    """All of them in one kind: the arguments of COALESCE, GREATEST, LEAST, the elements of ARRAY[…]."""
    kinds = {operand.kind for operand in operands} - {Kind.UNKNOWN}
    kind: ValueKind | None = next(iter(kinds), Kind.TEXT)
    if not total:
        for other in kinds:
            kind = other if kind == other else _common_kind(kind, other) if kind is not None else None
    elif len(kinds) > 1:
        kind = None
    # Of names and texts the first one's type would count, and cut the others or not.
    if kind is None or Kind.PRINTED in kinds or kinds == {Kind.NAME, Kind.TEXT}:
        raise RefusedError(f"{name} takes values of one type")
    return [
        operand if operand.kind == kind else converted(known(operand, kind), kind, total=total)
        for operand in operands
    ]


def cast(operand: tree.Expression, type_name: str, *, total: bool = True) -> tree.Expression:
    """A cast that is written out."""
    kind = KIND_OF_CAST[type_name]
    try:
        return _total_cast(operand, kind, type_name)
    except RefusedError:
        is_text = isinstance(operand, tree.Literal) and operand.kind in (Kind.UNKNOWN, Kind.TEXT)
        if total or is_text:
            raise
        if kind is Kind.TEXT and isinstance(operand, tree.Column) and _printed_by_settings(operand.kind):
            return tree.Cast(operand, kind)
        if not _can_convert(operand, kind, type_name):
            raise
    return tree.Convert(operand, kind, type_name)


def _total_cast(operand: tree.Expression, kind: Kind, type_name: str) -> tree.Expression:
    if isinstance(operand, tree.Literal):
        return _in_range(_cast_literal(operand, kind, type_name), type_name)
    if operand.kind is kind:
        if kind is Kind.INTEGER and not _widens(operand, type_name):
            raise RefusedError(f"not every {type_of(operand)} fits into {type_name}")
        return operand
    if kind is Kind.DOUBLE:
        return converted(operand, kind)
    if not _can_cast(operand, kind):
        raise RefusedError(f"unknown cast from type {type_of(operand)} to type {type_name}")
    return tree.Cast(operand, kind)


def _can_convert(operand: tree.Expression, kind: Kind, type_name: str) -> bool:
    if operand.kind is Kind.BOOLEAN and kind is Kind.INTEGER:
        return type_name == "int4"
    if operand.kind is Kind.INTEGER and kind is Kind.BOOLEAN:
        return type_of(operand) == "int4"
    return conversions.exists(operand.kind, kind)


def _printed_by_settings(kind: ValueKind) -> bool:
    return isinstance(kind, ArrayOf) or kind in _PRINTABLE_BY_SETTINGS


def _common_kind(left: ValueKind, right: ValueKind) -> Kind | None:
    kinds = {left, right}
    if kinds == EXACT_NUMBERS:
        return Kind.NUMERIC
    if kinds <= EXACT_NUMBERS | FLOATS:
        return Kind.DOUBLE
    if kinds == {Kind.TEXT, Kind.NAME}:
        return Kind.TEXT
    if kinds <= MOMENTS:
        return Kind.TIMESTAMPTZ if Kind.TIMESTAMPTZ in kinds else Kind.TIMESTAMP
    return None


def converted(expression: tree.Expression, kind: ValueKind, *, total: bool = True) -> tree.Expression:
    """An implicit conversion, which must hold for every value if `total`."""
    if expression.kind == kind:
        return expression
    if isinstance(expression, tree.Literal):
        return _cast_literal(expression, kind, kind.value)
    # A sum has no bounds here, so it may have no double.
    has_double = (
        isinstance(expression, tree.Column) or expression.kind is Kind.REAL or kind is not Kind.DOUBLE
    )
    if (expression.kind, kind) in _IMPLICIT and has_double:
        assert isinstance(kind, Kind)
        return tree.Cast(expression, kind)
    if total or not conversions.exists(expression.kind, kind):
        raise RefusedError(f"{type_of(expression)} cannot be converted to {kind.value} for every value")
    return tree.Convert(expression, kind, kind.value)


def _can_cast(operand: tree.Expression, kind: Kind) -> bool:
    if kind is Kind.TEXT:
        printable = operand.kind in _PRINTABLE or isinstance(operand.kind, EnumOf)
        return (isinstance(operand, tree.Column) and printable) or operand.kind is Kind.BOOLEAN
    return (operand.kind, kind) in _EXPLICIT


def _widens(operand: tree.Expression, type_name: str) -> bool:
    return isinstance(operand, tree.Column) and INTEGER_BITS[operand.type_name] <= INTEGER_BITS[type_name]


def _cast_literal(literal: tree.Literal, kind: ValueKind, type_name: str) -> tree.Literal:
    if literal.text is None or literal.kind in (Kind.UNKNOWN, Kind.TEXT, kind):
        return read(literal, kind, type_name)
    text = _literal_as(literal.kind, literal.text, kind)
    if text is None:
        raise RefusedError(f"unknown cast from type {type_of(literal)} to type {type_name}")
    return read(replace(literal, text=text, kind=Kind.UNKNOWN), kind, type_name)


def _in_range(literal: tree.Literal, type_name: str) -> tree.Literal:
    bits = INTEGER_BITS.get(type_name)
    if bits is not None and literal.text is not None:
        limit: int = 1 << (bits - 1)
        if not -limit <= int(literal.text) < limit:
            raise RefusedError(f"the literal is out of the range of {type_name}")
    return literal


def _literal_as(source: ValueKind, text: str, kind: ValueKind) -> str | None:
    """The text of a literal of another kind, to be read as `kind`; None if that would round or is unknown."""
    if kind is Kind.TEXT and source in (Kind.INTEGER, Kind.NUMERIC, Kind.UUID, Kind.BOOLEAN, Kind.NAME):
        return text if source is not Kind.BOOLEAN else {"t": "true", "f": "false"}[text]
    if source is Kind.INTEGER and kind in (Kind.NUMERIC, *FLOATS):
        return text
    if (source is Kind.NUMERIC and kind in FLOATS) or (source is Kind.REAL and kind is Kind.DOUBLE):
        return text
    if source is Kind.NUMERIC and kind is Kind.INTEGER:
        value = Decimal(text)
        return str(int(value)) if value.is_finite() and value == value.to_integral_value() else None
    return _moment_as(source, text, kind)


def _moment_as(source: ValueKind, text: str, kind: ValueKind) -> str | None:
    if source not in MOMENTS or kind not in MOMENTS:
        return None
    if "infinity" in text:
        return text
    match source, kind:
        case (Kind.DATE, _):
            return f"{text} 00:00:00"
        case (_, Kind.DATE):
            return text[:10]
        case (_, Kind.TIMESTAMP):
            return text.removesuffix("+00")
    return text
