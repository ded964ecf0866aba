"""Fills the open step from what is received, by the source's decoder, and seals it at transaction ends.

The one place where it is decided where a step ends (correctness 1, 2, 3, 7), given what every decoder
promises (`log_reading`):

- A transaction that begins below the log's end is in the log already and is left out.
- A part of a batch that ends inside a transaction is either written as it is (the step stays open)
  or cut after its last commit; what is behind the cut waits for the next step. So a step is only
  ever sealed with whole transactions.
- `position` is the end of the last commit or a later position that the source has said, and counts only
  outside a transaction. A target is reached when it has passed it *and* everything up to it is sealed.

Bounded, it works while there is a target, and what comes after waits for the next one. Following, it works
on everything that comes, and a step ends when a target is passed, when it is large or old enough, or when
the tail can hold no more that is not in the log. A position that moved without a change is sealed
seldom: an empty step is as durable as another.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from penstock.capture.log_reading import Batch, Decoder
from penstock.capture.step_sink import StepSink
from penstock.capture.tail import TailSink
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.log.writer import LogWriter

_EMPTY_STEP_EVERY_S = 30.0
_TARGETS_MAX = 64


@dataclass
class Counters:
    """Written by the builder's thread, read by any: each is one number. The last two are of this moment."""

    rows: int = 0
    bytes: int = 0
    transactions: int = 0
    steps_sealed: int = 0
    steps_with_changes: int = 0
    seal_seconds: float = 0.0
    unsealed_bytes: int = 0
    spilled_bytes: int = 0


class StepBuilder(Generic[Batch]):
    """Takes batches in the order they were received. Used from one thread only, but for `abort`."""

    def __init__(
        self,
        writer: LogWriter,
        decoder: Decoder[Batch],
        step_bytes_max: int,
        tail: TailSink | None = None,
        seal_every_s: float | None = None,
    ) -> None:
        self.counters = Counters()
        self.position = writer.end
        self._place: Place | None = None  # of `position`, as the decoder said it
        self._writer = writer
        self._decoder = decoder
        self._sink = StepSink(writer, tail)
        self._step_bytes_max = step_bytes_max
        self._skip_below = writer.end
        self._received: deque[Batch] = deque()
        self._parts: Iterator[Batch] = iter(())
        self._rest: tuple[Batch, int] | None = None
        self._tail = tail
        self._seal_every_s = seal_every_s
        self._targets: list[Lsn] = []  # in order
        self._following = self._aborted = False
        self._sealed_at = time.monotonic()

    def demand(self, target: Lsn) -> bool:
        """Seal as soon as `target` is passed; bounded, read on to it. Whether it is reached."""
        if target <= self._writer.end:
            return True
        add_target(self._targets, target)
        return self._seal_if_due() or self._work()

    def follow(self) -> bool:
        """From now on work on everything that comes."""
        self._following = True
        return self._work()

    def take(self, batch: Batch) -> bool:
        """Add a batch; whether a target is reached. Bounded, batches past it wait for the next one."""
        self._received.append(batch)
        return self._work()

    def tick(self) -> bool:
        """Seal what has become old while nothing came; whether a target is reached."""
        return self._seal_if_due()

    @property
    def due_at(self) -> float | None:
        """When, on the monotonic clock, `tick` has something to seal; for any thread."""
        return self._old_at() if self._decoder.open_tx is None else None

    def _old_at(self) -> float | None:
        if not self._following:
            return None
        first = self._sink.first_row_at
        if first is not None and self._seal_every_s is not None:
            return first + self._seal_every_s
        return self._sealed_at + _EMPTY_STEP_EVERY_S if self.position > self._writer.end else None

    def abort(self) -> None:
        """Seal nothing more. May be called from any thread."""
        self._aborted = True

    def _work(self) -> bool:
        reached = False
        while (self._following or self._targets) and not self._aborted:
            waiting = self._next()
            if waiting is None:
                break
            part, first = waiting
            rest = self._decode(part, first)
            self._rest = None if rest is None else (part, rest)
            self._tell_tail()
            reached |= self._seal_if_due()
        self.counters.unsealed_bytes = self._writer.step_bytes
        self.counters.spilled_bytes = self._decoder.spilled_bytes
        return reached

    def _tell_tail(self) -> None:
        if self._tail is not None:
            self._tail.committed(self.position, self._decoder.open_tx)

    def _next(self) -> tuple[Batch, int] | None:
        """What comes next of that which has not been written, one part at a time."""
        if self._rest is not None:
            return self._rest
        while (part := next(self._parts, None)) is None:
            if not self._received:
                return None
            self._parts = self._decoder.parts(self._received.popleft())
        return part, 0

    def _must_seal(self, position: Lsn) -> bool:
        """Whether the step should end as soon as it may, if `position` is where that is."""
        if self._targets and position >= self._targets[0]:
            return True
        if self._writer.step_bytes >= self._step_bytes_max or (self._tail is not None and self._tail.full):
            return True
        return (old_at := self._old_at()) is not None and time.monotonic() >= old_at

    def _seal_if_due(self) -> bool:
        """Seal if it is time and no transaction is open; whether a target is reached by that."""
        if self._decoder.open_tx is not None or self._aborted or not self._must_seal(self.position):
            return False
        self._seal()
        passed = bisect.bisect_right(self._targets, self.position)
        del self._targets[:passed]
        return passed > 0

    def _decode(self, part: Batch, first: int) -> int | None:
        """The first message that is left for the next step; None if nothing is."""
        decoded = self._decoder.decode(part, first, self._skip_below, self._must_seal, self._sink)
        if decoded.position >= self.position:
            self.position, self._place = decoded.position, decoded.place
        self._writer.messages += decoded.messages
        self._writer.transactions += decoded.transactions
        self.counters.rows = self._sink.rows
        self.counters.transactions += decoded.transactions
        self.counters.bytes += decoded.bytes
        return decoded.rest

    def _seal(self) -> None:
        began = time.monotonic()
        manifest = self._writer.seal(self.position, self._place)
        self._sealed_at = time.monotonic()
        if manifest is None:
            return
        self._sink.first_row_at = None
        self.counters.unsealed_bytes = 0
        self._skip_below = manifest.end
        self.counters.steps_sealed += 1
        self.counters.steps_with_changes += bool(manifest.tables)
        self.counters.seal_seconds += self._sealed_at - began
        if self._tail is not None:
            self._tail.sealed(manifest.end)


def add_target(targets: list[Lsn], target: Lsn) -> None:
    """Keep it with the others, in order. Of too many the furthest stands for those just before it: a lane
    that asks again and again while nothing can be sealed costs no more than one that waits."""
    if target in targets:
        return
    bisect.insort(targets, target)
    if len(targets) > _TARGETS_MAX:
        del targets[-2]
