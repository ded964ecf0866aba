"""A thread that writes beside a test, in transactions that are counted."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, Self

from tests.conftest import Database, wait_until


class WriterBeside(ABC):
    """Writes until the block is left; the block begins when it has written a little."""

    def __init__(self, database: Database) -> None:
        self.transactions = 0
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_on)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for_more(3)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_more(self, count: int = 1) -> None:
        wanted = self.transactions + count
        wait_until(lambda: self.transactions >= wanted, "the writer to go on")

    def _write_on(self) -> None:
        with self._database.connect() as connection:
            while not self._stop.is_set():
                number = self.transactions + 1
                with connection.transaction():
                    self.write(connection, number)
                self.transactions = number

    @abstractmethod
    def write(self, connection: Any, number: int) -> None:
        """What one transaction does; the first has the number 1."""
