"""Functions of a condition, by their names. Everything that is not listed here is refused: no function of the
source is called that hangs on the clock, the session, other rows, or that does anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.where import tree
from penstock.core.where.comparing import like
from penstock.core.where.convert import cast, converted, known, textual, type_of
from penstock.core.where.kinds import KIND_OF_TYPE, ArrayOf, Kind
from penstock.core.where.overloads import joined
from penstock.core.where.wording import RefusedError, refused
from penstock.core.where.zones import is_zone

if TYPE_CHECKING:
    from penstock.core.where.compile import Compiler

_PLAIN_CALL = {"funcname", "args", "funcformat", "location"}
_JUSTIFY = ("justify_days", "justify_hours", "justify_interval")


def function(compiler: Compiler, call: Any) -> tree.Expression:
    names = [name.string.sval for name in call.funcname]
    name, count = names[-1], len(call.args)
    if {field.name for field, _ in call.ListFields()} - _PLAIN_CALL:
        raise refused("aggregate", name=name, count=count)
    rule = _RULES.get((name, count)) or (_RULES.get((name, -1)) if count else None)
    if names[:-1] not in ([], ["pg_catalog"]) or rule is None or (compiler.total and name not in _TOTAL):
        raise RefusedError(f"unknown or unsupported function {name}/{count}")
    operands = [compiler.expression(argument) for argument in call.args]
    found = rule(name, operands)
    if found is None:
        raise refused("overload", name=name, types=", ".join(map(type_of, operands)))
    return found


def _change_case(name: str, operands: Sequence[tree.Expression]) -> tree.Expression | None:
    operand = textual(operands[0])
    if operand.kind is not Kind.TEXT:
        return None
    return tree.ChangeCase("lower" if name == "lower" else "upper", operand)


def _like(name: str, operands: Sequence[tree.Expression]) -> tree.Expression | None:
    return like({"like": "~~", "notlike": "!~~", "ilike": "~~*"}[name], *operands, total=False)


def _concat(_: str, operands: Sequence[tree.Expression]) -> tree.Expression | None:
    return tree.Call("concat", tuple(_printed(operand) for operand in operands), Kind.TEXT)


def _printed(operand: tree.Expression) -> tree.Expression:
    if operand.kind is Kind.BOOLEAN:  # printed as t and f here, where a cast gives true and false
        raise RefusedError("concat of a boolean is not supported: write a cast to text")
    return cast(operand, "text", total=False)


def _justify(name: str, operands: Sequence[tree.Expression]) -> tree.Expression | None:
    operand = known(operands[0], Kind.INTERVAL)
    return tree.Call(name, (operand,), Kind.INTERVAL) if operand.kind is Kind.INTERVAL else None


def _timezone(_: str, operands: Sequence[tree.Expression]) -> tree.Expression | None:
    zone, moment = known(operands[0]), known(operands[1], Kind.TIMESTAMPTZ)
    if not isinstance(zone, tree.Literal) or zone.kind is not Kind.TEXT or zone.text is None:
        raise RefusedError("a time zone must be a literal")
    if not is_zone(zone.text):
        raise RefusedError("write the time zone as UTC or by its full name, as in Europe/Berlin")
    if moment.kind is Kind.DATE:
        moment = converted(moment, Kind.TIMESTAMPTZ, total=False)
    if moment.kind is Kind.TIMESTAMPTZ:
        return tree.Call("to local", (zone, moment), Kind.TIMESTAMP)
    return (
        tree.Call("to instant", (zone, moment), Kind.TIMESTAMPTZ) if moment.kind is Kind.TIMESTAMP else None
    )


def _array_ndims(name: str, operands: Sequence[tree.Expression]) -> tree.Expression | None:
    return tree.Call(name, (operands[0],), Kind.INTEGER) if isinstance(operands[0].kind, ArrayOf) else None


def _array_cat(_: str, operands: Sequence[tree.Expression]) -> tree.Expression | None:
    left, right = operands
    if not isinstance(left.kind, ArrayOf) and not isinstance(right.kind, ArrayOf):
        return None
    if any(each.kind is not Kind.UNKNOWN and not isinstance(each.kind, ArrayOf) for each in operands):
        return None
    return joined(left, right)


def _array_append(_: str, operands: Sequence[tree.Expression]) -> tree.Expression | None:
    array, item = operands
    if not isinstance(array.kind, ArrayOf):
        return None
    item = known(item, array.kind.element)
    return joined(array, item) if item.kind == array.kind.element else None


def _array_prepend(_: str, operands: Sequence[tree.Expression]) -> tree.Expression | None:
    item, array = operands
    if not isinstance(array.kind, ArrayOf):
        return None
    item = known(item, array.kind.element)
    return joined(item, array) if item.kind == array.kind.element else None


def _input(name: str, operands: Sequence[tree.Expression]) -> tree.Expression | None:
    """A type's name as a function is a cast."""
    return cast(operands[0], name, total=False)


_Rule = Callable[[str, Sequence[tree.Expression]], tree.Expression | None]
_TOTAL = ("lower", "upper")
#: By name and number of arguments; -1: one or more.
_RULES: dict[tuple[str, int], _Rule] = {
    ("lower", 1): _change_case,
    ("upper", 1): _change_case,
    ("like", 2): _like,
    ("notlike", 2): _like,
    ("ilike", 2): _like,
    ("concat", -1): _concat,
    **{(name, 1): _justify for name in _JUSTIFY},
    ("timezone", 2): _timezone,
    ("array_ndims", 1): _array_ndims,
    ("array_cat", 2): _array_cat,
    ("array_append", 2): _array_append,
    ("array_prepend", 2): _array_prepend,
    **{(name, 1): _input for name in (*KIND_OF_TYPE, "interval", "name")},
}
