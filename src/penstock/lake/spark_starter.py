"""Starts Spark, or no more of it than its JVM, when it becomes likely that it is needed, beside other work.

A session takes 5–10 seconds to start. A sync that finds little to do never pays for it, and one that finds
more has it running while the log is still being read. Iceberg's own library, which commits, wants the JVM
alone: that takes one or two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession


class SparkStarter(AbstractContextManager["SparkStarter"]):
    """Call it for the session; `begin` starts it without waiting, and `begin_java` the JVM alone."""

    def __init__(self, start: Callable[[], SparkSession], start_java: Callable[[], object]) -> None:
        self._start = start
        self._start_java = start_java
        self._pool = ThreadPoolExecutor(1, "penstock-spark")
        self._lock = threading.Lock()
        self._session: Future[SparkSession] | None = None

    def begin(self) -> None:
        self._begun()

    def begin_java(self) -> None:
        """Who needs it asks for it again, and is told then if it could not be started."""
        self._pool.submit(self._start_java)

    def __call__(self) -> SparkSession:
        return self._begun().result()

    def has_java(self) -> bool:
        """Whether this process has a JVM already, or is about to."""
        return SparkContext._gateway is not None

    def has_begun(self) -> bool:
        """Whether the session is there, or is being started."""
        return self._session is not None

    def has_died(self) -> bool:
        """Whether the session was there and its JVM is not any more."""
        begun = self._session
        if begun is None or not begun.done() or begun.exception() is not None:
            return False
        try:
            return bool(begun.result().sparkContext._jsc.sc().isStopped())
        except (Py4JError, OSError, AttributeError):
            return True

    def _begun(self) -> Future[SparkSession]:
        with self._lock:
            if self._session is None:
                self._session = self._pool.submit(self._start)
            return self._session

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)
