"""Checks a condition against a table's columns and types, and gives it as a tree.

What cannot be evaluated exactly as Postgres would is refused here, with its place; nothing is approximated.
A condition of the pipeline file is `total` besides: nothing in it may fail for any value, since its table
would stop there. A shape can be made anew, so its conditions may.

Two things differ from a query on purpose, at the source and here alike: text is in COLLATE "C", and whole
numbers do not overflow in sums and products. A timestamp with time zone written without one is in UTC.

A rule per kind of node, found by the node's name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.where import array_rules, functions, operators, subqueries, tree
from penstock.core.where.comparing import negated_if
from penstock.core.where.condition import Condition, Subquery, SubqueryResolver, SubqueryTable
from penstock.core.where.convert import alike, cast, known, type_of
from penstock.core.where.errors import WhereError
from penstock.core.where.kinds import KIND_OF_CAST, KIND_OF_TYPE, ArrayOf, Kind, kind_of, type_like
from penstock.core.where.literals import LiteralError, printed
from penstock.core.where.single import is_listed
from penstock.core.where.syntax import parse, position_of
from penstock.core.where.wording import RefusedError, Wording, refused

#: The names of an enumeration's values, by message and field: looking them up takes a third of compiling.
_ENUMERATIONS: dict[tuple[str, str], dict[int, str]] = {}
_OPERATIONS_MAX = 1_000
_ARITHMETIC_MAX = 100
_DIGITS_MAX = 1_000
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
    "row_expr": "A row",
    "sqlvalue_function": "A value that changes with the clock or the session",
    "min_max_expr": "GREATEST or LEAST",
    "grouping_func": "GROUPING",
    "xml_expr": "An XML function",
}


def compile_condition(
    text: str,
    table: SubqueryTable,
    *,
    params: Mapping[int, str],
    tables: SubqueryResolver | None,
    wording: Wording,
) -> Condition:
    compiler = Compiler(text, table, params, tables, wording)
    node = parse(text, wording)
    try:
        expression = compiler.whole(node)
    except RecursionError:
        raise WhereError("the condition is nested too deeply", 0, wording) from None
    return Condition(text, expression, tuple(compiler.subqueries), deterministic=not compiler.total)


@dataclass(frozen=True, slots=True)
class Compiler:
    """`alias`: what a column of the table may be qualified with. `uses`: each parameter's kinds and types."""

    text: str
    table: SubqueryTable
    params: Mapping[int, str]
    tables: SubqueryResolver | None
    wording: Wording
    alias: str | None = None
    subqueries: list[Subquery] = field(default_factory=list)
    uses: dict[int, tuple[object, str]] = field(default_factory=dict)

    @property
    def total(self) -> bool:
        return self.wording == "penstock"

    @property
    def incomparable(self) -> tuple[str, ...]:
        """Nodes that no operator takes."""
        return ("row_expr", "a_array_expr") if self.total else ("row_expr",)

    def whole(self, node: Any) -> tree.Expression:
        """The condition itself: it is true or false, and fits together."""
        found = self._predicate(node)
        try:
            found = known(found, Kind.BOOLEAN)
            if found.kind is not Kind.BOOLEAN:
                raise refused("result", type=type_of(found))
            self._check_parameters(found)
            subqueries.check_places(found)
            if not self.total:
                _check_size(found)
        except RefusedError as error:
            if self.total:
                raise self._at(node, error) from None
            raise WhereError(error.said(self.wording), 0, self.wording) from None
        return found

    def _check_parameters(self, expression: tree.Expression) -> None:
        for node in tree.every_node(expression):
            if not isinstance(node, tree.Literal) or not node.parameter:
                continue
            kind, name = self.uses.setdefault(node.parameter, (node.kind, type_of(node)))
            if kind != node.kind:
                raise RefusedError(f"type conflict for ${node.parameter}: {name} and {type_of(node)}")

    def expression(self, node: Any) -> tree.Expression:
        kind = node.WhichOneof("node")
        rule = _RULES.get(kind)
        try:
            if rule is None:
                message = getattr(node, kind).DESCRIPTOR.name if kind else "Expression"
                raise refused("node", name=_NODE_NAMES.get(kind, f"`{kind}`"), node=message)
            return rule(self, getattr(node, kind))
        except RefusedError as error:
            raise self._at(node, error) from None

    def boolean(self, node: Any, test: str = "") -> tree.Expression:
        """An operand of AND, OR, NOT, or of the `test` that is named."""
        try:
            found = known(self._predicate(node), Kind.BOOLEAN)
            if found.kind is not Kind.BOOLEAN:
                raise refused("truth" if test else "operand", type=type_of(found), test=test)
        except RefusedError as error:
            raise self._at(node, error) from None
        return found

    def _predicate(self, node: Any) -> tree.Expression:
        if self.tables is None or node.WhichOneof("node") != "sub_link":
            return self.expression(node)
        try:
            return subqueries.membership(self, node.sub_link)
        except RefusedError as error:
            raise self._at(node, error) from None

    def _at(self, node: Any, error: RefusedError) -> WhereError:
        location = getattr(getattr(node, node.WhichOneof("node")), "location", 0)
        position = position_of(self.text, location)
        return WhereError(error.said(self.wording), position, self.wording, position)

    @staticmethod
    def name_of(message: Any, field: str) -> str:
        """The name of an enumeration's value."""
        descriptor = message.DESCRIPTOR
        names = _ENUMERATIONS.get((descriptor.name, field))
        if names is None:
            values = descriptor.fields_by_name[field].enum_type.values_by_number
            names = {number: value.name for number, value in values.items()}
            _ENUMERATIONS[descriptor.name, field] = names
        return names[getattr(message, field)]

    def column(self, ref: Any) -> tree.Expression:
        names = [part.string.sval if part.HasField("string") else "*" for part in ref.fields]
        if len(names) == 2 and names[0] == self.alias:
            names = names[1:]
        if len(names) != 1 or names == ["*"]:
            raise RefusedError("write the column's name alone", f"unknown reference {'.'.join(names)}")
        column = next((each for each in self.table.columns if each.name == names[0]), None)
        if column is None:
            raise refused("reference", name=names[0], hint=self._nearest(names[0]))
        kind = kind_of(column, self.table.enums.get(column.name, ()), total=self.total)
        if kind is None:
            raise refused("column type", type=column.type_text, name=column.name)
        if column.name in self.table.nondeterministic:
            raise RefusedError(f"the collation of the column {column.name} is nondeterministic")
        return tree.Column(column.name, type_like(column), kind)

    def _nearest(self, name: str) -> str:
        by_lower = {column.name.lower(): column.name for column in self.table.columns}
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
        raise RefusedError("bit strings are not supported in a condition", "unsupported type bit")

    def parameter(self, parameter: Any) -> tree.Expression:
        number: int = parameter.number
        if number not in self.params:
            raise RefusedError(f"parameter ${number} was not provided")
        value = self.params[number]
        if "\0" in value:
            raise RefusedError(f"parameter ${number} holds a null character")
        return tree.Literal(value, Kind.UNKNOWN, number)

    def logic(self, expression: Any) -> tree.Expression:
        operands = tuple(self.boolean(argument) for argument in expression.args)
        match self.name_of(expression, "boolop"):
            case "AND_EXPR":
                return tree.AllOf(operands)
            case "OR_EXPR":
                return tree.AnyOf(operands)
        if isinstance(operands[0], tree.InSubquery):
            return subqueries.negated(operands[0])
        return tree.Not(operands[0])

    def null_test(self, test: Any) -> tree.Expression:
        is_null = tree.IsNull(known(self.expression(test.arg)))
        return negated_if(self.name_of(test, "nulltesttype") == "IS_NOT_NULL", is_null)

    def boolean_test(self, test: Any) -> tree.Expression:
        name = self.name_of(test, "booltesttype")
        negated, truth = _TRUTHS[name]
        return negated_if(negated, tree.IsTruth(self.boolean(test.arg, name.replace("_", " ")), truth))

    def type_cast(self, type_cast: Any) -> tree.Expression:
        wanted = type_cast.type_name
        names: list[str] = [name.string.sval for name in wanted.names]
        name = names[-1]
        known_types = KIND_OF_TYPE if self.total else KIND_OF_CAST
        if names[:-1] not in ([], ["pg_catalog"]) or name not in known_types:
            raise RefusedError(f"unsupported type {'.'.join(names)}")
        if wanted.typmods or wanted.setof or (self.total and wanted.array_bounds):
            raise RefusedError(
                f"write the type {name} without limits and brackets", f"unsupported type {name}"
            )
        if wanted.array_bounds:
            return array_rules.array_cast(self, type_cast.arg, name)
        return cast(self.expression(type_cast.arg), name, total=self.total)

    def coalesce(self, coalesce: Any) -> tree.Expression:
        operands = [self.expression(argument) for argument in coalesce.args]
        found = tuple(alike(operands, "COALESCE", total=self.total))
        kind = found[0].kind
        return tree.Call("coalesce", found, kind) if is_listed(kind) else tree.Coalesce(found, kind)

    def extreme(self, expression: Any) -> tree.Expression:
        if self.total:
            raise refused("node", name=_NODE_NAMES["min_max_expr"], node="MinMaxExpr")
        name = "greatest" if self.name_of(expression, "op") == "IS_GREATEST" else "least"
        found = tuple(alike([self.expression(each) for each in expression.args], name.upper(), total=False))
        if isinstance(found[0].kind, ArrayOf) or found[0].kind is Kind.JSON:
            raise refused("overload", name=name, types=", ".join(map(type_of, found)))
        return tree.Call(name, found, found[0].kind)

    def collation(self, clause: Any) -> tree.Expression:
        names = [name.string.sval for name in clause.collname]
        operand = known(self.expression(clause.arg))
        if names not in (["C"], ["pg_catalog", "C"]) or operand.kind not in (Kind.TEXT, Kind.NAME):
            raise RefusedError(
                'text is compared in COLLATE "C", and no other collation is supported',
                "CollateClause is not supported in this context",
            )
        return operand


def _check_size(expression: tree.Expression) -> None:
    """A shape's condition comes from outside: what evaluating it can cost is bounded."""
    nodes = list(tree.every_node(expression))
    operations = sum(not isinstance(node, tree.Literal | tree.Column) for node in nodes)
    products = sum(isinstance(node, tree.Arithmetic) for node in nodes)
    if operations > _OPERATIONS_MAX or products > _ARITHMETIC_MAX:
        raise RefusedError(
            f"the condition has more than {_OPERATIONS_MAX} operations, or {_ARITHMETIC_MAX} of arithmetic"
        )
    numbers = (node for node in nodes if isinstance(node, tree.Literal) and node.kind is Kind.NUMERIC)
    if any(len(number.text or "") > _DIGITS_MAX for number in numbers):
        raise RefusedError(f"a number in the condition has more than {_DIGITS_MAX} digits")


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
    "func_call": functions.function,
    "coalesce_expr": Compiler.coalesce,
    "collate_clause": Compiler.collation,
    "min_max_expr": Compiler.extreme,
    "a_array_expr": array_rules.array,
    "a_indirection": array_rules.subscript,
}
