"""Checks a condition against a table's columns and types, and gives it as a tree.

What cannot be evaluated exactly as Postgres would is refused here, with its place; nothing is approximated.

Two things differ from a query on purpose, at the source and here alike: text is in COLLATE "C", and whole
numbers do not overflow in arithmetic. A timestamp with time zone that is written without one is in UTC.

A rule per kind of node, found by the node's name: parameters and subqueries of shapes are further rules.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.schema import SourceColumn
from penstock.core.where import operators, tree
from penstock.core.where.convert import RefusedError, cast, known, type_of
from penstock.core.where.errors import WhereError
from penstock.core.where.kinds import KIND_OF_TYPE, Kind, kind_of
from penstock.core.where.literals import LiteralError, printed
from penstock.core.where.operators import negated_if
from penstock.core.where.syntax import parse, position_of

_TRUTHS: dict[str, tuple[bool, bool | None]] = {
    "IS_TRUE": (False, True),
    "IS_NOT_TRUE": (True, True),
    "IS_FALSE": (False, False),
    "IS_NOT_FALSE": (True, False),
    "IS_UNKNOWN": (False, None),
    "IS_NOT_UNKNOWN": (True, None),
}
_NODE_NAMES = {
    "sub_link": "A subquery",
    "case_expr": "CASE",
    "a_array_expr": "An array",
    "row_expr": "A row",
    "a_indirection": "A subscript",
    "sqlvalue_function": "A value that changes with the clock or the session",
    "min_max_expr": "GREATEST or LEAST",
    "grouping_func": "GROUPING",
    "xml_expr": "An XML function",
}


def compile_condition(text: str, columns: Mapping[str, SourceColumn]) -> tree.Expression:
    return Compiler(text, columns).boolean(parse(text))


@dataclass(frozen=True, slots=True)
class Compiler:
    text: str
    columns: Mapping[str, SourceColumn]

    def expression(self, node: Any) -> tree.Expression:
        kind = node.WhichOneof("node")
        rule = _RULES.get(kind)
        try:
            if rule is None:
                name = _NODE_NAMES.get(kind, f"`{kind}`")
                raise RefusedError(f"{name} is not supported in a condition")
            return rule(self, getattr(node, kind))
        except RefusedError as error:
            raise self._at(node, error) from None

    def boolean(self, node: Any) -> tree.Expression:
        try:
            found = known(self.expression(node), Kind.BOOLEAN)
            if found.kind is not Kind.BOOLEAN:
                raise RefusedError(f"{type_of(found)} is not a condition: it must be true or false")
        except RefusedError as error:
            raise self._at(node, error) from None
        return found

    def _at(self, node: Any, error: RefusedError) -> WhereError:
        location = getattr(getattr(node, node.WhichOneof("node")), "location", 0)
        return WhereError(str(error), position_of(self.text, location))

    @staticmethod
    def name_of(message: Any, field: str) -> str:
        """The name of an enumeration's value."""
        values = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
        name: str = values[getattr(message, field)].name
        return name

    def column(self, ref: Any) -> tree.Expression:
        names = [field.string.sval if field.HasField("string") else "*" for field in ref.fields]
        if len(names) != 1 or names == ["*"]:
            raise RefusedError("write the column's name alone")
        column = self.columns.get(names[0])
        if column is None:
            raise RefusedError(f"unknown reference {names[0]}{self._nearest(names[0])}")
        kind = kind_of(column)
        if kind is None:
            raise RefusedError(f"unsupported type {column.type_text} of the column {column.name}")
        return tree.Column(column.name, column.type_name, kind)

    def _nearest(self, name: str) -> str:
        by_lower = {known.lower(): known for known in self.columns}
        close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
        if not close:
            return ""
        found = by_lower[close[0]]
        return f"; did you mean {found if found == found.lower() else chr(34) + found + chr(34)}?"

    def constant(self, constant: Any) -> tree.Literal:
        if constant.isnull:
            return tree.Literal(None, Kind.UNKNOWN)
        match constant.WhichOneof("val"):
            case "ival":
                return tree.Literal(str(constant.ival.ival), Kind.INTEGER)
            case "fval":
                return _number(constant.fval.fval)
            case "boolval":
                return tree.Literal("t" if constant.boolval.boolval else "f", Kind.BOOLEAN)
            case "sval":
                return tree.Literal(constant.sval.sval, Kind.UNKNOWN)
        raise RefusedError("bit strings are not supported in a condition")

    def parameter(self, parameter: Any) -> tree.Expression:
        raise RefusedError(f"parameter ${parameter.number} was not provided")

    def logic(self, expression: Any) -> tree.Expression:
        operands = tuple(self.boolean(argument) for argument in expression.args)
        match self.name_of(expression, "boolop"):
            case "AND_EXPR":
                return tree.AllOf(operands)
            case "OR_EXPR":
                return tree.AnyOf(operands)
        return tree.Not(operands[0])

    def null_test(self, test: Any) -> tree.Expression:
        is_null = tree.IsNull(known(self.expression(test.arg)))
        return negated_if(self.name_of(test, "nulltesttype") == "IS_NOT_NULL", is_null)

    def boolean_test(self, test: Any) -> tree.Expression:
        negated, truth = _TRUTHS[self.name_of(test, "booltesttype")]
        return negated_if(negated, tree.IsTruth(self.boolean(test.arg), truth))

    def type_cast(self, type_cast: Any) -> tree.Expression:
        wanted = type_cast.type_name
        names: list[str] = [name.string.sval for name in wanted.names]
        if names[:-1] not in ([], ["pg_catalog"]) or names[-1] not in KIND_OF_TYPE:
            raise RefusedError(f"unsupported type {'.'.join(names)}")
        if wanted.typmods or wanted.array_bounds or wanted.setof:
            raise RefusedError(f"write the type {names[-1]} without limits and brackets")
        return cast(self.expression(type_cast.arg), names[-1])

    def function(self, call: Any) -> tree.Expression:
        names = [name.string.sval for name in call.funcname]
        name = names[-1]
        if names[:-1] not in ([], ["pg_catalog"]) or name not in ("lower", "upper") or len(call.args) != 1:
            raise RefusedError(f"unknown or unsupported function {name}/{len(call.args)}")
        plain = {"funcname", "args", "funcformat", "location"}
        operand = known(self.expression(call.args[0]))
        if operand.kind is not Kind.TEXT or {field.name for field, _ in call.ListFields()} - plain:
            raise RefusedError(f"could not select a function overload for {name}({type_of(operand)})")
        return tree.ChangeCase("lower" if name == "lower" else "upper", operand)

    def coalesce(self, coalesce: Any) -> tree.Expression:
        operands = [self.expression(argument) for argument in coalesce.args]
        kinds = {operand.kind for operand in operands} - {Kind.UNKNOWN}
        if len(kinds) > 1 or Kind.PRINTED in kinds:
            raise RefusedError("COALESCE takes values of one type")
        kind = next(iter(kinds), Kind.TEXT)
        return tree.Coalesce(tuple(known(operand, kind) for operand in operands), kind)

    def collation(self, clause: Any) -> tree.Expression:
        names = [name.string.sval for name in clause.collname]
        operand = known(self.expression(clause.arg))
        if names not in (["C"], ["pg_catalog", "C"]) or operand.kind is not Kind.TEXT:
            raise RefusedError('text is compared in COLLATE "C", and no other collation is supported')
        return operand


def _number(text: str) -> tree.Literal:
    for kind in (Kind.INTEGER, Kind.NUMERIC):
        try:
            return tree.Literal(printed(text, kind), kind)
        except LiteralError:
            continue
    raise RefusedError("write the number in decimal digits")


_RULES: dict[str, Callable[[Compiler, Any], tree.Expression]] = {
    "column_ref": Compiler.column,
    "a_const": Compiler.constant,
    "param_ref": Compiler.parameter,
    "bool_expr": Compiler.logic,
    "null_test": Compiler.null_test,
    "boolean_test": Compiler.boolean_test,
    "a_expr": operators.operation,
    "type_cast": Compiler.type_cast,
    "func_call": Compiler.function,
    "coalesce_expr": Compiler.coalesce,
    "collate_clause": Compiler.collation,
}
