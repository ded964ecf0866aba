"""Operators beyond those that have an answer for every value: which there are for which kinds.

Reached only for conditions of shapes, after `operators.py` found nothing. A literal in quotes beside a value
is read as a value of the same kind, where Postgres has an operator for two of that kind.
"""

from __future__ import annotations

from penstock.core.where import tree
from penstock.core.where.convert import cast, converted, known, narrowed, no_operator, textual, unified
from penstock.core.where.kinds import EXACT_NUMBERS, FLOATS, MOMENTS, ArrayOf, Kind, ValueKind
from penstock.core.where.wording import RefusedError

_NUMBERS = EXACT_NUMBERS | FLOATS

#: By symbol and kinds: the call, what it gives, and whether its operands are turned round.
_TABLE: dict[tuple[str, Kind, Kind], tuple[str, Kind, bool]] = {
    ("+", Kind.DATE, Kind.INTEGER): ("day + days", Kind.DATE, False),
    ("+", Kind.INTEGER, Kind.DATE): ("day + days", Kind.DATE, True),
    ("-", Kind.DATE, Kind.INTEGER): ("day - days", Kind.DATE, False),
    ("-", Kind.DATE, Kind.DATE): ("day - day", Kind.INTEGER, False),
    ("+", Kind.DATE, Kind.TIME): ("day + time", Kind.TIMESTAMP, False),
    ("+", Kind.TIME, Kind.DATE): ("day + time", Kind.TIMESTAMP, True),
    ("+", Kind.DATE, Kind.INTERVAL): ("day + interval", Kind.TIMESTAMP, False),
    ("+", Kind.INTERVAL, Kind.DATE): ("day + interval", Kind.TIMESTAMP, True),
    ("-", Kind.DATE, Kind.INTERVAL): ("day - interval", Kind.TIMESTAMP, False),
    ("+", Kind.TIMESTAMP, Kind.INTERVAL): ("moment + interval", Kind.TIMESTAMP, False),
    ("+", Kind.INTERVAL, Kind.TIMESTAMP): ("moment + interval", Kind.TIMESTAMP, True),
    ("-", Kind.TIMESTAMP, Kind.INTERVAL): ("moment - interval", Kind.TIMESTAMP, False),
    ("+", Kind.TIMESTAMPTZ, Kind.INTERVAL): ("instant + interval", Kind.TIMESTAMPTZ, False),
    ("+", Kind.INTERVAL, Kind.TIMESTAMPTZ): ("instant + interval", Kind.TIMESTAMPTZ, True),
    ("-", Kind.TIMESTAMPTZ, Kind.INTERVAL): ("instant - interval", Kind.TIMESTAMPTZ, False),
    ("-", Kind.TIMESTAMP, Kind.TIMESTAMP): ("moment - moment", Kind.INTERVAL, False),
    ("-", Kind.TIMESTAMPTZ, Kind.TIMESTAMPTZ): ("moment - moment", Kind.INTERVAL, False),
    ("+", Kind.TIME, Kind.INTERVAL): ("time + interval", Kind.TIME, False),
    ("+", Kind.INTERVAL, Kind.TIME): ("time + interval", Kind.TIME, True),
    ("-", Kind.TIME, Kind.INTERVAL): ("time - interval", Kind.TIME, False),
    ("-", Kind.TIME, Kind.TIME): ("time - time", Kind.INTERVAL, False),
    ("+", Kind.INTERVAL, Kind.INTERVAL): ("interval + interval", Kind.INTERVAL, False),
    ("-", Kind.INTERVAL, Kind.INTERVAL): ("interval - interval", Kind.INTERVAL, False),
    ("*", Kind.INTERVAL, Kind.INTEGER): ("interval * whole", Kind.INTERVAL, False),
    ("*", Kind.INTEGER, Kind.INTERVAL): ("interval * whole", Kind.INTERVAL, True),
    ("->", Kind.JSON, Kind.TEXT): ("json ->", Kind.JSON, False),
    ("->", Kind.JSON, Kind.INTEGER): ("json -> place", Kind.JSON, False),
    ("->>", Kind.JSON, Kind.TEXT): ("json ->>", Kind.TEXT, False),
    ("->>", Kind.JSON, Kind.INTEGER): ("json ->> place", Kind.TEXT, False),
    ("@>", Kind.JSON, Kind.JSON): ("json @> json", Kind.BOOLEAN, False),
    ("<@", Kind.JSON, Kind.JSON): ("json @> json", Kind.BOOLEAN, True),
    ("?", Kind.JSON, Kind.TEXT): ("json ? text", Kind.BOOLEAN, False),
}
_TEXT_BESIDE_JSON = ("->", "->>", "?")
_TEXTS = ArrayOf("text")
_OF_INT4 = ("day + days", "day - days", "json -> place", "json ->> place")


def binary(symbol: str, left: tree.Expression, right: tree.Expression) -> tree.Expression:
    if isinstance(left.kind, ArrayOf) or isinstance(right.kind, ArrayOf):
        return _arrays(symbol, left, right)
    left, right = _read(symbol, left, right)
    if left.kind in _NUMBERS and right.kind in _NUMBERS:
        return _numbers(symbol, left, right)
    if symbol == "||":
        return _text(left, right)
    left, right = _moments(symbol, left, right)
    assert isinstance(left.kind, Kind)
    found = _TABLE.get((symbol, left.kind, right.kind)) if isinstance(right.kind, Kind) else None
    if found is None:
        raise no_operator(symbol, left, right)
    name, kind, turned = found
    if name in _OF_INT4:
        left, right = narrowed(left, "int4"), narrowed(right, "int4")
    return tree.Call(name, (right, left) if turned else (left, right), kind)


def unary(symbol: str, operand: tree.Expression) -> tree.Expression:
    if symbol == "-" and operand.kind is Kind.INTERVAL:
        return tree.Call("- interval", (operand,), Kind.INTERVAL)
    if symbol == "|/" and operand.kind in _NUMBERS:
        return tree.Call("root", (converted(operand, Kind.DOUBLE, total=False),), Kind.DOUBLE)
    if operand.kind in FLOATS and symbol in ("-", "+", "@"):
        return operand if symbol == "+" else tree.Call(_SIGNS[symbol], (operand,), operand.kind)
    if operand.kind is Kind.INTEGER and symbol == "~":
        whole = narrowed(operand, "int8")
        return tree.Call("whole #", (whole, tree.Literal("-1", Kind.INTEGER)), Kind.INTEGER)
    raise no_operator(symbol, None, operand)


_SIGNS = {"-": "negative", "@": "absolute"}


def _read(
    symbol: str, left: tree.Expression, right: tree.Expression
) -> tuple[tree.Expression, tree.Expression]:
    if left.kind is Kind.JSON and right.kind is Kind.UNKNOWN:
        return left, known(right, Kind.TEXT if symbol in _TEXT_BESIDE_JSON else Kind.JSON)
    if Kind.UNKNOWN not in (left.kind, right.kind) or symbol == "||":
        return left, right
    kind = right.kind if left.kind is Kind.UNKNOWN else left.kind
    if kind not in _NUMBERS and (symbol, kind, kind) not in _TABLE:
        raise no_operator(symbol, left, right)
    return known(left, kind), known(right, kind)


def _moments(
    symbol: str, left: tree.Expression, right: tree.Expression
) -> tuple[tree.Expression, tree.Expression]:
    """Days and moments are subtracted as moments."""
    kinds = {left.kind, right.kind}
    if symbol == "-" and len(kinds) == 2 and kinds <= MOMENTS:
        return unified(left, right, symbol, total=False)
    return left, right


def _numbers(symbol: str, left: tree.Expression, right: tree.Expression) -> tree.Expression:
    kinds: set[ValueKind] = {left.kind, right.kind}
    if kinds == {Kind.INTEGER} and symbol in ("&", "|", "#"):
        return tree.Call(f"whole {symbol}", (narrowed(left, "int8"), narrowed(right, "int8")), Kind.INTEGER)
    if kinds == {Kind.INTEGER} and symbol == "/":
        return tree.Call("whole /", (left, right), Kind.INTEGER)
    if kinds <= EXACT_NUMBERS and symbol == "%":
        left, right = unified(left, right, symbol, total=False)
        return tree.Call("remainder", (left, right), left.kind)
    if kinds == {Kind.REAL} and symbol in ("+", "-", "*", "/"):
        return tree.Call(f"real {symbol}", (left, right), Kind.REAL)
    if kinds <= EXACT_NUMBERS and Kind.NUMERIC in kinds:
        raise RefusedError(
            f"{symbol} is not supported for numerics, which are rounded: write a cast to float8"
        )
    if symbol not in ("+", "-", "*", "/", "^"):
        raise no_operator(symbol, left, right)
    sides = (converted(left, Kind.DOUBLE, total=False), converted(right, Kind.DOUBLE, total=False))
    return tree.Call(f"double {symbol}", sides, Kind.DOUBLE)


def _text(left: tree.Expression, right: tree.Expression) -> tree.Expression:
    left, right = (textual(each) if each.kind is Kind.NAME else each for each in (left, right))
    if Kind.TEXT not in (left.kind, right.kind):
        raise no_operator("||", left, right)
    return tree.Concatenate(cast(left, "text", total=False), cast(right, "text", total=False))


def _arrays(symbol: str, left: tree.Expression, right: tree.Expression) -> tree.Expression:
    if symbol in ("?|", "?&") and left.kind is Kind.JSON and right.kind == _TEXTS:
        return tree.Call(f"json {symbol} texts", (left, right), Kind.BOOLEAN)
    if symbol == "||":
        return joined(left, right)
    if symbol not in ("@>", "<@", "&&"):
        raise no_operator(symbol, left, right)
    left, right = unified(left, right, symbol)
    if not isinstance(left.kind, ArrayOf):
        raise no_operator(symbol, left, right)
    if symbol == "<@":
        left, right = right, left
    return tree.Call("array && array" if symbol == "&&" else "array @> array", (left, right), Kind.BOOLEAN)


def joined(left: tree.Expression, right: tree.Expression) -> tree.Expression:
    """Two arrays, or one and an element; a literal in quotes is an array."""
    for array, item, name in ((left, right, "array || element"), (right, left, "element || array")):
        if isinstance(array.kind, ArrayOf) and item.kind == array.kind.element:
            if narrowed(item, array.kind.element_type) != item:  # the source would widen the array
                raise no_operator("||", left, right)
            return tree.Call(name, (left, right), array.kind)
    left, right = unified(left, right, "||")
    if not isinstance(left.kind, ArrayOf):
        raise no_operator("||", left, right)
    return tree.Call("array || array", (left, right), left.kind)
