"""One source being read into the change log, from its set-up until it is lost or let go.

Puts together what the set-up found with what writes (`log.writer`, `steps`), what serves (`tail`) and what
the source is told (`acknowledgement`, `checkpoints`). The same for a bounded sync and for a term of an
always-on capture; the latter reads without a target, has a tail, and its leader's lease is looked at before
each step is committed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Generic

from penstock.capture.acknowledgement import AcknowledgementTracker
from penstock.capture.base import Progress
from penstock.capture.checkpoints import CheckpointSaver
from penstock.capture.log_reading import Batch, LogReading
from penstock.capture.loop import ReplicationLoop
from penstock.capture.spec import CaptureProgress, CaptureSpec
from penstock.capture.steps import Counters, StepBuilder
from penstock.capture.tail import Tail
from penstock.core.errors import PenstockError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.manifest import list_sequence, read_manifest
from penstock.log.writer import open_writer

_ENDS_KEPT = 8640  # a day's, if one is sealed every ten seconds


class Reading(Generic[Batch]):
    """The callbacks are called from threads of its own: `on_reached` once per target, `on_failed` once."""

    def __init__(
        self,
        spec: CaptureSpec,
        log: LogReading[Batch],
        lanes: Mapping[str, Lsn | None],
        *,
        may_commit: Callable[[], None] | None,
        may_save: Callable[[], None] | None,
        on_reached: Callable[[Lsn], None],
        on_progress: Callable[[CaptureProgress], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        started = log.started
        self.log = log
        self._spec = spec
        self._on_reached, self._on_progress, self._on_failed = on_reached, on_progress, on_failed
        self.writer = open_writer(
            spec.log_directory,
            system_id=started.system_id,
            timeline=started.timeline,
            epoch=started.epoch,
            newest=log.newest,
            start=log.read_from,
            may_commit=may_commit,
        )
        self.checkpoints = CheckpointSaver(
            spec.checkpoint_path,
            self.writer,
            interval_s=spec.checkpoint_interval_s,
            history=spec.checkpoint_history,
            may_save=may_save,
        )
        self.tracker = AcknowledgementTracker(lanes, started.slot_position, self.writer.end)
        self.tracker.acknowledge_log(spec.acknowledge_at == "log")
        if spec.service is not None:
            self.tracker.limit(started.slot_position)  # until a checkpoint is saved
        self.tail = Tail(spec.tail_bytes_max) if spec.service is not None else None
        if self.tail is not None:
            self.tail.identify(started.system_id, started.timeline, started.epoch, self.writer.end)
        self._decoder = log.decoder()
        self._builder = StepBuilder(
            self.writer,
            self._decoder,
            spec.step_bytes_max,
            self.tail,
            spec.seal_every_s if spec.service is not None else None,
        )
        self._loop: ReplicationLoop[Batch] | None = None
        # Of steps with changes, and when they were sealed; of earlier terms too, where a lane needs them.
        self._ends: deque[tuple[Lsn, float]] = deque(maxlen=_ENDS_KEPT)
        known = [position for position in lanes.values() if position is not None]
        if spec.service is not None and known:
            self._ends += ends_after(spec.log_directory, min(known), _ENDS_KEPT)
        self._changes_noted = 0
        self._starting = threading.Lock()
        self._sealed = threading.Condition()
        self._aborted = False

    def loop(self) -> ReplicationLoop[Batch]:
        """Streaming begins when it is first needed: until then nothing is taken from the source."""
        with self._starting:
            if self._loop is None:
                self._loop = self._started()
            return self._loop

    def _started(self) -> ReplicationLoop[Batch]:
        loop = ReplicationLoop(
            self.log.stream(),
            self._builder,
            self.writer,
            self.tracker,
            on_reached=self._on_reached,
            on_progress=self._on_progress,
            on_failed=self._on_failed,
            on_sealed=self._has_sealed,
        )
        loop.start()
        return loop

    def add(self, streams: Sequence[StreamId]) -> None:
        """Keep the changes of these too, from now on."""
        self._decoder.add(streams)

    def sealed(self, target: Lsn, within_s: float) -> Lsn | None:
        """The log's end once it has come to `target`; None if that takes longer, or never comes."""
        with self._sealed:
            self._sealed.wait_for(lambda: self._aborted or self.writer.end >= target, within_s)
        end = self.writer.end
        return end if end >= target else None

    def acknowledge(self) -> Lsn:
        """Tell the source what it may forget: nothing beyond the last checkpoint that was saved."""
        self.tracker.limit(self.checkpoints.saved or self.log.started.slot_position)
        if self._loop is not None:
            self._loop.send_status_now()
        return self.tracker.acknowledged()

    @property
    def position(self) -> Lsn:
        return self._builder.position

    @property
    def counters(self) -> Counters:
        return self._builder.counters

    def progress(self) -> Progress:
        counters = self._builder.counters
        return Progress(
            position=self._builder.position,
            log_end=self.writer.end,
            unsealed_bytes=counters.unsealed_bytes,
            rows=counters.rows,
            bytes=counters.bytes,
            transactions=counters.transactions,
            acknowledged=self.tracker.acknowledged(),
        )

    def abort(self) -> None:
        """Seal nothing more, at once, and let go of whoever waits."""
        if self._loop is not None:
            self._loop.abort()
        self._builder.abort()
        with self._sealed:
            self._aborted = True
            self._sealed.notify_all()
        if self.tail is not None:
            self.tail.close()

    def close(self) -> None:
        """End all threads. The open step is given up: nothing of it is committed."""
        self.abort()
        if self._loop is not None:
            self._loop.stop()
        self._decoder.close()
        self.writer.abandon()
        self.checkpoints.close()

    def age_s(self, position: Lsn) -> float:
        """How long ago the first step with changes was sealed that `position` does not have whole."""
        later = next((at for end, at in list(self._ends) if end > position), None)
        return 0.0 if later is None else max(0.0, time.time() - later)

    def _has_sealed(self, end: Lsn) -> None:
        if self.counters.steps_with_changes != self._changes_noted:
            self._changes_noted = self.counters.steps_with_changes
            self._ends.append((end, time.time()))
        self.checkpoints.sealed()
        with self._sealed:
            self._sealed.notify_all()


def ends_after(log: Path, position: Lsn, kept: int) -> list[tuple[Lsn, float]]:
    """Where steps with changes end after `position`, and when each was sealed: of the last `kept` steps."""
    ends: list[tuple[Lsn, float]] = []
    for seq in reversed(list_sequence(log)[-kept:]):
        try:
            step = read_manifest(log, seq)
        except (OSError, PenstockError):  # retention was here, or a lane will say what is wrong with it
            break
        if step.end <= position:
            break
        if step.tables:
            ends.append((step.end, datetime.fromisoformat(step.sealed_at).timestamp()))
    return ends[::-1]
