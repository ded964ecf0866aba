"""Arrays that are written out, their casts, indexes and slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.core.where import tree
from penstock.core.where.arrays import Array, flat, print_array, read_array
from penstock.core.where.convert import alike, cast, known, narrowed, read, type_of
from penstock.core.where.kinds import ArrayOf, Kind, array_of
from penstock.core.where.wording import RefusedError, refused

if TYPE_CHECKING:
    from penstock.core.where.compile import Compiler

#: Bounds that are left out: beyond those of any array, and cut to its own.
_LOWEST, _HIGHEST = tree.Literal(str(-(2**31)), Kind.INTEGER), tree.Literal(str(2**31 - 1), Kind.INTEGER)
_WIDTHS = ("int2", "int4", "int8")


def array(compiler: Compiler, expression: Any) -> tree.Expression:
    if compiler.total:
        raise refused("node", name="An array", node="A_ArrayExpr")
    items = [compiler.expression(element) for element in expression.elements]
    if not items:
        raise RefusedError("write the type of an empty array: ARRAY[]::int4[]")
    return _made(alike(items, "ARRAY", total=False))


def array_cast(compiler: Compiler, node: Any, element_type: str) -> tree.Expression:
    kind = array_of(element_type)
    if kind is None:
        raise RefusedError(f"unsupported type {element_type}[]")
    if node.WhichOneof("node") == "a_array_expr" and not any(
        element.WhichOneof("node") == "a_array_expr" for element in node.a_array_expr.elements
    ):
        elements = node.a_array_expr.elements
        items = [cast(compiler.expression(each), element_type, total=False) for each in elements]
        return replace(_made(items), kind=kind) if items else tree.Literal("{}", kind)
    operand = compiler.expression(node)
    if operand.kind in (Kind.UNKNOWN, Kind.TEXT) and isinstance(operand, tree.Literal):
        return read(operand, kind)
    if operand.kind == kind:
        return operand
    if isinstance(operand, tree.Literal) and isinstance(operand.kind, ArrayOf):
        return read(operand, kind)
    raise RefusedError(f"unknown cast from type {type_of(operand)} to type {kind.value}")


def _made(items: Sequence[tree.Expression]) -> tree.Literal | tree.MakeArray:
    """Literals make a literal."""
    kind = items[0].kind
    literals = [item.text for item in items if isinstance(item, tree.Literal)]
    if isinstance(kind, ArrayOf):
        if len(literals) < len(items) or None in literals:
            raise RefusedError("arrays in arrays are supported as literals only")
        return tree.Literal(_nested([read_array(text or "", str) for text in literals]), kind)
    made = array_of(_element_type(items))
    if made is None:
        raise RefusedError(f"unsupported type {kind.value}[]")
    if len(literals) == len(items):
        return tree.Literal(print_array(flat(literals), str), made)
    return tree.MakeArray(tuple(items), made)


def _element_type(items: Sequence[tree.Expression]) -> str:
    if items[0].kind is not Kind.INTEGER:
        return items[0].kind.value
    return max((type_of(item) for item in items), key=_WIDTHS.index)


def _nested(parts: Sequence[Array]) -> str:
    if len({part.lengths for part in parts}) != 1:
        raise RefusedError("multidimensional arrays must have sub-arrays with matching dimensions")
    lengths = (len(parts), *parts[0].lengths)
    items = tuple(item for part in parts for item in part.items)
    return print_array(Array(lengths, (1,) * len(lengths), items) if items else flat(()), str)


def subscript(compiler: Compiler, expression: Any) -> tree.Expression:
    if compiler.total:
        raise refused("node", name="A subscript", node="A_Indirection")
    operand = compiler.expression(expression.arg)
    steps = [step.a_indices for step in expression.indirection if step.HasField("a_indices")]
    if not isinstance(operand.kind, ArrayOf) or len(steps) != len(expression.indirection):
        raise RefusedError(f"{type_of(operand)} cannot be subscripted")
    if not any(step.is_slice for step in steps):
        indexes = tuple(_index(compiler, step.uidx) for step in steps)
        return tree.Call("subscript", (operand, *indexes), operand.kind.element)
    bounds: list[tree.Expression] = []
    for step in steps:
        first = _index(compiler, step.lidx) if step.HasField("lidx") else _LOWEST
        # An index among slices is a slice from 1.
        bounds.append(first if step.is_slice else tree.Literal("1", Kind.INTEGER))
        bounds.append(_index(compiler, step.uidx) if step.HasField("uidx") else _HIGHEST)
    return tree.Call("slice", (operand, *bounds), operand.kind)


def _index(compiler: Compiler, node: Any) -> tree.Expression:
    index = known(compiler.expression(node), Kind.INTEGER)
    if index.kind is not Kind.INTEGER:
        raise RefusedError(f"array subscript must have type integer, not {type_of(index)}")
    return narrowed(index, "int4")
