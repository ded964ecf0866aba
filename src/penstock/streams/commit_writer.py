"""One commit: what is in it, and how it gets to the target however often that fails.

What a commit holds is kept, to be written anew after a failure. Of a source transaction that is larger than
`kept_bytes` only the names of events are kept (9 bytes each); should the target fail or refuse an event then,
the commit is given up with a `TargetError`, and the lane reads it once more. What was refused is written down
before, so the next time it is a dead letter from the start.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import structlog

from penstock import failpoints
from penstock.core.errors import TargetError
from penstock.streams.blocked_keys import BEHIND_ANOTHER, BlockedKeys, Why
from penstock.streams.dead_letters import Dead, DeadLetters
from penstock.streams.events import Events, Int64s
from penstock.streams.letter_names import Names, names_of
from penstock.streams.publish_measures import PublishMeasures
from penstock.streams.publisher import Standing, StoppedError
from penstock.streams.replays import Portion
from penstock.streams.retry import RetryPolicy
from penstock.streams.target import CommitTarget, Refused, RefusedEventsError
from penstock.streams.trouble import TroubleMet

_logger = structlog.get_logger("penstock.streams")


@dataclass(frozen=True, slots=True)
class _Part:
    """What one `write` gets: rows of a batch, and their places in it; or, of a large commit, their names."""

    events: Events
    batch: int
    places: Int64s


@dataclass(slots=True)
class _Open:
    parts: list[_Part] = field(default_factory=list)
    names: list[Names] = field(default_factory=list)  # of a commit too large to be kept
    written: int = 0
    dead: list[Dead] = field(default_factory=list)
    dead_written: int = 0
    count: int = 0
    bytes: int = 0


class CommitWriter:
    """For one thread. `stopped` ends all waiting, with a `StoppedError`."""

    def __init__(
        self,
        target: CommitTarget,
        letters: DeadLetters,
        retry: RetryPolicy,
        kept_bytes: int,
        measures: PublishMeasures,
        trouble: TroubleMet,
        stopped: threading.Event,
    ) -> None:
        self._target = target
        self._letters = letters
        self._retry = retry
        self._kept_bytes = kept_bytes
        self._measures = measures
        self._trouble = trouble
        self._stopped = stopped
        self._open = _Open()

    @property
    def count(self) -> int:
        """Events in the open commit, dead letters too."""
        return self._open.count

    @property
    def bytes(self) -> int:
        return self._open.bytes

    def write(self, batch: int, parts: Sequence[Events]) -> None:
        """Part of the next commit: sent, or a dead letter."""
        place = 0
        for events in parts:
            self._letters.saw(len(events))
            part = _Part(events, batch, np.arange(place, place + len(events)))
            place += len(events)
            self._open.count += len(events)
            self._open.bytes += events.bytes
            if fallen := self._letters.sift(events):
                part = self._without(part, fallen)
            if len(part.events):
                self._open.parts.append(part)
        self._until_done(None)
        if self._open.bytes > self._kept_bytes:
            self._write_letters()
            self._open.dead, self._open.dead_written = [], 0
            self._open.names += [names_of(part.events) for part in self._open.parts]
            self._open.parts, self._open.written = [], 0

    def commit(self, standing: Standing) -> None:
        with self._measures.publishing(self._open.count):
            self._until_done(standing)
        self._open = _Open()

    def replay(self, portion: Portion, standing: Standing) -> bool:
        """Send letters, in a commit of their own; whether any was taken."""
        assert not self._open.count, "a commit is open"
        failures = 0
        while portion.letters:
            self._check_stopped()
            parts = list(portion.parts())
            try:
                for events, _ in parts:
                    self._target.write(events)
                self._target.commit(replace(standing, letters=self._letters.mark))
            except RefusedEventsError as error:
                self._abort()
                refused = {
                    parts[each.part][1][each.row]: (each.code, each.reason, 1) for each in error.refused
                }
                portion = self._letters.replays.keep(portion, refused)
            except TargetError as error:
                failures += 1
                self._wait(error, failures)
                self._abort()
            else:
                failpoints.reach("streams.letter_replayed")
                self._trouble.over()
                self._letters.replays.done(portion)
                return True
        return False

    def _until_done(self, standing: Standing | None) -> None:
        """Write what is not written; with a standing, commit. Returns when it has happened."""
        opened, failures = self._open, 0
        while True:
            self._check_stopped()
            try:
                while opened.written < len(opened.parts):
                    self._target.write(opened.parts[opened.written].events)
                    opened.written += 1
                if standing is not None:
                    self._write_letters()
                    self._target.commit(replace(standing, letters=self._letters.mark))
                self._trouble.over()
                return
            except RefusedEventsError as error:
                self._abort()
                self._take_out(error.refused)
            except TargetError as error:
                if opened.names:
                    self._abort()
                    raise
                failures += 1
                self._wait(error, failures)
                self._abort()

    def _write_letters(self) -> None:
        opened = self._open
        if opened.dead_written < len(opened.dead):
            self._letters.write(opened.dead[opened.dead_written :])
            opened.dead_written = len(opened.dead)
            failpoints.reach("streams.letter_written")

    def _take_out(self, refused: Sequence[Refused]) -> None:
        """Refused events, and what is behind them in their keys, become dead letters of this commit."""
        by_part: defaultdict[int, dict[int, Why]] = defaultdict(dict)
        for each in refused:
            by_part[each.part][each.row] = (each.code, each.reason, 1)
        if self._open.names:
            self._give_up(by_part)
        behind = BlockedKeys(keeps_order=self._letters.blocked.keeps_order)
        for number in range(min(by_part), len(self._open.parts)):
            part = self._open.parts[number]
            fallen = dict.fromkeys(behind.rows(part.events).tolist(), BEHIND_ANOTHER) | by_part[number]
            if fallen := behind.fall(part.events, fallen):
                keys = part.events.key.take(pa.array(list(fallen), pa.int64())).drop_null()
                self._letters.blocked.block(part.events.stream, keys.to_pylist())
                self._open.parts[number] = self._without(part, fallen)
        self._open.parts = [part for part in self._open.parts if len(part.events)]

    def _give_up(self, by_part: Mapping[int, Mapping[int, Why]]) -> None:
        names = self._open.names + [names_of(part.events) for part in self._open.parts]
        self._letters.know(
            {names[part].name(row): why for part, rows in by_part.items() for row, why in rows.items()}
        )
        raise TargetError(
            "The target refused events of a transaction that is too large to be kept.",
            remedy="Nothing: it is read once more, and they become dead letters.",
        )

    def _without(self, part: _Part, fallen: Mapping[int, Why]) -> _Part:
        rows = np.fromiter(fallen, np.intp, len(fallen))
        batches = np.full(len(rows), part.batch)
        self._open.dead.append(
            Dead(part.events.take(rows), list(fallen.values()), batches, part.places[rows])
        )
        kept = np.delete(np.arange(len(part.events)), rows)
        return _Part(part.events.take(kept), part.batch, part.places[kept])

    def _abort(self) -> None:
        """What was written is written anew: also if forgetting it fails, until it does not."""
        self._open.written = 0
        failures = 0
        while True:
            try:
                self._target.abort()
                return
            except TargetError as error:
                failures += 1
                self._wait(error, failures)

    def _wait(self, error: TargetError, failures: int) -> None:
        self._measures.retried()
        self._trouble.met(error.message)
        pause_s = self._retry.pause_s(failures)
        _logger.warning("the target takes nothing, trying again", failures=failures, said=error.message)
        self._stopped.wait(pause_s)
        self._check_stopped()

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise StoppedError
