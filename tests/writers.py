"""Writers at work in threads of their own, until they are told to stop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self


class Writing(Protocol):
    """One of them: a transaction at a time, on a connection that is its own."""

    number: int
    committed: int
    error: BaseException | None

    def transact(self, connection: Any) -> None: ...


class Writers(ABC):
    """`stop` waits for their last transaction and raises what went wrong in one."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    @property
    @abstractmethod
    def writers(self) -> list[Any]:
        """Each is a `Writing`."""

    @abstractmethod
    def connected(self) -> AbstractContextManager[Any]:
        """What a writer is given for each transaction."""

    @property
    def transactions(self) -> int:
        """How many have been committed so far."""
        return sum(writer.committed for writer in self.writers)

    def begin(self, count: int) -> Self:
        """Have the first ones write until `stop`; begun again, each goes on where it was."""
        assert not self._threads, "the writers are running"
        self._stopping.clear()
        for writer in self.writers[:count]:
            thread = threading.Thread(target=self._run, args=(writer,), name=f"writer {writer.number}")
            self._threads.append(thread)
            thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        for writer in self.writers:
            if writer.error is not None:
                raise writer.error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, writer: Writing) -> None:
        try:
            with self.connected() as connection:
                while not self._stopping.wait(self._pause_s):
                    writer.transact(connection)
        except BaseException as error:  # raised by `stop`, in the test's own thread
            writer.error = error
