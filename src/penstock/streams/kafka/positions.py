"""The compacted topic in which a lane's marks are: one partition, created when the lane first starts.

It is read after the producers are initialised. Until then an earlier term's transaction may be open; from
then on it is committed or aborted, its end is in the log, and nobody can add to it. So what is found up to
the end, by a `read_committed` reader, is what this lane has at the target, and stays so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.config.streams import KafkaLaneConfig
from penstock.streams.kafka import settings
from penstock.streams.kafka.errors import code_of, target_error
from penstock.streams.kafka.marks import Held, read_records
from penstock.streams.kafka.patience import ANSWER_S, Patience

#: Small segments: only those that are full are compacted, and a start reads what is left.
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": "-1",
}
_AT_ONCE = 1_000
_PIECE_S = 0.02  # a call waits for that many messages so long
_DOING = "reading the positions topic"


def topic_name(identity: str) -> str:
    return f"{identity}.penstock.positions"


def read(config: KafkaLaneConfig, identity: str, patience: Patience) -> Held:
    consumer = settings.make(Consumer, settings.reader_settings(config, identity), config)
    try:
        consumer.assign([TopicPartition(topic_name(identity), 0, 0)])
        return read_records(_records(consumer, patience))
    finally:
        consumer.close()


def _records(consumer: Consumer, patience: Patience) -> Iterator[tuple[bytes | None, bytes | None]]:
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        try:
            messages = consumer.consume(_AT_ONCE, timeout=_PIECE_S)
        except KafkaException as error:
            raise target_error(_DOING, code_of(error)) from error
        for message in messages:
            problem = message.error()
            if problem is None:
                yield message.key(), message.value()
            elif problem.code() == KafkaError._PARTITION_EOF:
                patience.answered()
                return
            elif not problem.retriable():
                raise target_error(_DOING, code_of(problem))
        patience.waits(_DOING, is_moving=bool(messages))
        if messages:
            deadline = time.monotonic() + ANSWER_S
    raise target_error(_DOING, "_TIMED_OUT")
