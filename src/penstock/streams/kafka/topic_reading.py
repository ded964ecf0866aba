"""Reads topics as a `read_committed` consumer does, from their beginnings to the ends that they have now.

The client library gives an object for each record; at most `_AT_ONCE` of them are there at a time, and
`_QUEUED_KIB` wait in the client. They become columns at once.

An end is what the broker has, committed or not. A transaction that is decided is told to its partitions a
moment later, so that records before an end may not be readable at once: they are waited for. One that nobody
has decided (its producer was killed) would be waited for until it times out; after `_OPEN_S` without anything
new it is left alone. It holds nothing that any standing speaks of.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.config.streams import KafkaLaneConfig
from penstock.streams.events import Bytes, Int64s
from penstock.streams.kafka import settings
from penstock.streams.kafka.errors import code_of, target_error
from penstock.streams.kafka.patience import ANSWER_S, Patience
from penstock.streams.kafka.topics import Topics

_AT_ONCE = 4_096
_QUEUED_KIB = 32_768
_PIECE_S = 0.1
_OPEN_S = 15.0
_ANSWER_S = 10.0
_NUMBER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Extent:
    """What a partition has: offsets from `low` on, up to `high`."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one topic and stream. `chunk`: of loaded rows, the load they are of; else empty."""

    topic: str
    stream: str
    chunk: str
    tx: Int64s
    op: Int64s
    kind: Bytes
    key: pa.BinaryArray
    value: pa.BinaryArray
    partition: Int64s
    offset: Int64s


class TopicReader:
    """`others`: records that are not this product's, by topic; complete when `read` has ended."""

    def __init__(self, config: KafkaLaneConfig, identity: str, patience: Patience) -> None:
        self.others: dict[str, int] = {}
        self._topics = Topics(config, patience)
        self._patience = patience
        wanted = settings.reader_settings(config, identity)
        wanted["queued.max.messages.kbytes"] = _QUEUED_KIB
        self._consumer = settings.make(Consumer, wanted, config)

    def close(self) -> None:
        self._consumer.close()

    def cleanup_policy(self, topic: str) -> str | None:
        """None: it may not be asked for."""
        return self._topics.cleanup_policy(topic)

    def extents(self, topic: str) -> dict[int, Extent]:
        """Of each partition; none, if there is no such topic."""
        return {number: self._extent(topic, number) for number in range(self._topics.count(topic) or 0)}

    def _extent(self, topic: str, number: int) -> Extent:
        def ask(_: float) -> tuple[int, int]:
            place = TopicPartition(topic, number)
            found: tuple[int, int] = self._consumer.get_watermark_offsets(place, _ANSWER_S, cached=False)
            return found

        return Extent(*self._patience.ask(f"asking for the ends of {topic}", ask, is_retried=True))

    def read(
        self, topic: str, extents: dict[int, Extent], *, counts_others: bool = True
    ) -> Iterator[list[Records]]:
        """All that is committed there, in the order of each partition."""
        left = {number: extent.high for number, extent in extents.items() if extent.high > extent.low}
        if not left:
            return
        places = [TopicPartition(topic, number, extents[number].low) for number in left]
        self._consumer.assign(places)
        self._consumer.resume(places)  # they may have been read before
        heard_at, at_end = time.monotonic(), set[int]()
        while left:
            self._patience.go_on()
            messages = self._consume(topic)
            records: list[Message] = []
            for message in messages:
                problem = message.error()
                number, offset = message.partition(), message.offset()
                assert number is not None
                assert offset is not None
                at_end.add(number)
                if problem is None:
                    records.append(message)
                    heard_at = time.monotonic()
                    offset += 1
                    at_end.discard(number)
                if offset >= left.get(number, offset + 1):
                    del left[number]
                    self._consumer.pause([TopicPartition(topic, number)])
            if records:
                yield self._columns(topic, records, counts_others=counts_others)
            waited_s = time.monotonic() - heard_at
            if waited_s > _OPEN_S and at_end.issuperset(left):
                return  # only open transactions are left
            if waited_s > _OPEN_S + ANSWER_S:
                raise target_error(f"reading the topic {topic}", "_TIMED_OUT")

    def _consume(self, topic: str) -> list[Message]:
        doing = f"reading the topic {topic}"
        try:
            messages = self._consumer.consume(_AT_ONCE, timeout=_PIECE_S)
        except KafkaException as error:
            raise target_error(doing, code_of(error)) from error
        for message in messages:
            problem = message.error()
            if (
                problem is not None
                and problem.code() != KafkaError._PARTITION_EOF
                and not problem.retriable()
            ):
                raise target_error(doing, code_of(problem))
        return [each for each in messages if each.error() is None or _is_end(each)]

    def _columns(self, topic: str, messages: Sequence[Message], *, counts_others: bool) -> list[Records]:
        rows: dict[tuple[str, str], list[tuple[int, int, int, Message]]] = {}
        for message in messages:
            headers = dict(message.headers() or ())
            named = _name(headers)
            if named is None:
                self.others[topic] = self.others.get(topic, 0) + counts_others
                continue
            stream, chunk, tx, op, kind = named
            rows.setdefault((stream, chunk), []).append((tx, op, kind, message))
        return [_records(topic, stream, chunk, found) for (stream, chunk), found in rows.items()]


def _records(topic: str, stream: str, chunk: str, rows: Sequence[tuple[int, int, int, Message]]) -> Records:
    tx, op, kind, messages = zip(*rows, strict=True)
    return Records(
        topic,
        stream,
        chunk,
        np.array(tx, np.int64),
        np.array(op, np.int64),
        np.array(kind, np.uint8),
        pa.array([each.key() for each in messages], pa.binary()),
        pa.array([each.value() for each in messages], pa.binary()),
        np.array([each.partition() for each in messages], np.int64),
        np.array([each.offset() for each in messages], np.int64),
    )


def _is_end(message: Message) -> bool:
    problem = message.error()
    return problem is not None and problem.code() == KafkaError._PARTITION_EOF


def _name(headers: Mapping[str, bytes | str | None]) -> tuple[str, str, int, int, int] | None:
    """Stream, chunk, tx, op and kind, if these are headers of ours."""
    texts = [headers.get(f"penstock.{name}") or b"" for name in ("offset", "op", "stream", "chunk")]
    offset, op, stream, chunk = (
        text.decode(errors="replace") if isinstance(text, bytes) else text for text in texts
    )
    tx, separator, index = offset.partition("_")
    if not (separator and tx.isdecimal() and index.isdecimal() and op and stream):
        return None
    if max(int(tx), int(index)) > _NUMBER_MAX:
        return None
    return stream, chunk, int(tx), int(index), ord(op[0]) & 0xFF
