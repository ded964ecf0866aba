"""One transactional producer: what may happen to it, in five words, and rows to records without detours.

A call to it ends in one of these ways. It is done. `AbortedError`: nothing of the transaction will ever be
seen, and the producer goes on. `LostError`: the producer is of no use any more, and whether its transaction
was committed is not known; only initialising another one with its id settles that. Which records the broker
refused is told by delivery reports, which cost nothing for those that arrive.

Measured: one call of `produce` per record with four headers, 350,000 a second; librdkafka's batch call takes
no headers, and is slower because it wants a dict for each.

A transaction costs three round trips: for its partitions, its records and its end. The coordinator writes the
markers of its end after it has answered, and refuses the next transaction until they are there; librdkafka
then asks again after 20 ms, whatever is set. So a transaction begins a moment after the last one has ended:
measured with small ones, one after the other, half were refused without that, one in eleven with.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.config.streams import KafkaLaneConfig
from penstock.streams.events import Events
from penstock.streams.kafka import settings
from penstock.streams.kafka.errors import code_of, is_of_record
from penstock.streams.kafka.patience import Patience
from penstock.streams.publisher import StoppedError

_PIECE_S = 0.5
_ABORT_S = 10.0
_SENDING = "sending events"
_COMMIT_S = 2 * settings.MESSAGE_S  # longer than records can be under way
_MARKERS_S = 0.002  # what the coordinator mostly takes for them
_PURGED = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})  # by an abort
_KINDS = [("penstock.op", bytes([letter])) for letter in range(256)]
Header = tuple[str, bytes | str | None]


class AbortedError(Exception):
    """The transaction was aborted, because of this error."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class LostError(Exception):
    """The producer is lost; its transaction may be committed or not."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that the broker refuses."""

    topic: str
    key: bytes | None
    value: bytes | None
    code: str


class TransactionalProducer:
    """Used by one thread. A transaction begins with the first record."""

    def __init__(self, config: KafkaLaneConfig, transactional_id: str, patience: Patience) -> None:
        self.failures: list[Failure] = []
        self._config = config
        self._id = transactional_id
        self._patience = patience
        self._producer: Producer | None = None
        self._in_transaction = False
        self._ended_at = 0.0
        self._failed_code: str | None = None

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def open(self, batch_bytes: int) -> None:
        """Shut out whoever used the id before; a transaction of theirs is ended first."""
        self.close()
        wanted = settings.producer_settings(self._config, self._id)
        wanted["error_cb"] = self._patience.hear
        wanted["batch.size"] = min(batch_bytes, int(wanted["batch.size"]))
        producer = settings.make(Producer, wanted, self._config)
        self._patience.ask("starting transactions", producer.init_transactions)
        self._producer = producer

    def send(self, events: Events, places: Sequence[int]) -> list[tuple[int, str]]:
        """Rows that the producer refuses, with the code. The others are under way."""
        self._begin()
        topic = events.route
        refused: list[tuple[int, str]] = []
        produce, report = self._open_producer().produce, self._report
        rows = zip(texts(events.key), texts(events.value), places, _headers(events), strict=True)
        for row, (key, value, place, headers) in enumerate(rows):
            try:
                produce(topic, value, key, place, report, None, 0, headers)
            except BufferError:
                self._make_room(lambda: produce(topic, value, key, place, report, None, 0, headers))  # noqa: B023
            except KafkaException as error:
                code = code_of(error)
                if not is_of_record(code):
                    self._failed(error)
                refused.append((row, code))
        self._poll()
        return refused

    def put(self, topic: str, key: bytes, value: bytes) -> None:
        """A record of our own, to the first partition."""
        self._begin()
        try:
            self._make_room(lambda: self._open_producer().produce(topic, value, key, 0, self._report))
        except KafkaException as error:
            self._failed(error)

    def flush(self) -> None:
        """Wait until everything is at the broker."""
        producer = self._open_producer()
        under_way = len(producer)
        try:
            while left := producer.flush(_PIECE_S):
                self._patience.waits(_SENDING, is_moving=left < under_way)
                under_way = left
        except KafkaException as error:
            self._lose(error)
        if self._failed_code is not None:
            code = self._failed_code
            self.abort()
            raise AbortedError(code)
        self._patience.answered()

    def commit(self) -> None:
        """Everything since it began, at once."""
        if not self._in_transaction:
            raise LostError("_STATE")
        producer, deadline = self._open_producer(), time.monotonic() + _COMMIT_S
        under_way = len(producer)
        while True:
            try:
                producer.commit_transaction(_PIECE_S)
            except KafkaException as error:
                told: KafkaError = error.args[0]
                if told.retriable() and time.monotonic() < deadline:
                    left = len(producer)
                    self._wait_in_doubt(code_of(error), is_moving=left < under_way)
                    under_way = left
                    continue
                with contextlib.suppress(KafkaException):  # the same again, if it is fatal
                    producer.poll(0)
                # Only if a record has failed is it certain that the broker was not asked to commit.
                if told.fatal() or self._failed_code is None:
                    self._lose(error)
                self._abort_for(self._failed_code or code_of(error), error)
            self._in_transaction = False
            self._ended_at = time.monotonic()
            self._patience.answered()
            return

    def abort(self) -> None:
        """Nothing of it will be seen. A producer that cannot do that is given up, which comes to the same.

        So is one of which a record has failed: its next transaction would miss that record's number.
        """
        if self._producer is None or not self._in_transaction:
            return
        self._in_transaction = False
        try:
            self._patience.ask("aborting a transaction", self._producer.abort_transaction, _ABORT_S)
        except StoppedError:
            self._give_up()
            raise
        except Exception:
            self._give_up()
        with contextlib.suppress(LostError):
            self._poll()
        if self._failed_code is not None:
            self._give_up()

    def close(self) -> None:
        """Without waiting for anything; what is open is aborted, if the broker answers at once."""
        producer, self._producer = self._producer, None
        if producer is not None and self._in_transaction:
            with contextlib.suppress(KafkaException):
                producer.abort_transaction(_PIECE_S)
        self._in_transaction = False

    def _give_up(self) -> None:
        self._producer, self._in_transaction = None, False

    def _open_producer(self) -> Producer:
        assert self._producer is not None
        return self._producer

    def _begin(self) -> None:
        if not self._in_transaction:
            self.failures, self._failed_code = [], None
            time.sleep(max(0.0, self._ended_at + _MARKERS_S - time.monotonic()))
            try:
                self._open_producer().begin_transaction()
            except KafkaException as error:
                self._lose(error)
            self._in_transaction = True

    def _make_room(self, produce: Callable[[], None]) -> None:
        while True:
            try:
                return produce()
            except BufferError:
                under_way = len(self._open_producer())
                self._poll(0.05)
                self._patience.waits(_SENDING, is_moving=len(self._open_producer()) < under_way)

    def _poll(self, within_s: float = 0.0) -> None:
        """Hear what became of records. The client tells of a fatal error here, whoever asks."""
        if self._producer is None:
            return
        try:
            self._producer.poll(within_s)
        except KafkaException as error:
            self._lose(error)

    def _wait_in_doubt(self, code: str, *, is_moving: bool) -> None:
        try:
            self._patience.waits("committing a transaction", code, is_moving=is_moving)
        except StoppedError:
            self._give_up()
            raise

    def _failed(self, error: KafkaException) -> None:
        """Before it was to be committed."""
        if error.args[0].fatal():
            self._lose(error)
        self._poll()
        self._abort_for(self._failed_code or code_of(error), error)

    def _abort_for(self, code: str, error: KafkaException) -> None:
        self.abort()
        raise AbortedError(code) from error

    def _lose(self, error: KafkaException) -> None:
        self._give_up()
        raise LostError(code_of(error)) from error

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is None or (code := code_of(error)) in _PURGED:
            return
        self._failed_code = self._failed_code or code
        if is_of_record(code):
            self.failures.append(Failure(message.topic() or "", message.key(), message.value(), code))


def _headers(events: Events) -> Iterator[list[Header]]:
    """Of each event; they share what is the same."""
    shared: list[Header] = [("penstock.stream", str(events.stream))]
    if events.chunk:
        shared.append(("penstock.chunk", events.chunk))
    xids: dict[int, Header] = {}
    columns = [column.tolist() for column in (events.tx, events.op, events.kind, events.xid)]
    for tx, op, kind, xid, own in zip(*columns, _own_headers(events), strict=True):
        told = xids.get(xid) or xids.setdefault(xid, ("penstock.xid", str(xid)))
        yield [("penstock.offset", f"{tx}_{op}"), told, _KINDS[kind], *shared, *own]


def _own_headers(events: Events) -> Iterator[Sequence[Header]]:
    if not events.headers:
        return repeat((), len(events))
    columns = ([(name, text) for text in column.to_pylist()] for name, column in events.headers.items())
    return ([header for header in row if header[1] is not None] for row in zip(*columns, strict=True))


def texts(column: pa.Array) -> list[bytes | None]:
    """A column's values, five times as fast as `to_pylist`: they are pieces of one."""
    if not len(column):
        return []
    _, offsets, values = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    start = int(ends[0])
    data = values.slice(start, int(ends[-1]) - start).to_pybytes() if values is not None else b""
    pieces: list[bytes | None] = [data[begin:end] for begin, end in pairwise((ends - start).tolist())]
    if column.null_count:
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            pieces[row] = None
    return pieces
