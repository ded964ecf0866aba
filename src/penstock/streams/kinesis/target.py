"""Kinesis: records one by one, whose tail is read back, so that each event is there once.

Kinesis has neither transactions nor a way to shut a former leader out. What stands instead:

- Every record bears its event's name and the writer's term (`records`).
- Before anything is sent, the place in each shard is known behind which it will lie (`bounds`). A checkpoint
  in the state directory says up to where everything is in the stream, and from where the rest is to be read.
- A term that begins waits until requests of its predecessor have arrived or never will (`take_over_wait`),
  reads every shard from the checkpoint to its end, and holds the names of what is there (`is_there`). Since
  whatever is behind the standing lies behind the checkpoint's bounds, what is not found is not there.
- Before each put it must be proved that this term leads, not longer ago than the wait leaves room for
  (`streams.lease`). So a leader that was stopped and wakes up puts nothing more, but what was on its way.
- Who finds no checkpoint, or that of a term that ended in order, does not wait. So a term begins by a
  checkpoint that says it is at work, and what was proved before that one was durable counts for nothing: a
  successor that had read by then what was there before would put the same events.
- A call without an answer is treated in the same way: wait, read its shards back, send what is missing.
  Events that another call was answered for are not looked for then: they may lie before its bounds.
  Nothing is sent again by anybody below: botocore's own retries are not used.
- Checkpoints are of one state directory, and the stream says of which (`owner`).
- A term that ended in order, with nothing sent beyond the standing, says so: nothing is read or waited for.
- A lane that is set back by order sends all of it again: its checkpoint begins behind what is there already.

What cannot be known is counted, and `on_unproven` decides: a tail older than the stream keeps, a stream made
anew, a sequence number that is no longer a place, a record that arrived after its leader's successor had
read.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import structlog

from penstock.core.errors import StaleTermError, TargetError, UnprovenError
from penstock.failpoints import reach
from penstock.streams.events import Events, Int64s
from penstock.streams.kinesis import errors
from penstock.streams.kinesis.bounds import CLOCKS_DIFFER_S, BoundKeeper, Bounds, moment_ago
from penstock.streams.kinesis.checkpoints import Checkpoint, Checkpoints
from penstock.streams.kinesis.client import KinesisClient
from penstock.streams.kinesis.errors import CallError
from penstock.streams.kinesis.found import Found
from penstock.streams.kinesis.owner import claim
from penstock.streams.kinesis.records import RecordMaker, Records
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.shard_room import ShardRoom
from penstock.streams.kinesis.stream import KinesisStream, Put
from penstock.streams.kinesis.tail import Tail
from penstock.streams.publisher import Standing, StoppedError, Term
from penstock.streams.target import RecordLimits, Sent

_PROVE_EVERY_S = 0.1
_logger = structlog.get_logger("penstock.streams")
_Results: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class _Outcome:
    """What became of the events of one `send`."""

    failed: dict[int, tuple[str, str]] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    has_sent: bool = False

    def fail(self, rows: Sequence[int] | Int64s, code: str, message: str) -> None:
        for row in rows:
            self.failed[int(row)] = (code, message)

    def lose(self, rows: Int64s) -> None:
        """There was no answer for these, but for what is `failed`."""
        self.unknown.update(rows.tolist())
        self.has_sent = True

    def sent(self, places: Int64s) -> Sent:
        return Sent(self.failed, frozenset(self.unknown - self.failed.keys()), places)


class KinesisTarget:
    """A `RecordTarget`; checkpoints are in `directory`."""

    def __init__(self, settings: KinesisSettings, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._stopped = threading.Event()
        self._client = KinesisClient(settings)
        self._stream = KinesisStream(settings, self._client, self._stopped)
        self._room = ShardRoom(settings.per_shard_in_flight)
        self._found, self._looked = Found(), Found()
        self._unproven: Counter[str] = Counter()
        self._refreshing = threading.Lock()
        self._carries_found = False
        self._is_seen_at_work = False
        self._standing: Standing | None = None

    @property
    def limits(self) -> RecordLimits:
        return self._stream.limits

    @property
    def unproven(self) -> Mapping[str, int]:
        return dict(self._unproven)

    def open(self, term: Term) -> Standing | None:
        self._term = term
        # Names and epochs are those of one source: records of another one are others' records.
        identity = f"{term.identity}@{term.system_id}"
        self._maker = RecordMaker(identity, term.epoch)
        self._tail = Tail(self._client, self._settings.stream, identity, self._stopped)
        self._checkpoints = Checkpoints(self._directory, term.identity, self._settings.stream, term.system_id)
        checkpoint = self._checkpoints.newest(term.epoch, self._found)
        claim(
            self._client,
            self._settings.stream,
            term.identity,
            self._directory,
            self._stopped,
            is_ordered=term.is_ordered,
        )
        if checkpoint is not None and not checkpoint.is_closed:
            self._wait(self._settings.take_over_wait_s)
        self._stream.describe()
        if checkpoint is None:
            self._bounds = BoundKeeper(dict.fromkeys(self._stream.map.shards, moment_ago()))
            return None
        self._check_age(checkpoint)
        if not checkpoint.is_closed:
            self._read_back(checkpoint.shards)
        reach("streams.kinesis_read_back")
        listed = self._stream.map.shards
        self._bounds = BoundKeeper({shard: of for shard, of in checkpoint.shards.items() if shard in listed})
        self._carries_found = len(self._found) > 0
        if self._carries_found:
            self._checkpoints.write_found(self._found, term.epoch)
        taken_over = replace(checkpoint, is_closed=False, has_found=self._carries_found)
        self._keep(taken_over)
        self._checkpoints.forget_before(term.epoch)
        self._standing = checkpoint.standing
        return checkpoint.standing

    def is_there(self, events: Events) -> Sequence[bool]:
        is_there: Sequence[bool] = (self._found.holds(events) | self._looked.holds(events)).tolist()
        return is_there

    def sizes(self, events: Events) -> Int64s:
        return self._maker.sizes(events)

    def send(self, events: Events, last: int) -> Sent:
        self._refresh_if_outdated()
        records = self._maker.records(events)
        is_large = records.sizes > self._stream.limits.record_bytes
        outcome = _Outcome()
        outcome.fail(np.flatnonzero(is_large), errors.TOO_LARGE, "larger than the stream takes")
        for put in self._stream.puts(records, np.flatnonzero(~is_large)):
            if outcome.unknown:
                outcome.fail(put.rows, errors.NOT_SENT, "an earlier call was lost")
            else:
                self._send_part(put, records, last, outcome)
        return outcome.sent(self._stream.map.numbers(records.hashes))

    def look_again(self, events: Events) -> None:
        lost = self._bounds.lost()
        if lost is None or lost.lost_at is None:
            return
        self._wait(lost.lost_at + self._settings.take_over_wait_s - time.monotonic())
        self._refresh()
        hashes = self._maker.records(events).hashes
        self._tail.read(self._stream.map.touched(hashes), lost.bounds, self._looked)

    def note(self, standing: Standing, last: int) -> None:
        if self._standing is not None and standing.position < self._standing.position:
            self._begin_behind_all()
        bounds = self._bounds.done(last)
        if self._bounds.lost() is None:
            self._looked.clear()
        if last >= 0 and self._is_past(standing):
            self._carries_found = False
        reach("streams.kinesis_noting")
        self._write(standing, bounds)
        reach("streams.kinesis_noted")
        self._standing = standing

    def stop(self) -> None:
        self._stopped.set()
        self._room.stop()

    def close(self) -> None:
        self.stop()
        if self._standing is not None and self._bounds.is_idle:
            try:
                self._write(self._standing, self._bounds.done(-1), is_closed=True)
            except StaleTermError:
                _logger.info("a later leader writes to the stream already")
        self._client.close()

    def _write(self, standing: Standing, bounds: Bounds, *, is_closed: bool = False) -> None:
        self._keep(Checkpoint(standing, bounds, self._bounds.since, is_closed, self._carries_found))

    def _keep(self, checkpoint: Checkpoint) -> None:
        self._checkpoints.write(checkpoint, self._term.epoch)
        if not self._is_seen_at_work:
            self._term.lease.forget()
            self._is_seen_at_work = True

    def _is_past(self, standing: Standing) -> bool:
        """Whether nothing of what was found will be asked for any more (`load_state` has what loads say)."""
        is_loading = any("next" in load or "behind" in load for load in standing.loads.values())
        return not is_loading and standing.position > self._found.newest_change()

    def _send_part(self, put: Put, records: Records, last: int, outcome: _Outcome) -> None:
        try:
            self._put(put, records, last, outcome)
        except TargetError as error:
            if not outcome.has_sent:
                raise
            _logger.warning("part of a call was not sent", said=error.message)
            outcome.fail(put.rows, errors.NOT_SENT, "the target takes nothing at the moment")

    def _put(self, put: Put, records: Records, last: int, outcome: _Outcome) -> None:
        with self._room.taken(self._shards_of(records, put.rows)):
            self._require_lead()
            call = self._bounds.begin(last)
            reach("streams.kinesis_sending")
            try:
                results = self._stream.put(put, self._is_led).get("Records", ())
                if len(results) != len(put):
                    raise CallError("InvalidAnswer", is_lost=True)
            except TargetError:
                self._bounds.forget(call)
                raise
            except CallError as error:
                if error.is_lost:
                    self._bounds.lose(call)
                    outcome.lose(put.rows)
                    return
                self._bounds.forget(call)
                if error.code not in errors.INVALID_CODES:
                    raise error.as_target_error("PutRecords", self._settings.stream) from error
                if len(put.rows) == 1:
                    outcome.fail(put.rows, error.code, errors.reason_of(error.code, ""))
                    return
            else:
                reach("streams.kinesis_sent")
                outcome.has_sent = True
                try:
                    self._take(put, results, records, outcome)
                except TargetError:  # where an aggregate went is not known: as if there were no answer
                    self._bounds.lose(call)
                    outcome.lose(put.rows)
                return
        # Some record makes the whole call invalid: nothing was carried out, and the halves tell which.
        for half in np.array_split(put.rows, 2):
            for smaller in self._stream.puts(records, half):
                self._send_part(smaller, records, last, outcome)

    def _take(self, put: Put, results: _Results, records: Records, outcome: _Outcome) -> None:
        sequences: defaultdict[str, list[str]] = defaultdict(list)
        for record, result in enumerate(results):
            if code := result.get("ErrorCode"):
                reason = errors.reason_of(code, result.get("ErrorMessage") or "")
                outcome.fail(put.rows_of(record), code, reason)
            else:
                sequences[result["ShardId"]].append(result["SequenceNumber"])
        newest = {shard: max(map(int, texts)) for shard, texts in sequences.items()}
        self._bounds.heard(newest)
        if not newest.keys() <= self._stream.map.shards.keys():
            self._stream.outdate()
        if put.aggregates is not None:
            self._refresh_if_outdated()
            self._find_wrong_shards(put, results, records, outcome)

    def _find_wrong_shards(self, put: Put, results: _Results, records: Records, outcome: _Outcome) -> None:
        for record, result in enumerate(results):
            rows = put.rows_of(record)
            shard = self._stream.map.shards.get(result.get("ShardId", ""))
            if shard is not None and not result.get("ErrorCode"):
                elsewhere = rows[~shard.holds(records.hashes[rows])]
                outcome.fail(elsewhere, errors.WRONG_SHARD, "its shard was split or merged meanwhile")

    def _shards_of(self, records: Records, rows: Int64s) -> list[str]:
        shards = self._stream.map.open
        if not shards:
            return []
        return [shards[place].id for place in np.unique(self._stream.map.places(records.hashes[rows]))]

    def _refresh_if_outdated(self) -> None:
        if self._stream.is_outdated:
            self._refresh()

    def _refresh(self) -> None:
        with self._refreshing:
            self._stream.list_shards()
            self._bounds.meet(self._stream.map.shards)
            self._bounds.drop(self._stream.map.shards)

    def _begin_behind_all(self) -> None:
        """The lane was set back: all of it is sent again, and what is there now counts for nothing.

        What was found would be left out, behind events of its key that are not. So it is with whoever reads
        back later from bounds that are before it: an event whose answer was lost lies there also after a term
        that ended in order. No call is under way, and none of a predecessor's.
        """
        tails = self._tail.read(list(self._stream.map.shards.values()), self._bounds.done(-1), None)
        self._bounds.heard({tail.shard: tail.newest for tail in tails if tail.newest is not None})
        self._found.clear()
        self._carries_found = False

    def _read_back(self, bounds: Bounds) -> None:
        for tail in self._tail.read(list(self._stream.map.shards.values()), bounds, self._found):
            if tail.late:
                self._count("late", tail.late)
            if not tail.is_whole:
                self._count("place", 1)
        _logger.info("the tail is read back", events=len(self._found))

    def _check_age(self, checkpoint: Checkpoint) -> None:
        kept_until = checkpoint.written_at + self._stream.retention_s - CLOCKS_DIFFER_S
        created_at = self._stream.created_at or 0.0
        if not checkpoint.is_closed and kept_until < time.time():
            self._count("retention", 1)
        elif created_at > checkpoint.written_at + CLOCKS_DIFFER_S:
            self._count("made_anew", 1)

    def _count(self, reason: str, times: int) -> None:
        self._unproven[reason] += times
        said = UNPROVEN[reason]
        _logger.warning(UNPROVEN_SAID, why=said, times=times)
        if self._settings.on_unproven == "stop":
            raise UnprovenError(
                f"It cannot be proved what Kinesis stream {self._settings.stream} holds: {said}.",
                remedy="Set `lanes.kinesis.on_unproven: publish` to go on (events may then be there twice),"
                " or begin anew with `penstock resync --lane kinesis --yes`.",
            )

    def _require_lead(self) -> None:
        """Returns when it is proved; if another leads, the lane ends the term meanwhile."""
        while not self._term.lease.prove(self._settings.lease_s):
            self._wait(_PROVE_EVERY_S)

    def _is_led(self) -> bool:
        return self._term.lease.is_proved(self._settings.lease_s)

    def _wait(self, seconds: float) -> None:
        if self._stopped.wait(max(0.0, seconds)):
            raise StoppedError


UNPROVEN_SAID = "what the stream holds cannot be proved"
#: Why something cannot be proved, by the name it is counted under.
UNPROVEN: Mapping[str, str] = {
    "retention": "what was sent last is older than the stream keeps",
    "made_anew": "the stream was made anew since",
    "place": "a sequence number of the checkpoint is no place in its shard",
    "late": "records of a former leader arrived after its successor had read the tail",
}
