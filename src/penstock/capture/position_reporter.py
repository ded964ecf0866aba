"""`PositionReporter`: how far a lane is, told to capture."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from penstock.capture.remote import RemoteCapture
from penstock.core.errors import CaptureAwayError, SourceError
from penstock.core.position import Lsn

REPORT_EVERY_S = 0.5
_logger = structlog.get_logger("penstock.lanes")


class PositionReporter:
    """Tells capture how far the lane is, about twice a second, and anew after each join.

    Not before it is known that the term's changes go on from what the lane has: positions of another server
    mean nothing here, and capture takes a lower one for no news until the next join.
    """

    def __init__(self, capture: RemoteCapture, position: Callable[[], Lsn | None]) -> None:
        self._capture = capture
        self._position = position
        self._epoch: Lsn | None = None
        self._joined = threading.Event()
        self._joins = 0
        self._told: tuple[int, Lsn] | None = None

    def joined(self) -> None:
        """Capture does not know any more how far the lane is."""
        self._joins += 1
        self.wake()

    def followed(self, epoch: Lsn) -> None:
        """The lane's position is one of this term's."""
        self._epoch = epoch
        self.wake()

    def wake(self) -> None:
        self._joined.set()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._joined.wait(REPORT_EVERY_S)
            self._joined.clear()
            self.report()

    def report(self) -> None:
        """If there is news. What is told after a join counts for that join only if it was read after it."""
        if self._epoch is None or self._capture.epoch != self._epoch:
            return
        joins, position = self._joins, self._position()
        if position is None or self._told == (joins, position):
            return
        try:
            self._capture.acknowledge(self._capture.lane, position)
            self._told = joins, position
        except CaptureAwayError:
            pass  # the next term is joined, and told
        except SourceError as error:
            _logger.warning("position not reported", code=error.code, reason=error.message)
