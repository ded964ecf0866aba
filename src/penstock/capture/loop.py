"""The replication loop: one thread reads from the server, one turns messages into the open step.

The reading thread only moves bytes and answers the server; scanning and Parquet run in the other
thread, mostly without the GIL. At most `_BATCHES_IN_FLIGHT` batches are between them, each bounded in
bytes and messages, so memory is bounded whatever the size of a transaction; when the writing thread
is behind, the socket fills and the server waits.

Past its target the loop stops taking data from the server and keeps sending status messages, at less
than a third of the server's timeout: a sender that is blocked on us still reads those.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from penstock.capture.acknowledgement import AcknowledgementTracker
from penstock.capture.spec import CaptureProgress
from penstock.capture.steps import StepBuilder
from penstock.core.position import Lsn
from penstock.log.writer import LogWriter
from penstock.sources.postgres.replication import ReplicationStream

_BATCHES_IN_FLIGHT = 2
_QUIET_S = 0.005  # this long without data: what has come is worth writing
_ASK_AFTER_S, _ASK_AFTER_MAX_S = 0.05, 1.0
_PROGRESS_INTERVAL_S = 0.5


class ReplicationLoop:
    """Runs until `stop`. `on_reached` gets the log's end, `on_failed` what went wrong; once only."""

    def __init__(
        self,
        stream: ReplicationStream,
        builder: StepBuilder,
        writer: LogWriter,
        tracker: AcknowledgementTracker,
        *,
        status_interval_s: float,
        on_reached: Callable[[Lsn], None],
        on_progress: Callable[[CaptureProgress], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._stream, self._builder, self._writer, self._tracker = stream, builder, writer, tracker
        self._status_interval_s = status_interval_s
        self._on_reached, self._on_progress, self._on_failed = on_reached, on_progress, on_failed
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._lock = threading.Lock()
        self._asked_target: Lsn | None = None
        self._target: Lsn | None = None
        self._stopping = False
        self._status_wanted = True
        self._worker = ThreadPoolExecutor(1, "capture-write")
        self._in_flight: deque[Future[bool]] = deque()
        self._last_data = self._last_status = self._last_progress = 0.0
        self._ask_after_s = _ASK_AFTER_S
        self._thread = threading.Thread(target=self._run, name="capture-read", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def read_to(self, target: Lsn) -> None:
        with self._lock:
            self._asked_target = target
        self._wake()

    def send_status_now(self) -> None:
        with self._lock:
            self._status_wanted = True
        self._wake()

    def abort(self) -> None:
        """Stop reading and sealing as soon as may be, without waiting for it."""
        self._stopping = True
        self._wake()

    def stop(self) -> None:
        """End both threads. The open step is left as it is: nothing of it is committed."""
        self.abort()
        if self._thread.is_alive():
            self._thread.join()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._stream.close()

    def _wake(self) -> None:
        os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_orders()
                self._collect_results()
                self._send_status_if_due()
                if self._target is None:
                    self._stream_idle()
                else:
                    self._read()
                self._report()
        except BaseException as error:  # the other threads must hear of whatever ends this one
            self._on_failed(error)

    def _take_orders(self) -> None:
        with self._lock:
            target, self._asked_target = self._asked_target, None
        if target is not None:
            self._target = target
            self._last_data, self._ask_after_s = time.monotonic(), 0.0
            self._in_flight.append(self._worker.submit(self._builder.set_target, target))

    def _read(self) -> None:
        inbox = self._stream.inbox
        if not inbox.full:
            size = self._stream.drain()
            if size:
                self._last_data, self._ask_after_s = time.monotonic(), _ASK_AFTER_S
                if not inbox.full:
                    self._stream.let_fill()
                    return
            elif not inbox.bytes or self._in_flight:
                self._wait_for_data()
                return
            elif time.monotonic() - self._last_data < _QUIET_S:
                self._stream.wait(_QUIET_S, self._wake_read)
                return
        if len(self._in_flight) < _BATCHES_IN_FLIGHT:
            self._in_flight.append(self._worker.submit(self._builder.take, inbox.take()))
        else:
            wait(list(self._in_flight)[:1], timeout=self._status_interval_s)

    def _wait_for_data(self) -> None:
        quiet = time.monotonic() - self._last_data
        if not self._stream.inbox.bytes and not self._in_flight and quiet >= self._ask_after_s:
            # The server says where it is only when asked, or every half of its timeout.
            self._send_status(reply=True)
            self._last_data = time.monotonic()
            self._ask_after_s = min(max(self._ask_after_s * 1.5, _ASK_AFTER_S), _ASK_AFTER_MAX_S)
        self._stream.wait(_QUIET_S if self._in_flight else _ASK_AFTER_S, self._wake_read)
        self._clear_wake()

    def _stream_idle(self) -> None:
        """Wait for orders without reading: the server may be blocked on us, which is fine."""
        timeout = max(0.0, self._last_status + self._status_interval_s - time.monotonic())
        select.select([self._wake_read], [], [], _QUIET_S if self._in_flight else timeout)
        self._clear_wake()

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _collect_results(self) -> None:
        while self._in_flight and self._in_flight[0].done():
            reached = self._in_flight.popleft().result()
            self._tracker.log_sealed(self._writer.end)
            if reached and self._target is not None:
                self._target = None
                self._report(now=True)
                self._on_reached(self._writer.end)

    def _send_status_if_due(self) -> None:
        with self._lock:
            wanted, self._status_wanted = self._status_wanted, False
        if wanted or time.monotonic() - self._last_status >= self._status_interval_s:
            self._send_status()

    def _send_status(self, *, reply: bool = False) -> None:
        self._stream.send_status(self._builder.position, self._tracker.acknowledged(), reply=reply)
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
