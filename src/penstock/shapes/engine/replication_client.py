"""`ReplicationClient`: what the live lane is told of changes, term after term of capture's.

A term begins when capture leads: the tables of all shapes are joined, it is checked that these are still the
changes that the shapes were made from, and the tail is followed from where the engine is. It ends with an
error. Capture that is away is waited for, while readers are served what there is; a source that cannot be
reached is tried again.

What the engine has may not be part of what comes now (`capture.continuity`): then every shape is made anew.

Fragments are handed in one after the other and wait for room: a slow engine slows this thread, nobody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from penstock.capture.continuity import Followed, why_not_on
from penstock.capture.position_reporter import REPORT_EVERY_S
from penstock.capture.remote import RemoteCapture
from penstock.capture.spec import Started
from penstock.capture.tail_reader import TailReader
from penstock.capture.transactions import MessageConverter, TransactionFragment
from penstock.core.backoff import pause_s
from penstock.core.errors import CaptureAwayError, PositionGoneError, SourceError
from penstock.core.position import Lsn
from penstock.shapes.engine.registry import Stack
from penstock.shapes.shape import SnapshotProblem
from penstock.sources.postgres.timelines import switch_point_at

ASK_AFTER_S = 0.03  # by itself it mostly comes sooner
ASK_AGAIN_S = 0.2
_BACKOFF_S = (0.2, 10.0)
_logger = structlog.get_logger("penstock.shapes")


class ChangeHandler(Protocol):
    """The engine, as this side knows it."""

    @property
    def stack(self) -> Stack: ...

    def join(self) -> Started:
        """Join capture with the tables of all shapes; what was refused, or has missed changes, goes."""

    def begin_term(self) -> Lsn | None:
        """What was handed in is dealt with: what to follow after, None if nothing is held yet."""

    def start_over(self, position: Lsn, reason: str) -> None:
        """All shapes go; changes after `position` will come."""

    def read_from(self, started: Started, head: Lsn) -> None:
        """Whose changes will come; `head` is how far they were when they were asked for."""

    def hand_in(self, fragment: TransactionFragment) -> bool:
        """Wait for room and take it; False if the end is asked for."""


class ReplicationClient:
    def __init__(
        self,
        capture: RemoteCapture,
        log_directory: Path,
        source_url: str,
        handler: ChangeHandler,
        on_state: Callable[[bool, str], None],
        on_followed: Callable[[Lsn], None],
    ) -> None:
        self._capture = capture
        self._log_directory = log_directory
        self._source_url = source_url
        self._handler = handler
        self._on_state = on_state  # whether changes are followed; if not, why
        self._on_followed = on_followed  # the epoch of a term whose changes go on from what the engine has
        self._converter = MessageConverter()

    def run(self, stop: threading.Event) -> None:
        """Until the end is asked for; an error if somebody must look."""
        failures = 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._term(stop)
            except CaptureAwayError:
                pass
            except PositionGoneError as error:
                self._start_over(error.message)
                continue
            except (SourceError, SnapshotProblem) as error:
                _logger.warning("the live lane begins anew", reason=error.message)
                self._on_state(False, error.message)
            failures = 1 if time.monotonic() - began > _BACKOFF_S[1] else failures + 1
            stop.wait(pause_s(failures, *_BACKOFF_S))

    def _term(self, stop: threading.Event) -> None:
        self._on_state(False, "")
        if not self._capture.wait_until_leading(stop, lambda reason: self._on_state(False, reason)):
            return
        after = self._handler.begin_term()
        started = self._handler.join()
        head = self._capture.progress().position
        if after is None:
            after = head
            self._handler.start_over(head, "")
        elif reason := self._why_not_on(started, after):
            after = head
            self._handler.start_over(head, reason)
        self._handler.read_from(started, head)
        self._on_followed(started.epoch)
        self._on_state(True, "")
        for item in TailReader(self._capture, self._log_directory).follow(after):
            for fragment in self._converter.fragments(item):
                if not self._handler.hand_in(fragment):
                    return

    def _why_not_on(self, started: Started, after: Lsn) -> str:
        stack = self._handler.stack
        before = Followed(stack.system_id, stack.timeline) if stack.system_id else None
        switch_point = partial(switch_point_at, self._source_url)
        return why_not_on(started, before, after, switch_point, self._log_directory)

    def _start_over(self, reason: str) -> None:
        try:
            self._handler.begin_term()
            self._handler.start_over(self._capture.progress().position, reason)
        except CaptureAwayError:
            return  # the next term finds the same


class AwaitedPosition:
    """Has capture ask where the source is, when somebody waits for a position and nothing happens there."""

    def __init__(self, capture: RemoteCapture, position: Callable[[], Lsn]) -> None:
        self._capture = capture
        self._position = position
        self._wanted = Lsn(0)
        self._woken = threading.Event()

    def want(self, position: Lsn) -> None:
        """From any thread; returns at once."""
        if position > self._wanted:
            self._wanted = position
            self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._woken.wait()
            self._woken.clear()
            while not stop.wait(ASK_AFTER_S) and self._position() < (wanted := self._wanted):
                try:
                    self._capture.read_to(wanted)
                    stop.wait(ASK_AGAIN_S)
                except (CaptureAwayError, SourceError):
                    stop.wait(REPORT_EVERY_S)  # the next term begins where the source is
