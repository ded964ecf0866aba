"""Kafka as a target: events and standing in one transaction, written by one term at a time.

Why each event is there exactly once, for whoever reads `read_committed`. `transactional.id` says which lane
and bucket, never who: initialising it ends what an earlier producer of that id has begun and shuts it out, so
two terms cannot write at the same time. Only then the positions topic is read, and nobody can change any more
what it says. The standing found there was committed together with all events up to it, and with none behind
it: going on from there neither misses nor doubles one.

Which term is the later one is said by the epochs, in the same topic (`writers`). A commit whose answer is
lost is found out: other producers are initialised, which completes or ends the transaction, and the positions
topic tells which of the two. With more than one bucket, see `marks`.

Every error leaves the transaction aborted, on our side or by the next producer of its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from penstock.config.streams import KafkaLaneConfig
from penstock.core.errors import TargetError
from penstock.core.position import Lsn
from penstock.failpoints import reach
from penstock.streams.events import Events
from penstock.streams.kafka import positions
from penstock.streams.kafka.errors import NO_TOPIC, is_of_record, reason_of, target_error
from penstock.streams.kafka.group import Group, Suspect
from penstock.streams.kafka.marks import (
    WHOLE,
    Mark,
    bucket_key,
    load_key,
    load_record,
    loading,
    partitions_key,
    partitions_record,
)
from penstock.streams.kafka.partitions import partitions_of
from penstock.streams.kafka.patience import Patience
from penstock.streams.kafka.producer import AbortedError, LostError
from penstock.streams.kafka.topics import Topics, is_topic_name
from penstock.streams.kafka.writers import ALONE, Writers
from penstock.streams.publisher import Standing, Term
from penstock.streams.target import Refused, RefusedEventsError
from penstock.streams.trouble import TroubleMet

_ACCEPTED_ALONE = 20  # so many, each the largest of the rest, and the others are not the culprits


class KafkaTarget:
    """Used by one thread, but for `stop`. `trouble` is told what it waits for, while it does."""

    def __init__(
        self, config: KafkaLaneConfig, lane: str = "kafka", trouble: TroubleMet | None = None
    ) -> None:
        self._config = config
        self._lane = lane
        self._patience = Patience(trouble=trouble)
        self._topics = Topics(config, self._patience)
        self._open_writers: Writers | None = None
        self._commits = 0
        self._last: Standing | None = None
        self._loads: Mapping[str, Any] = {}  # as the topic's own records of them say
        self._ahead: dict[int, Lsn] = {}
        self._apart: frozenset[str] = frozenset()
        self._group = Group(config.buckets)

    def open(self, term: Term) -> Standing | None:
        self.close()
        self._topics.ensure_positions(positions.topic_name(term.identity), positions.CONFIG)
        self._open_writers = Writers(self._config, self._lane, term, self._patience)
        try:
            held = self._writers.open()
        except (AbortedError, LostError) as error:
            self._fail(error)
        self._last, self._commits = held.standing(), held.last_commit
        self._ahead, self._apart, self._loads = held.ahead(), held.apart(), held.loads
        self._topics.begin(held.partitions)
        self._new_group()
        return self._last

    def write(self, events: Events) -> None:
        part = self._group.add(events)
        try:
            # What is not kept cannot be begun again as a whole, and what comes last may ask for that.
            if self._group.is_divided and (self._group.is_full or not self._group.is_of_tail(events)):
                self._gather()
            else:
                self._send(part, events)
            if self._group.is_full:
                self._writers.flush()
                self._group.forget_arrived()
        except (AbortedError, LostError) as error:
            self._fail(error)
        except Exception:
            self.abort()
            raise

    def commit(self, standing: Standing) -> None:
        try:
            self._topics.look_again()
            if self._group.is_divided and not self._may_be_divided(standing):
                self._gather()
            self._commits += 1  # also of one that is tried again: it must be told from the one before
            marks = self._marks(standing)
            for bucket, (key, mark) in marks.items():
                self._writers[bucket].put(self._writers.positions, key, mark.to_bytes())
            for stream, load in self._changed_loads(standing).items():
                self._writers[ALONE].put(self._writers.positions, load_key(stream), load_record(load))
            for topic, count in self._topics.news.items():
                noted = partitions_record(count)
                self._writers[ALONE].put(self._writers.positions, partitions_key(topic), noted)
            reach("streams.kafka_sent")
            for bucket, (key, mark) in marks.items():
                self._commit_bucket(bucket, key, mark)
        except (AbortedError, LostError) as error:
            self._fail(error)
        except Exception:
            self.abort()
            raise
        self._ahead = self._ahead_of(standing)
        self._apart = self._apart if self._ahead else frozenset()
        self._last, self._loads = standing, standing.loads
        self._topics.news = {}
        self._new_group()

    def abort(self) -> None:
        self._new_group()
        self._writers.abort()

    def stop(self) -> None:
        """From any thread: calls that wait end with `StoppedError`."""
        self._patience.stop()

    def close(self) -> None:
        if self._open_writers is not None:
            self._open_writers.close()

    @property
    def _writers(self) -> Writers:
        assert self._open_writers is not None, "open it first"
        return self._open_writers

    def _new_group(self) -> None:
        behind = self._last.position if self._last is not None else None
        loads = self._last.loads if self._last is not None else {}
        self._group = Group(self._config.buckets, behind, self._ahead, self._apart | loading(loads))

    def _send(self, part: int, events: Events) -> None:
        if not len(events):
            return
        if not is_topic_name(events.route):
            why = reason_of(NO_TOPIC)
            raise RefusedEventsError([Refused(part, row, NO_TOPIC, why) for row in range(len(events))])
        places = partitions_of(events.key, self._topics.partitions(events.route))
        refused: list[Refused] = []
        for bucket, rows in self._group.shares(events):
            taken, numbers = (events, np.arange(len(events))) if rows is None else (events.take(rows), rows)
            for row, code in self._writers[bucket].send(taken, places[numbers].tolist()):
                refused.append(Refused(part, int(numbers[row]), code, reason_of(code)))
        if refused:
            raise RefusedEventsError(refused)

    def _gather(self) -> None:
        """Begin the group again as a whole commit."""
        assert self._group.is_complete, "what is divided is kept"
        self._writers.abort()
        self._group.gather()
        for part, events in self._group.parts.items():
            self._send(part, events)

    def _may_be_divided(self, standing: Standing) -> bool:
        """With nothing to send, one producer is enough. Loads move in whole commits alone."""
        return bool(len(self._group)) and not self._changed_loads(standing)

    def _changed_loads(self, standing: Standing) -> dict[str, Mapping[str, Any] | None]:
        """What a whole commit has to say of them; None of those that are not known any more."""
        gone = dict.fromkeys(self._loads.keys() - standing.loads.keys())
        changed = {name: load for name, load in standing.loads.items() if self._loads.get(name) != load}
        return {**gone, **changed}

    def _marks(self, standing: Standing) -> dict[int, tuple[bytes, Mark]]:
        number = self._commits
        if not self._group.is_divided:
            ahead = self._ahead_of(standing)
            return {ALONE: (WHOLE, Mark(number, standing, ahead, self._apart if ahead else frozenset()))}
        marks = {}
        for bucket in range(len(self._writers)):
            position = max(standing.position, self._ahead.get(bucket, Lsn(0)))
            far = replace(standing, position=position)
            marks[bucket] = bucket_key(bucket), Mark(number, far, apart=self._apart)
        return marks

    def _ahead_of(self, standing: Standing) -> dict[int, Lsn]:
        """Buckets that have more than that; none, if the lane was set back."""
        if self._last is not None and standing.position < self._last.position:
            return {}
        return {bucket: position for bucket, position in self._ahead.items() if position > standing.position}

    def _commit_bucket(self, bucket: int, key: bytes, mark: Mark) -> None:
        try:
            self._writers[bucket].commit()
        except LostError as error:
            self._writers.settle(key, mark.commit, error)
        self._writers.committed = mark.commit
        if self._group.is_divided:
            self._ahead[bucket] = mark.standing.position  # until all of them are there
            self._apart |= loading(mark.standing.loads)
        reach("streams.kafka_committed")

    def _fail(self, error: AbortedError | LostError) -> NoReturn:
        suspects, parts = self._group.find(self._writers.failures()), self._group.parts
        took_s = self._group.age_s
        self.abort()
        self._topics.forget()
        self._writers.heed(error)
        if suspects:
            refused = suspects if len(suspects) == 1 else self._refused_alone(suspects, parts)
            if refused:
                raise RefusedEventsError(
                    [Refused(found.part, found.row, found.code, reason_of(found.code)) for found in refused]
                ) from error
            self._writers.send_smaller_batches()
        if took_s > self._config.transaction_timeout.total_seconds():
            raise TargetError(
                f"Kafka: a transaction took longer than `transaction_timeout` ({error.code}).",
                remedy="Raise it, and the broker's transaction.max.timeout.ms, or write less at once.",
            ) from error
        raise target_error("sending events", error.code) from error

    def _refused_alone(self, suspects: Sequence[Suspect], parts: Mapping[int, Events]) -> Sequence[Suspect]:
        """Those that the broker refuses by themselves: it refuses whole batches, for one record's sake.

        The largest are tried first. If one is missed, because smaller ones are packed worse, batches become
        smaller until it is alone in one.
        """
        refused: list[Suspect] = []
        accepted = 0
        for suspect in sorted(suspects, key=lambda each: -each.bytes):
            events, producer = parts[suspect.part].slice(suspect.row, suspect.row + 1), self._writers[ALONE]
            places = partitions_of(events.key, self._topics.partitions(events.route))
            try:
                producer.send(events, places.tolist())
                producer.flush()
                accepted += 1
            except (AbortedError, LostError) as error:
                if not is_of_record(error.code):
                    raise target_error("sending events", error.code) from error
                refused.append(suspect)
            if accepted > _ACCEPTED_ALONE:
                break
        self.abort()
        return refused
