"""What is said about a condition that is refused: for the pipeline file, and as clients of shapes know it.

A refusal is named by what is wrong and has both texts here, side by side. The texts for shapes are part of
the wire contract; those of the pipeline file say what to write instead.
"""

from __future__ import annotations

from typing import Literal as OneOf

Wording = OneOf["penstock", "electric"]

_MESSAGES: dict[str, tuple[str, str]] = {
    "reference": ("unknown reference {name}{hint}", "unknown reference {name}"),
    "operator": (
        "could not select an operator: {before}{symbol} {right}",
        "Could not select an operator overload",
    ),
    "overload": (
        "could not select a function overload for {name}({types})",
        "Could not select a function overload for {name}({types})",
    ),
    "aggregate": (
        "unknown or unsupported function {name}/{count}",
        "aggregation is not supported in this context",
    ),
    "literal": ("invalid literal for {type}: {reason}", "invalid syntax for type {type}: {text}"),
    "column type": ("unsupported type {type} of the column {name}", "unsupported type {type}"),
    "array": ("ANY and ALL take an array that is written out: ARRAY[…]", "argument of ANY must be an array"),
    "operand": ("{type} is not a condition: it must be true or false", "{type} is not castable to bool"),
    "truth": (
        "{type} is not a condition: it must be true or false",
        "argument of {test} must be bool, not {type}",
    ),
    "result": (
        "{type} is not a condition: it must be true or false",
        "WHERE clause must return a boolean",
    ),
    "node": ("{name} is not supported in a condition", "{node} is not supported in this context"),
    "semicolon": ("a condition ends at the semicolon", "unexpected end of the WHERE clause at a semicolon"),
    "clauses": (
        "only a condition is allowed, and no further clauses of a query",
        "malformed query ending with SQL clauses",
    ),
    "long": (
        "the condition is longer than {kib} KiB",
        "WHERE clause is bigger than maximum size of {kib} KiB",
    ),
}


class RefusedError(ValueError):
    """The message says what cannot be done, or not for every value. The place is added by the compiler."""

    def __init__(self, message: str, electric: str | None = None) -> None:
        super().__init__(message)
        self._electric = message if electric is None else electric

    def said(self, wording: Wording) -> str:
        return self._electric if wording == "electric" else str(self)


def refused(what: str, **values: object) -> RefusedError:
    penstock, electric = _MESSAGES[what]
    return RefusedError(penstock.format(**values), electric.format(**values))
