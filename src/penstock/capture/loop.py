"""The replication loop: one thread reads from the server, one turns messages into the open step.

The reading thread only moves bytes and answers the server; scanning and Parquet run in the other
thread, mostly without the GIL. At most `_BATCHES_IN_FLIGHT` batches are between them, each bounded in
bytes and messages, so memory is bounded whatever the size of a transaction; when the writing thread
is behind, the socket fills and the server waits.

Bounded (`read_to`), the loop stops taking data from the server past its target. Following (`follow`), it
takes all there is: a batch goes to the writing thread when that one is free and has nothing better to wait
for, so a single commit waits for milliseconds and a flood comes in large pieces.

The source hears from us as often as it wants to (`LogStream.report_every_s`), whether or not data is taken,
and however long the disk takes: a sender that is blocked on us still reads it.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic

from penstock.capture.acknowledgement import AcknowledgementTracker
from penstock.capture.log_reading import Batch, LogStream
from penstock.capture.spec import CaptureProgress
from penstock.capture.steps import StepBuilder, add_target
from penstock.core.position import Lsn
from penstock.log.writer import LogWriter

_BATCHES_IN_FLIGHT = 2
_QUIET_S = 0.005  # this long without data: what has come is worth writing
_FRESH_S = 0.01  # following: so long what has come may wait for more of it
_IDLE_S = 0.2  # following: how long to sleep at most while nothing comes
_ASK_AFTER_S, _ASK_AFTER_MAX_S = 0.05, 1.0
_PROGRESS_INTERVAL_S = 0.5


class ReplicationLoop(Generic[Batch]):
    """Runs until `stop`. The callbacks are called in the reading thread.

    `on_reached` gets the log's end when a bounded read is done, `on_sealed` whenever it has moved (once for
    several steps, if they were sealed in one go), `on_failed` what went wrong; once only.
    """

    def __init__(
        self,
        stream: LogStream[Batch],
        builder: StepBuilder[Batch],
        writer: LogWriter,
        tracker: AcknowledgementTracker,
        *,
        on_reached: Callable[[Lsn], None],
        on_progress: Callable[[CaptureProgress], None],
        on_failed: Callable[[BaseException], None],
        on_sealed: Callable[[Lsn], None] = lambda _: None,
    ) -> None:
        self._stream, self._builder, self._writer, self._tracker = stream, builder, writer, tracker
        self._on_reached, self._on_progress, self._on_failed = on_reached, on_progress, on_failed
        self._on_sealed = on_sealed
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._lock = threading.Lock()
        self._asked_targets: list[Lsn] = []
        self._follow_asked = self._following = False
        self._target: Lsn | None = None  # the furthest that was asked for and is not sealed
        self._log_end = writer.end
        self._stopping = self._closed = False
        self._status_wanted = True
        self._worker = ThreadPoolExecutor(1, "capture-write")
        self._in_flight: deque[Future[bool]] = deque()
        self._last_data = self._last_status = self._last_progress = self._waiting_since = 0.0
        self._ask_after_s = _ASK_AFTER_S
        self._thread = threading.Thread(target=self._run, name="capture-read", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def read_to(self, target: Lsn) -> None:
        """Have everything up to `target` sealed as soon as it has come; unless following, stop there."""
        with self._lock:
            add_target(self._asked_targets, target)
        self._wake()

    demand = read_to

    def follow(self) -> None:
        """From now on take whatever comes."""
        with self._lock:
            self._follow_asked = True
        self._wake()

    def send_status_now(self) -> None:
        with self._lock:
            self._status_wanted = True
        self._wake()

    def abort(self) -> None:
        """Stop reading and sealing as soon as may be, without waiting for it."""
        self._builder.abort()
        self._stopping = True
        self._wake()

    def stop(self) -> None:
        """End both threads. The open step is left as it is: nothing of it is committed."""
        self.abort()
        if self._thread.is_alive():
            self._thread.join()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._stream.close()
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._wake_read)
                os.close(self._wake_write)

    def _wake(self) -> None:
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # full of wake-ups that nobody has looked at yet
                    os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._clear_wake()  # before looking at what it may stand for
                self._take_orders()
                self._collect_results()
                self._send_status_if_due()
                if self._following or self._target is not None:
                    self._read()
                else:
                    self._wait_for_wake()
                self._report()
        except BaseException as error:  # the other threads must hear of whatever ends this one
            self._on_failed(error)

    def _take_orders(self) -> None:
        with self._lock:
            targets: list[Lsn] = []
            if len(self._in_flight) <= _BATCHES_IN_FLIGHT:  # else they wait where they are bounded
                targets, self._asked_targets = self._asked_targets, []
            follow, self._follow_asked = self._follow_asked, False
        if follow and not self._following:
            self._following = True
            self._submit(self._builder.follow)
        for target in targets:
            self._target = target if self._target is None else max(target, self._target)
            self._last_data, self._ask_after_s = time.monotonic(), 0.0
            self._submit(partial(self._builder.demand, target))

    def _submit(self, work: Callable[[], bool]) -> None:
        future = self._worker.submit(work)
        future.add_done_callback(lambda _: self._wake())
        self._in_flight.append(future)

    def _read(self) -> None:
        stream = self._stream
        if not stream.is_full:
            size = stream.receive()
            if size:
                self._note_arrival(size)
                if not self._is_worth_taking():
                    stream.let_fill()
                    return
            elif not stream.waiting_bytes or self._in_flight:
                self._wait_for_data()
                return
            elif not self._following and time.monotonic() - self._last_data < _QUIET_S:
                stream.wait(_QUIET_S, self._wake_read)
                return
        if len(self._in_flight) < _BATCHES_IN_FLIGHT:
            self._submit(partial(self._builder.take, stream.take()))
        else:
            self._wait_for_wake()

    def _note_arrival(self, size: int) -> None:
        self._last_data, self._ask_after_s = time.monotonic(), _ASK_AFTER_S
        if size == self._stream.waiting_bytes:
            self._waiting_since = self._last_data

    def _is_worth_taking(self) -> bool:
        """Whether what has come should not wait, although more is coming."""
        waited_s = self._last_data - self._waiting_since
        return self._stream.is_full or (self._following and not self._in_flight and waited_s >= _FRESH_S)

    def _wait_for_data(self) -> None:
        now = time.monotonic()
        idle = not self._stream.waiting_bytes and not self._in_flight
        if idle and self._target is not None and now - self._last_data >= self._ask_after_s:
            # A source may say where it is only when asked, or seldom.
            self._send_status(ask=True)
            self._last_data = now
            self._ask_after_s = min(max(self._ask_after_s * 1.5, _ASK_AFTER_S), _ASK_AFTER_MAX_S)
        if idle and (due := self._builder.due_at) is not None and now >= due:
            self._submit(self._builder.tick)
        self._stream.wait(_ASK_AFTER_S if self._target is not None else _IDLE_S, self._wake_read)

    def _wait_for_wake(self) -> None:
        """Wait for orders or the writing thread, without reading: the server may be blocked on us."""
        timeout = max(0.0, self._last_status + self._stream.report_every_s - time.monotonic())
        select.select([self._wake_read], [], [], timeout)

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _collect_results(self) -> None:
        while self._in_flight and self._in_flight[0].done():
            reached = self._in_flight.popleft().result()
            if self._writer.end > self._log_end:
                self._log_end = self._writer.end
                self._tracker.log_sealed(self._log_end)
                self._on_sealed(self._log_end)
            if reached and self._target is not None and self._writer.end >= self._target:
                self._target = None
                self._report(now=True)
                if not self._following:
                    self._on_reached(self._writer.end)

    def _send_status_if_due(self) -> None:
        with self._lock:
            wanted, self._status_wanted = self._status_wanted, False
        if wanted or time.monotonic() - self._last_status >= self._stream.report_every_s:
            self._send_status()

    def _send_status(self, *, ask: bool = False) -> None:
        self._stream.report(self._builder.position, self._tracker.acknowledged(), ask=ask)
        self._last_status = time.monotonic()

    def _report(self, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._last_progress < _PROGRESS_INTERVAL_S:
            return
        self._last_progress = time.monotonic()
        counters = self._builder.counters
        self._on_progress(
            CaptureProgress(
                rows=counters.rows,
                bytes=counters.bytes,
                transactions=counters.transactions,
                position=self._builder.position,
                log_end=self._writer.end,
                target=self._target,
            )
        )
