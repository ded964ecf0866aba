"""What the engine's thread has to do, in the order in which it was asked.

Anybody may ask for anything (`submit`), without waiting. Changes wait for room: so many bytes of them lie
here at most, and one fragment more. The engine takes all that is there at once, so that what comes together
is written and told together. Nobody is left waiting: what was asked for is done, or cancelled at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Task:
    """What it raises is told to whoever asked for it; if nobody can be told, it is raised."""

    call: Callable[[], Any]
    size: int = 0
    outcome: Future[Any] | None = None

    def run(self) -> None:
        if self.outcome is None:
            self.call()
        elif self.outcome.set_running_or_notify_cancel():
            try:
                self.outcome.set_result(self.call())
            except BaseException as error:
                self.outcome.set_exception(error)

    def cancel(self) -> None:
        if self.outcome is not None:
            self.outcome.cancel()


class Inbox:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._tasks: list[Task] = []
        self._changed = threading.Condition()
        self.closed = False

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Have it called; an inbox that is closed cancels it."""
        outcome: Future[Result] = Future()
        with self._changed:
            if self.closed:
                outcome.cancel()
            else:
                self._tasks.append(Task(call, outcome=outcome))
                self._changed.notify_all()
        return outcome

    def put(self, call: Callable[[], None], size: int) -> bool:
        """Wait for room, and have it called; False if the inbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._bytes <= self._bytes_max)
            if self.closed:
                return False
            self._tasks.append(Task(call, size))
            self._bytes += size
            self._changed.notify_all()
            return True

    def take(self, wait_s: float) -> list[Task]:
        """All there is; nothing if nothing has come in `wait_s`, or comes any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._tasks, wait_s)
            taken, self._tasks, self._bytes = self._tasks, [], 0
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        """Nothing more comes; what is there can be taken."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
