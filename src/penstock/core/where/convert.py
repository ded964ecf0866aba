"""Kinds brought together: what a literal in quotes is, what two sides are compared in, which casts there are.

By Postgres' rules, as far as they can be followed without a conversion that fails or rounds for some value;
the rest is refused. Nothing here knows of places in the text: the caller adds them.
"""

from __future__ import annotations

from decimal import Decimal

from penstock.core.where import tree
from penstock.core.where.kinds import EXACT_NUMBERS, FLOATS, KIND_OF_TYPE, MOMENTS, Kind
from penstock.core.where.literals import LiteralError, printed

_INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}
#: Kinds whose text in the log is what `::text` gives (of a boolean it is made).
_PRINTABLE = frozenset({Kind.BOOLEAN, Kind.INTEGER, Kind.NUMERIC, Kind.UUID, Kind.PRINTED, Kind.TEXT})
_IMPLICIT = frozenset({(Kind.INTEGER, Kind.NUMERIC), (Kind.INTEGER, Kind.DOUBLE), (Kind.REAL, Kind.DOUBLE)})
_EXPLICIT = frozenset(
    {(Kind.TIMESTAMP, Kind.DATE), (Kind.TIMESTAMPTZ, Kind.DATE), (Kind.INTEGER, Kind.NUMERIC)}
)


class RefusedError(ValueError):
    """The message says what cannot be done, or not for every value."""


def type_of(expression: tree.Expression) -> str:
    """What people know the type by."""
    return expression.type_name if isinstance(expression, tree.Column) else expression.kind.value


def no_operator(symbol: str, left: tree.Expression | None, right: tree.Expression) -> RefusedError:
    before = f"{type_of(left)} " if left is not None else ""
    return RefusedError(f"could not select an operator: {before}{symbol} {type_of(right)}")


def read(expression: tree.Expression, kind: Kind) -> tree.Literal:
    """A literal in quotes as a value of `kind`."""
    assert isinstance(expression, tree.Literal)
    if expression.text is None:
        return tree.Literal(None, kind)
    if kind is Kind.PRINTED:
        raise RefusedError("values of this type can only be used as text: write `column::text`")
    try:
        return tree.Literal(printed(expression.text, kind), kind)
    except LiteralError as error:
        raise RefusedError(f"invalid literal for {kind.value}: {error}") from None


def known(expression: tree.Expression, kind: Kind = Kind.TEXT) -> tree.Expression:
    """The same with a kind of its own: a literal in quotes is read as `kind`."""
    return read(expression, kind) if expression.kind is Kind.UNKNOWN else expression


def unified(
    left: tree.Expression, right: tree.Expression, symbol: str
) -> tuple[tree.Expression, tree.Expression]:
    """Both sides in the kind that Postgres would compare them in."""
    left = known(left, Kind.TEXT if right.kind is Kind.UNKNOWN else right.kind)
    right = known(right, left.kind)
    if left.kind is Kind.PRINTED or right.kind is Kind.PRINTED:
        raise RefusedError("values of this type can only be used as text: write `column::text`")
    if left.kind is right.kind:
        return left, right
    common = _common_kind(left.kind, right.kind)
    if common is None:
        raise no_operator(symbol, left, right)
    return _converted(left, common), _converted(right, common)


def cast(operand: tree.Expression, type_name: str) -> tree.Expression:
    """A cast that is written out."""
    kind = KIND_OF_TYPE[type_name]
    if isinstance(operand, tree.Literal):
        return _in_range(_cast_literal(operand, kind), type_name)
    if operand.kind is kind:
        if kind is Kind.INTEGER and not _widens(operand, type_name):
            raise RefusedError(f"not every {type_of(operand)} fits into {type_name}")
        return operand
    if kind is Kind.DOUBLE:
        return _converted(operand, kind)
    if not _can_cast(operand, kind):
        raise RefusedError(f"unknown cast from type {type_of(operand)} to type {type_name}")
    return tree.Cast(operand, kind)


def _common_kind(left: Kind, right: Kind) -> Kind | None:
    kinds = {left, right}
    if kinds == EXACT_NUMBERS:
        return Kind.NUMERIC
    if kinds <= EXACT_NUMBERS | FLOATS:
        return Kind.DOUBLE
    if kinds <= MOMENTS:
        return Kind.TIMESTAMPTZ if Kind.TIMESTAMPTZ in kinds else Kind.TIMESTAMP
    return None


def _converted(expression: tree.Expression, kind: Kind) -> tree.Expression:
    """An implicit conversion, which must hold for every value."""
    if expression.kind is kind:
        return expression
    if isinstance(expression, tree.Literal):
        return _cast_literal(expression, kind)
    # A sum has no bounds here, so it may have no double.
    has_double = kind is not Kind.DOUBLE or isinstance(expression, tree.Column)
    if (expression.kind, kind) not in _IMPLICIT or not has_double:
        raise RefusedError(f"{type_of(expression)} cannot be converted to {kind.value} for every value")
    return tree.Cast(expression, kind)


def _can_cast(operand: tree.Expression, kind: Kind) -> bool:
    if kind is Kind.TEXT:
        is_sent = isinstance(operand, tree.Column) and operand.kind in _PRINTABLE
        return is_sent or operand.kind is Kind.BOOLEAN
    return (operand.kind, kind) in _EXPLICIT


def _widens(operand: tree.Expression, type_name: str) -> bool:
    return isinstance(operand, tree.Column) and _INTEGER_BITS[operand.type_name] <= _INTEGER_BITS[type_name]


def _cast_literal(literal: tree.Literal, kind: Kind) -> tree.Literal:
    if literal.text is None or literal.kind in (Kind.UNKNOWN, Kind.TEXT, kind):
        return read(literal, kind)
    text = _literal_as(literal.kind, literal.text, kind)
    if text is None:
        source = literal.kind.value
        raise RefusedError(f"unknown cast from type {source} to type {kind.value} for this literal")
    return read(tree.Literal(text, Kind.UNKNOWN), kind)


def _in_range(literal: tree.Literal, type_name: str) -> tree.Literal:
    bits = _INTEGER_BITS.get(type_name)
    if bits is not None and literal.text is not None:
        limit: int = 1 << (bits - 1)
        if not -limit <= int(literal.text) < limit:
            raise RefusedError(f"the literal is out of the range of {type_name}")
    return literal


def _literal_as(source: Kind, text: str, kind: Kind) -> str | None:
    """The text of a literal of another kind, to be read as `kind`; None if that would round or is unknown."""
    if kind is Kind.TEXT and source in (Kind.INTEGER, Kind.NUMERIC, Kind.UUID, Kind.BOOLEAN):
        return text if source is not Kind.BOOLEAN else {"t": "true", "f": "false"}[text]
    if source is Kind.INTEGER and kind in (Kind.NUMERIC, *FLOATS):
        return text
    if source is Kind.NUMERIC and kind in FLOATS:
        return text
    if source is Kind.NUMERIC and kind is Kind.INTEGER:
        value = Decimal(text)
        return str(int(value)) if value.is_finite() and value == value.to_integral_value() else None
    return _moment_as(source, text, kind)


def _moment_as(source: Kind, text: str, kind: Kind) -> str | None:
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
