"""Writes numbered changes to Kafka as a lane does, in this process or in one of its own that is then killed.

The n-th change has its place in a log that is made up, so it is always the same, whoever writes it: whoever
goes on from a standing knows the next one.

    python -m tests.kafka_writer '{"config": {…}, "identity": …, "epoch": 1, "until": 40}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from penstock.config.streams import KafkaLaneConfig
from penstock.core.errors import StaleTermError, TargetError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.events import CREATE, Events
from penstock.streams.kafka.target import KafkaTarget
from penstock.streams.publisher import Standing, Term

STREAM = StreamId("public", "t")
KEYS = 7
STALE = 3  # what the process ends with if a later term has written
_STEP = 16


def position(number: int) -> Lsn:
    """Everything up to that change."""
    return Lsn(number * _STEP + 8)


def number_at(at: Lsn) -> int:
    return (at - 8) // _STEP


def changes(
    numbers: Iterable[int], route: str, values: Iterable[bytes | None] | None = None, chunk: str = ""
) -> Events:
    """Each a transaction of its own. Loaded rows, if `chunk` is given."""
    told = list(numbers)
    return Events(
        STREAM,
        route,
        np.array([0 if chunk else number * _STEP for number in told], np.int64),
        np.array(told if chunk else [0] * len(told), np.int64),
        np.full(len(told), CREATE, np.uint8),
        np.array(told, np.int64),
        pa.array([b"[%d]" % (number % KEYS) for number in told], pa.binary()),
        pa.array(values or [b"%d" % number for number in told], pa.binary()),
        chunk,
    )


def standing(number: int, epoch: int, **more: object) -> Standing:
    return Standing(position(number), Lsn(epoch), "system", 1, **more)  # type: ignore[arg-type]


def term(identity: str, epoch: int) -> Term:
    return Term(identity, Lsn(epoch), "system", 1)


def write_on(
    target: KafkaTarget, held: Standing | None, epoch: int, until: int, route: str, size: int
) -> None:
    """From where it stands, `size` changes with each commit; what fails for a while is tried again."""
    if held is None:
        target.commit(standing(0, epoch))
    first = number_at(held.position) + 1 if held is not None else 1
    while first <= until:
        last = min(first + size - 1, until)
        try:
            target.write(changes(range(first, last + 1), route))
            target.commit(standing(last, epoch))
        except TargetError:
            target.abort()
        else:
            first = last + 1


def main() -> int:
    told = json.loads(sys.argv[1])
    target = KafkaTarget(KafkaLaneConfig.model_validate(told["config"]))
    try:
        held = target.open(term(told["identity"], told["epoch"]))
        write_on(target, held, told["epoch"], told["until"], told["route"], told.get("size", 5))
    except StaleTermError:
        return STALE
    target.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
