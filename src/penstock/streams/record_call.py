"""One call of a target that takes records: what of it is at the target afterwards, and what is not.

What the target was found to hold already is not sent. A call without an answer is read back, for as long as
that takes: nothing of it is sent again on a guess.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import structlog

from penstock import failpoints
from penstock.core.errors import TargetError
from penstock.streams.blocked_keys import Rows
from penstock.streams.events import Events, Int64s
from penstock.streams.parcels import Parcel
from penstock.streams.publish_measures import PublishMeasures
from penstock.streams.publisher import StoppedError
from penstock.streams.retry import RetryPolicy
from penstock.streams.target import RecordTarget
from penstock.streams.trouble import TroubleMet

_NO_ROWS: Rows = np.empty(0, np.intp)
_logger = structlog.get_logger("penstock.streams")


@dataclass(frozen=True, slots=True)
class Answer:
    """`failed`: by row, code and message; `missing`: without an answer, and not there; all others are.

    `error`: nothing of it is there, but for what was there before (`found`, which were not sent). `places`:
    of each row, as `Sent` has it.
    """

    parcel: Parcel
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)
    missing: Rows = field(default_factory=_NO_ROWS.copy)
    error: BaseException | None = None
    found: Rows = field(default_factory=_NO_ROWS.copy)
    places: Int64s = field(default_factory=lambda: np.empty(0, np.int64))


class RecordCall:
    """Used by several threads at once."""

    def __init__(
        self,
        target: RecordTarget,
        retry: RetryPolicy,
        measures: PublishMeasures,
        trouble: TroubleMet,
        letter_trouble: TroubleMet,
        stopped: threading.Event,
    ) -> None:
        self._target = target
        self._retry = retry
        self._measures = measures
        self._trouble, self._letter_trouble = trouble, letter_trouble
        self._stopped = stopped

    def make(self, parcel: Parcel, last: int) -> Answer:
        found = _NO_ROWS
        try:
            if not parcel.is_replay:
                found = _true_rows(self._target.is_there(parcel.events))
            rows = np.delete(np.arange(len(parcel)), found)
            places = np.zeros(len(parcel), np.int64)
            if not len(rows):
                return Answer(parcel, found=found, places=places)
            events = parcel.events.take(rows) if len(found) else parcel.events
            self._check_stopped()
            with self._measures.publishing(len(rows)):
                sent = self._target.send(events, last)
            failed = {int(rows[row]): why for row, why in sent.failed.items()}
            if len(sent.places):
                places[rows] = sent.places
            if sent.unknown:
                missing = rows[self._missing(events, np.array(sorted(sent.unknown), np.intp), parcel)]
                return Answer(parcel, failed, missing, found=found, places=places)
            failpoints.reach("streams.record_sent")
            return Answer(parcel, failed, found=found, places=places)
        except BaseException as error:
            return Answer(parcel, error=error, found=found)

    def _missing(self, events: Events, unknown: Rows, parcel: Parcel) -> Rows:
        """Which of the rows that had no answer are not there: a target need not find any others."""
        lost = events.take(unknown)
        trouble = self._letter_trouble if parcel.is_replay else self._trouble
        failures = 0
        while True:
            try:
                self._target.look_again(lost)
                return np.delete(unknown, _true_rows(self._target.is_there(lost)))
            except TargetError as error:
                failures += 1
                self._measures.retried()
                trouble.met(error.message)
                _logger.warning("the target cannot be read back, trying again", said=error.message)
                self._stopped.wait(self._retry.pause_s(failures))
                self._check_stopped()

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise StoppedError


def _true_rows(flags: object) -> Rows:
    return np.flatnonzero(np.asarray(flags, np.bool_))
