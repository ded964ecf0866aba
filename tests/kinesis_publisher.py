"""Publishes made-up transactions to a Kinesis stream from where it stands, here or in a process of its own.

Transaction n of a history is the same whoever makes it, so that a successor goes on where a publisher was
killed, and `History.expected` is what must be in the stream in the end: each event once, and those of a key
in their order.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock import durable
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.dead_letters import DeadLetters
from penstock.streams.events import READ, UPDATE, Batch, Events
from penstock.streams.inflight import QueueLimits
from penstock.streams.kinesis.errors import classify
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.target import KinesisTarget
from penstock.streams.lease import Lease
from penstock.streams.publisher import Standing, Term
from penstock.streams.record_publisher import RecordPublisher
from penstock.streams.retry import RetryPolicy
from tests.conftest import WAIT_S
from tests.kinesis_server import CREDENTIALS, REGION, Record

_STREAMS = (StreamId("public", "orders"), StreamId("public", "customers"))
_CHUNK = "load-1"
_STEP = 100
RETRY = RetryPolicy(max_attempts=10, least_s=0.01, most_s=0.2)


@dataclass(frozen=True, slots=True)
class History:
    """`loaded` rows first, then `transactions` of some changes each, over a few keys."""

    seed: int = 0
    transactions: int = 60
    keys: int = 40
    loaded: int = 0

    def batches(self, after: Standing) -> list[Batch]:
        batches = []
        if self.loaded and "next" in after.loads.get("load", {"next": 0}):
            batches.append(Batch(Lsn(_STEP), [self._load()], loads={"load": {"point": "0/64"}}))
        numbers = range(1, self.transactions + 1)
        return batches + [self._transaction(n) for n in numbers if self._end(n) > after.position]

    @property
    def end(self) -> Lsn:
        return self._end(self.transactions)

    def expected(self) -> Counter[tuple[str, str, str]]:
        expected: Counter[tuple[str, str, str]] = Counter()
        for n in range(1, self.transactions + 1):
            for events in self._transaction(n).events:
                ids = [f"{tx}_{op}" for tx, op in zip(events.tx, events.op, strict=True)]
                expected.update((str(events.stream), "", each) for each in ids)
        return expected

    def told_keys(self) -> list[bytes]:
        """Of all changes."""
        numbers = range(1, self.transactions + 1)
        parts = [events for n in numbers for events in self._transaction(n).events]
        return [key for events in parts for key in events.key.to_pylist()]

    def assert_told_once_and_in_order(self, records: list[Record]) -> None:
        names: Counter[tuple[str, str, str]] = Counter()
        keys: dict[tuple[str, str], list[tuple[int, ...]]] = defaultdict(list)
        loaded: Counter[str] = Counter()
        for record in records:
            told = record.value["penstock"]
            if told.get("chunk"):
                loaded[record.partition_key] += 1
                continue
            names[told["stream"], "", told["id"]] += 1
            keys[told["stream"], record.partition_key].append(tuple(map(int, told["id"].split("_"))))
        expected = self.expected()
        assert not expected - names, "events are missing"
        assert not names - expected, f"told more than once: {dict((names - expected).most_common(5))}"
        for key, order in keys.items():
            assert order == sorted(order), f"{key} is out of order"
        assert loaded == Counter({f"[{n}]": 1 for n in range(self.loaded)})

    @staticmethod
    def _end(number: int) -> Lsn:
        return Lsn((number + 1) * _STEP)

    def _transaction(self, number: int) -> Batch:
        chance = random.Random(f"{self.seed}/{number}")
        parts: list[Events] = []
        op = 0
        for stream in _STREAMS:
            count = chance.randint(0, 30)
            keys = [f"[{chance.randrange(self.keys)}]".encode() for _ in range(count)]
            parts.append(_events(stream, int(self._end(number)) - _STEP // 2, op, keys))
            op += count
        return Batch(self._end(number), [part for part in parts if len(part)])

    def _load(self) -> Events:
        keys = [f"[{n}]".encode() for n in range(self.loaded)]
        random.Random(os.urandom(8)).shuffle(keys)  # whoever reads a table again gets it in another order
        return _events(_STREAMS[0], 0, 0, keys, _CHUNK)


def _events(stream: StreamId, tx: int, op: int, keys: list[bytes], chunk: str = "") -> Events:
    count = len(keys)
    values = [json.dumps({"tx": tx, "padding": "x" * 50}).encode() for _ in keys]
    return Events(
        stream,
        str(stream),
        np.full(count, tx, np.int64),
        np.arange(op, op + count, dtype=np.int64),
        np.full(count, READ if chunk else UPDATE, np.uint8),
        np.zeros(count, np.int64),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        chunk,
    )


def settings(
    stream: str, endpoint: str, *, aggregation: bool = False, wait_s: float = 3.0
) -> KinesisSettings:
    return KinesisSettings(stream, REGION, endpoint, aggregation, "publish", wait_s, 4)


def publisher(target: KinesisTarget, directory: Path, note_every_s: float = 0.05) -> RecordPublisher:
    letters = DeadLetters(directory / "dead_letters.sqlite", "kinesis")
    queue = QueueLimits(count=2000, bytes=16 * 1024 * 1024)
    return RecordPublisher(target, letters, classify, RETRY, queue, note_every_s=note_every_s)


def term(epoch: int, lease: Lease | None = None) -> Term:
    return Term("shop", Lsn(epoch), "system", 1, lease or Lease())


@dataclass(frozen=True, slots=True)
class Leader:
    """A file that says whose term it is, as capture would; `asked` is there once another one has asked."""

    path: Path

    @property
    def asked(self) -> Path:
        return self.path.with_suffix(".asked")

    def lead(self, epoch: int) -> None:
        durable.replace(self.path, str(epoch).encode())

    def lease(self, epoch: int) -> Lease:
        def leads() -> bool:
            is_led = self.path.read_text() == str(epoch)
            if not is_led:
                self.asked.touch()
            return is_led

        return Lease(leads)


def publish(
    history: History,
    chosen: KinesisSettings,
    directory: Path,
    epoch: int,
    lease: Lease | None = None,
    paced: Callable[[Iterable[Batch]], Iterable[Batch]] = iter,
) -> Mapping[str, int]:
    """From where it stands to the end, as the leader of a term; what could not be proved."""
    target = KinesisTarget(chosen, directory)
    # With a lease, nothing but that is to keep it from sending: not that it learns of a later checkpoint.
    publishing = publisher(target, directory) if lease is None else publisher(target, directory, 600.0)
    try:
        standing = publishing.open(term(epoch, lease))
        standing = standing or Standing(Lsn(0), Lsn(epoch), "system", 1, {"load": {"next": 0}})
        publishing.begin(standing)
        for batch in paced(history.batches(standing)):
            publishing.publish(batch)
        assert publishing.drain(WAIT_S)
        assert publishing.standing.position == history.end
        return target.unproven
    finally:
        publishing.close()


def start(
    history: History,
    chosen: KinesisSettings,
    directory: Path,
    epoch: int,
    failpoint: str = "",
    leader: Leader | None = None,
) -> subprocess.Popen[bytes]:
    """The same in a process of its own, which can be killed."""
    told = {
        "history": asdict(history),
        "settings": asdict(chosen),
        "directory": str(directory),
        "epoch": epoch,
        "leader": None if leader is None else str(leader.path),
    }
    environment = os.environ | CREDENTIALS | {"PENSTOCK_FAILPOINT": failpoint}
    command = [sys.executable, "-m", "tests.kinesis_publisher", json.dumps(told)]
    return subprocess.Popen(command, env=environment, cwd=Path(__file__).parent.parent)


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    publish(
        History(**order["history"]),
        KinesisSettings(**order["settings"]),
        Path(order["directory"]),
        order["epoch"],
        None if order["leader"] is None else Leader(Path(order["leader"])).lease(order["epoch"]),
    )
