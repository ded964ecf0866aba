"""`StreamLane`: every change to a target, term after term of capture's.

A term (`term`) begins when capture leads, by asking the target what it holds, and ends with an error. How it
goes on is all that an error decides:

- capture is away, leads a new term, or a later term has written to the target: wait for capture, begin anew;
- source or target cannot be reached: the same, after a pause, without end: the position is held meanwhile;
- anything that needs a person: the process ends with it, and the supervisor parks it.

Without an error it ends when somebody has ordered something, or tables have come: the next one begins.

A lane that is paused by order says so, also while its target cannot be opened: it is tried all the same,
since capture holds the source's log until it knows what the target holds.

A term that capture no longer leads sends nothing more, even while the lane waits for a target that does not
answer: `_Watch` stops the publisher.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

import structlog

from penstock import failpoints
from penstock.capture.position_reporter import PositionReporter
from penstock.capture.remote import RemoteCapture
from penstock.channel import State
from penstock.core.backoff import pause_s
from penstock.core.errors import (
    CaptureAwayError,
    PenstockError,
    PositionGoneError,
    SourceError,
    StaleTermError,
    TargetError,
)
from penstock.core.position import Lsn
from penstock.streams.bulk import BulkEncoder
from penstock.streams.followed import followed_streams, join
from penstock.streams.lane_measures import StreamMeasures
from penstock.streams.lease import Lease
from penstock.streams.orders import OrderBook
from penstock.streams.publisher import Publisher, StoppedError, Term
from penstock.streams.settings import StreamSettings
from penstock.streams.starting_point import Ordered
from penstock.streams.targets import publisher_of
from penstock.streams.term import Held, LaneTools, StreamTerm

_WATCH_EVERY_S = 1.0
_ANSWER_S = 5.0
_BACKOFF_S = (0.2, 10.0)
_logger = structlog.get_logger("penstock.streams")


class StreamLane:
    """`on_state` is told where the lane stands and why; `note`, sentences for a person.

    `bulk`: who encodes backlogs; None: the lane itself.
    """

    def __init__(
        self,
        settings: StreamSettings,
        capture: RemoteCapture,
        measures: StreamMeasures,
        on_state: Callable[[State, str], None],
        note: Callable[[str], None],
        bulk: BulkEncoder | None = None,
    ) -> None:
        self._capture = capture
        self._on_state = on_state
        self._publisher: Publisher | None = None
        self._trouble = ""  # why the last term could not begin
        held = Held()
        self.reporter = PositionReporter(capture, held.position)
        self._tools = LaneTools(
            settings,
            capture,
            OrderBook(settings.directory),
            measures,
            held,
            self.reporter,
            on_state,
            note,
            bulk,
        )

    def let_go(self) -> None:
        """From any thread: nothing more is sent, whatever is under way."""
        if (publisher := self._publisher) is not None:
            publisher.stop()

    def run(self, stop: threading.Event) -> None:
        """Until the end is asked for; an error if somebody must look."""
        failures = 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._term(stop)
                failures = 0
                continue
            except (CaptureAwayError, StaleTermError, StoppedError) as error:
                _logger.info("the term is over", reason=str(error))
                self._tools.measures.is_paused = False
                self._on_state("waiting", error.message if isinstance(error, StaleTermError) else "")
            except PositionGoneError:
                raise
            except (SourceError, TargetError) as error:
                _logger.warning("the lane begins anew", code=error.code, reason=error.message)
                self._trouble = error.message
                self._tell("reconnecting", str(error))
            failures = 1 if time.monotonic() - began > _BACKOFF_S[1] else failures + 1
            stop.wait(pause_s(failures, *_BACKOFF_S))

    def _term(self, stop: threading.Event) -> None:
        self._on_state("waiting", "")
        if not self._capture.wait_until_leading(stop, lambda reason: self._on_state("waiting", reason)):
            return
        self._tell("starting", "")
        settings = self._tools.settings
        streams = followed_streams(settings)
        started = join(self._capture, streams)
        with ExitStack() as opened:
            publisher = publisher_of(settings, opened)
            self._publisher = publisher
            opened.callback(publisher.stop)
            lease = Lease(lambda: self._leads(started.epoch))
            opened.enter_context(_Watch(lease, publisher))
            ordered = Ordered.read(self._tools.orders.read(), settings.log_directory)
            standing = publisher.open(
                Term(
                    settings.identity,
                    started.epoch,
                    started.system_id,
                    started.timeline,
                    lease,
                    is_ordered=ordered.orders.resync == (),
                    leaves_letters=ordered.leaves_letters,
                )
            )
            self._trouble = ""
            failpoints.reach("streams.opened")
            term = StreamTerm(self._tools, publisher, streams, started, ordered)
            try:
                term.run(standing, stop)
            finally:
                self._tools = replace(self._tools, settings=term.settings)

    def _tell(self, state: State, reason: str) -> None:
        """Where a lane stands that does not follow changes yet; by order, that comes first."""
        orders = self._tools.orders.read()
        self._tools.measures.is_paused = orders.is_paused
        if orders.is_paused:
            state, reason = "running", "; ".join(filter(None, (orders.pause_told, self._trouble)))
        self._on_state(state, reason)

    def _leads(self, epoch: Lsn) -> bool:
        try:
            hello = self._capture.hello(_ANSWER_S)
        except PenstockError:
            return False
        return hello.leading and hello.epoch == epoch


class _Watch:
    """Stops a publisher when capture no longer leads the term it publishes in."""

    def __init__(self, lease: Lease, publisher: Publisher) -> None:
        self._lease = lease
        self._publisher = publisher
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stream-term-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_EVERY_S):
            if not self._lease.renew():
                self._publisher.stop()
                return
