"""The producers of one term: shut others out, replaced when they are lost, ended by a later term.

An id is initialised only after the positions topic was looked at and has no higher epoch, so an instance that
wakes up late does not shut out its successor in vain; and it is looked at again afterwards, since only then
nobody can add to it. `claim` writes our own epoch before anything else is written, so that whoever we shut
out finds it there.

Who reads committed records sees nothing behind the first transaction that is open, be it of another bucket.
So whether one bucket's commit has happened is asked after all ids were initialised: that ends what they have
open, and returns when the ends are in the log. Buckets that were still to be committed are written anew.
"""

from __future__ import annotations

import contextlib
import itertools
import time

import structlog

from penstock.config.streams import KafkaLaneConfig
from penstock.core.backoff import pause_s
from penstock.core.errors import ConfigError, StaleTermError, TargetError
from penstock.streams.kafka import positions
from penstock.streams.kafka.errors import FENCED
from penstock.streams.kafka.marks import TERM, Held, term_record
from penstock.streams.kafka.patience import Patience
from penstock.streams.kafka.producer import AbortedError, Failure, LostError, TransactionalProducer
from penstock.streams.kafka.settings import BATCH_BYTES
from penstock.streams.publisher import Term

ALONE = 0  # the bucket that writes for all of them
_LATER_TERM_S = 2.0  # so long a term that has shut us out may take to say which one it is
_LOOK_S = 0.1
_RETRY_S, _RETRY_MOST_S = 0.1, 10.0
_logger = structlog.get_logger("penstock")


class Writers:
    """One per bucket. Used by one thread."""

    def __init__(self, config: KafkaLaneConfig, lane: str, term: Term, patience: Patience) -> None:
        self.positions = positions.topic_name(term.identity)
        self._config = config
        self._term = term
        self._patience = patience
        self.committed = 0  # the last commit that is known to have happened
        self._batch_bytes = BATCH_BYTES  # until a topic takes less
        ids = [f"{term.identity}.{lane}.{bucket}" for bucket in range(config.buckets)]
        self._producers = [TransactionalProducer(config, each, patience) for each in ids]

    def __len__(self) -> int:
        return len(self._producers)

    def open(self) -> Held:
        """What the target holds, which nobody else can change from now on."""
        held = self._reopen(*self._producers)
        self.committed = held.last_commit
        if held.buckets is None or (held.epoch, held.system_id) != (self._term.epoch, self._term.system_id):
            self._claim()
        return held

    def __getitem__(self, bucket: int) -> TransactionalProducer:
        """Another one, if it was lost."""
        producer = self._producers[bucket]
        if not producer.is_open and self._reopen(producer).last_commit > self.committed:
            raise StaleTermError(
                "Kafka holds a commit of this lane that was taken for lost.",
                remedy="Nothing is to be done: the lane goes on from there.",
            )
        return producer

    def send_smaller_batches(self) -> None:
        self._batch_bytes = max(self._batch_bytes // 2, 1)
        self.close()

    def flush(self) -> None:
        for producer in self._producers:
            if producer.is_open:
                producer.flush()

    def failures(self) -> list[Failure]:
        return [failure for producer in self._producers for failure in producer.failures]

    def settle(self, key: bytes, commit: int, error: LostError) -> None:
        """Find out whether a commit whose answer is lost has happened: an `AbortedError` if not.

        Whatever other buckets have open is aborted.
        """
        self.heed(error)
        is_committed = self._found_out().commit_of(key) == commit
        _logger.info("the answer to a commit was lost", committed=is_committed, code=error.code)
        if not is_committed:
            raise AbortedError(error.code) from error

    def heed(self, error: AbortedError | LostError) -> None:
        """A `StaleTermError` if this was because of a later term, which says so at once."""
        deadline = time.monotonic() + (_LATER_TERM_S if error.code in FENCED else 0)
        while time.monotonic() < deadline:
            with contextlib.suppress(TargetError):
                self._read()
            self._patience.pause(_LOOK_S)

    def abort(self) -> None:
        for producer in self._producers:
            producer.abort()

    def close(self) -> None:
        for producer in self._producers:
            producer.close()

    def _read(self) -> Held:
        held = positions.read(self._config, self._term.identity, self._patience)
        if held.system_id == self._term.system_id and held.epoch > self._term.epoch:
            raise StaleTermError(
                "Kafka: a later leader writes for this lane.",
                detail=f"Its epoch is {held.epoch}, ours {self._term.epoch}.",
                remedy="Nothing is to be done: this instance stands by.",
            )
        if held.buckets not in (None, len(self)):
            raise ConfigError(
                f"The lane was created with {held.buckets} buckets, and `buckets` is {len(self)} now.",
                remedy=f"Set `buckets: {held.buckets}`, or begin anew under another `identity`.",
            )
        return held

    def _reopen(self, *producers: TransactionalProducer) -> Held:
        self._read()
        for producer in producers:
            producer.open(self._batch_bytes)
        return self._read()

    def _found_out(self) -> Held:
        for tries in itertools.count():
            try:
                return self._reopen(*self._producers)
            except TargetError as error:
                self._patience.trouble.met(error.message)
                _logger.warning("whether a commit has happened is not known yet", error=error.message)
                self._patience.pause(pause_s(tries, _RETRY_S, _RETRY_MOST_S))
        raise AssertionError

    def _claim(self) -> None:
        producer = self._producers[ALONE]
        producer.put(self.positions, TERM, term_record(self._term.epoch, self._term.system_id, len(self)))
        producer.commit()
