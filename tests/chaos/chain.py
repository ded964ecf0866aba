"""One thing that many cases use one after the other, so that each meets the traces of those before it.

A fixture of pytest cannot be that: one that is named among a case's parameters is made anew for each case
that has others besides, whatever its own scope says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Chain(Generic[T]):
    """`make` is called when another name is asked for than before; what there was ends first."""

    def __init__(self, make: Callable[[str], AbstractContextManager[T]]) -> None:
        self._make = make
        self._held = ExitStack()
        self._name: str | None = None

    def of(self, name: str) -> T:
        if name != self._name:
            self._name = None
            self._held.close()
            self._value = self._held.enter_context(self._make(name))
            self._name = name
        return self._value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()
