"""Operations on one table, one after the other: a load and rounds of the same table may run side by side.

Each operation checks the table's record and replaces it. Two of them in one process are not rivals, so the
second waits for the first; writers of other processes are met by the commit itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class HasTurn(Protocol):
    @property
    def turn(self) -> AbstractContextManager[object]:
        """Held by the operation whose turn it is."""
        ...


_Table = TypeVar("_Table", bound=HasTurn)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def in_turn(
    operation: Callable[Concatenate[_Table, _Arguments], _Result],
) -> Callable[Concatenate[_Table, _Arguments], _Result]:
    @wraps(operation)
    def wait_for_turn(table: _Table, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        with table.turn:
            return operation(table, *arguments, **named)

    return wait_for_turn
