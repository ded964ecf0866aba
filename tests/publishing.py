"""What publishers are tested with: a history of transactions, and targets in memory that fail as a seed says.

A target's `store` outlives it, as a broker outlives its clients. `Crash` stands for the end of the process,
at any call, before or after it had its effect. Values that begin with `poison` are refused until the store
`is_mended`.
"""

from __future__ import annotations

import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from penstock.core.errors import StaleTermError, TargetError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams import letter_requests
from penstock.streams.dead_letters import DeadLetterPolicy, DeadLetters
from penstock.streams.error_classes import ErrorClass, ErrorTable
from penstock.streams.events import CREATE, DELETE, TOMBSTONE, Batch, Events, Int64s
from penstock.streams.letter_file import LetterFile
from penstock.streams.letter_names import LetterName, names_of
from penstock.streams.letter_requests import Action
from penstock.streams.publisher import Publisher, Standing, Term
from penstock.streams.replays import UNENCODABLE
from penstock.streams.target import RecordLimits, Refused, RefusedEventsError, Sent

STREAMS = (StreamId("public", "one"), StreamId("public", "two"))
Order = Literal["block_key", "skip"]
START = Standing(Lsn(100), Lsn(0), "source", 1)
CLASSES = ErrorTable({"poison": ErrorClass.POISON, "slow": ErrorClass.TARGET, "flaky": ErrorClass.RECORD})


@contextmanager
def in_memory() -> Iterator[Path]:
    """A directory whose files are durable at once, where the system has one: SQLite syncs a lot."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


class Crash(BaseException):
    """The process ends here."""


def term(epoch: int) -> Term:
    return Term("shop", Lsn(epoch), "source", 1)


def events(
    stream: StreamId,
    tx: int,
    rows: Sequence[tuple[int, int, bytes | None, bytes | None]],
    *,
    route: str = "",
    chunk: str = "",
    refused: Mapping[int, tuple[str, str]] | None = None,
) -> Events:
    """Of rows (op, kind, key, value)."""
    return Events(
        stream,
        route or str(stream),
        np.full(len(rows), tx, np.int64),
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.uint8),
        np.full(len(rows), tx, np.int64),
        pa.array([row[2] for row in rows], pa.binary()),
        pa.array([row[3] for row in rows], pa.binary()),
        chunk,
        refused or {},
    )


@dataclass(frozen=True)
class History:
    """Transactions, each with its end and events in their order."""

    transactions: Sequence[tuple[Lsn, Sequence[Events]]]

    @classmethod
    def drawn(cls, draw: random.Random, *, poison: float, keys: int) -> History:
        transactions: list[tuple[Lsn, Sequence[Events]]] = []
        tx = 100
        for _ in range(draw.randint(1, 25)):
            tx += 10
            op = 0
            parts = []
            for _ in range(draw.choice((0, 1, 1, 2, 3))):
                rows: list[tuple[int, int, bytes | None, bytes | None]] = []
                for _ in range(draw.randint(1, 6)):
                    key = None if draw.random() < 0.1 else b"[%d]" % draw.randrange(keys)
                    value = b"poison" if draw.random() < poison else b"value %d" % op
                    rows.append((op, DELETE if draw.random() < 0.2 else CREATE, key, value))
                    if rows[-1][1] == DELETE:
                        rows.append((op, TOMBSTONE, key, None))
                    op += 1
                refused = {}
                if draw.random() < poison:
                    refused = {draw.randrange(len(rows)): ("unencodable", "cannot be said")}
                parts.append(events(draw.choice(STREAMS), tx, rows, refused=refused))
            transactions.append((Lsn(tx + 5), parts))
        return cls(transactions)

    def batches(self, after: Lsn, draw: random.Random) -> Iterator[Batch]:
        """As a lane would hand them over: transactions together or in parts, differently each time."""
        pending: list[Events] = []
        for end, parts in self.transactions:
            if end <= after:
                continue
            pending += parts
            while len(pending) > 1 and draw.random() < 0.3:
                part = pending.pop(0)
                cut = draw.randint(0, len(part))
                pending.insert(0, part.slice(cut, len(part)))
                yield Batch(end, [part.slice(0, cut)], is_last=False)
            if end == self.transactions[-1][0] or draw.random() < 0.6:
                yield Batch(end, pending, loads={"seen": str(end)} if draw.random() < 0.5 else None)
                pending = []

    def named(self) -> dict[LetterName, tuple[Lsn, StreamId, bytes | None]]:
        """All events in their order: where they end, and their key."""
        return {
            names_of(part).name(row): (end, part.stream, part.key[row].as_py())
            for end, parts in self.transactions
            for part in parts
            for row in range(len(part))
        }

    @property
    def end(self) -> Lsn:
        return self.transactions[-1][0]


@dataclass
class Store:
    """What is at the target."""

    letters: Path
    history: History
    arrived: list[LetterName] = field(default_factory=list)
    standing: Standing | None = None
    epoch: int = 0
    is_mended: bool = False

    def dead(self) -> set[LetterName]:
        file = LetterFile(self.letters)
        try:
            return {tuple(row) for row in file.rows("SELECT stream, chunk, tx, name FROM letters")}
        finally:
            file.close()

    def has_passed(self, standing: Standing) -> None:
        """Nothing up to there may be missing both here and among the dead letters."""
        there = {*self.arrived, *self.dead()}
        missing = [
            name
            for name, (end, *_) in self.history.named().items()
            if end <= standing.position and name not in there
        ]
        assert not missing, missing

    def assert_in_order(self) -> None:
        named = self.history.named()
        place = {name: number for number, name in enumerate(named)}
        last: dict[tuple[StreamId, bytes], int] = {}
        for name in self.arrived:
            _, stream, key = named[name]
            if key is not None:
                assert last.get((stream, key), -1) < place[name], f"{name} came too late"
                last[stream, key] = place[name]


def _poison_rows(part: Events, store: Store) -> list[int]:
    if store.is_mended:
        return []
    return [row for row, value in enumerate(part.value.to_pylist()) if (value or b"").startswith(b"poison")]


class MemoryCommitTarget:
    """`trouble(place)` may raise, before and after each call."""

    def __init__(self, store: Store, trouble: Callable[[str], None], refuses_late: bool = True) -> None:
        self._store = store
        self._trouble = trouble
        self._refuses_late = refuses_late
        self._written: list[Events] = []
        self._epoch = 0

    def open(self, term: Term) -> Standing | None:
        assert term.epoch >= self._store.epoch
        self._store.epoch = self._epoch = term.epoch
        return self._store.standing

    def write(self, events: Events) -> None:
        assert len(events)
        self._trouble("write")
        self._written.append(events)
        if not self._refuses_late:
            self._refuse()

    def commit(self, standing: Standing) -> None:
        if self._epoch < self._store.epoch:
            raise StaleTermError("later")
        self._trouble("before commit")
        self._refuse()
        for part in self._written:
            names = names_of(part)
            self._store.arrived += [names.name(row) for row in range(len(part))]
        self._written = []
        self._store.standing = standing
        self._store.has_passed(standing)
        self._trouble("after commit")

    def abort(self) -> None:
        self._written = []
        self._trouble("abort")

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def _refuse(self) -> None:
        refused = [
            Refused(number, row, "poison", "is poison")
            for number, part in enumerate(self._written)
            for row in _poison_rows(part, self._store)
        ]
        if refused:
            raise RefusedEventsError(refused[:2])


class MemoryRecordTarget:
    """Calls come from several threads; `draw` decides over each what becomes of it."""

    def __init__(self, store: Store, draw: random.Random, troubles: float, crashes: float) -> None:
        self._store = store
        self._draw = draw
        self._troubles, self._crashes = troubles, crashes
        self._lock = threading.Lock()
        self._found: set[LetterName] = set()
        self._lost: set[LetterName] = set()
        self._under_way: Counter[tuple[StreamId, bytes]] = Counter()
        self.unproven: Mapping[str, int] = {}
        self.limits = RecordLimits(records=4, bytes=200, record_bytes=1000, calls=3)

    def open(self, term: Term) -> Standing | None:
        self._found = set(self._store.arrived)
        return self._store.standing

    def is_there(self, events: Events) -> Sequence[bool]:
        names = names_of(events)
        return [names.name(row) in self._found for row in range(len(events))]

    def sizes(self, events: Events) -> Int64s:
        values = zip(events.key.to_pylist(), events.value.to_pylist(), strict=True)
        return np.array([len(key or b"") + len(value or b"") for key, value in values], np.int64)

    def send(self, events: Events, last: int) -> Sent:
        assert 0 < len(events) <= self.limits.records
        keys = [(events.stream, key) for key in events.key.to_pylist() if key is not None]
        assert len(set(keys)) == len(keys), "a key twice in one call"
        with self._lock:
            assert not any(self._under_way[key] for key in keys), "a key in two calls at once"
            self._under_way.update(keys)
            self._crash()
            if self._happens():
                self._under_way.subtract(keys)
                raise TargetError("The target is away.")
            fate = self._fates(events)
        threading.Event().wait(self._draw.random() / 1000)
        with self._lock:
            names = names_of(events)
            self._store.arrived += [names.name(row) for row in range(len(events)) if row not in fate]
            self._crash()
            self._under_way.subtract(keys)
            if not self._happens():
                return Sent(fate)
            answered = self._draw.randrange(len(events))  # of the others the answer is lost
            unknown = frozenset(range(answered, len(events)))
            self._lost.update(names.name(row) for row in unknown)
            return Sent({row: why for row, why in fate.items() if row not in unknown}, unknown)

    def look_again(self, events: Events) -> None:
        with self._lock:
            if self._happens():
                raise TargetError("The target cannot be read.")
            self._found |= self._lost.intersection(self._store.arrived)

    def note(self, standing: Standing, last: int) -> None:
        with self._lock:
            self._crash()
            if self._happens():
                raise TargetError("The target cannot note it.")
            self._store.has_passed(standing)
            self._store.standing = standing
            self._crash()

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def _fates(self, events: Events) -> dict[int, tuple[str, str]]:
        fates = {
            row: ("slow" if self._store.is_mended else self._draw.choice(("slow", "flaky")), "")
            for row in range(len(events))
            if self._happens()
        }
        return fates | dict.fromkeys(_poison_rows(events, self._store), ("poison", "is poison"))

    def _happens(self) -> bool:
        return self._draw.random() < self._troubles

    def _crash(self) -> None:
        if self._draw.random() < self._crashes:
            raise Crash


@dataclass
class Trial:
    """A history that is published to its end, over as many terms as it takes; people ask for replays."""

    store: Store
    draw: random.Random
    publisher: Callable[[DeadLetters], Publisher]
    policy: DeadLetterPolicy
    epoch: int = 0

    def publish_all(self) -> None:
        """Until everything is at the target, or a dead letter; and check that it is, once and in order.

        A term that ends in the midst of a replay leaves letters in the file that have arrived: the next one
        takes them out.
        """
        self._ask("replay")
        while not self._term(self._publish):
            self.store.is_mended = self.draw.random() < 0.5
            self._ask("replay")
        self._until_served("replay")
        named, dead = self.store.history.named(), self.store.dead()
        assert Counter(self.store.arrived) == Counter(named.keys() - dead)
        self.assert_in_order()

    def replay_all(self) -> None:
        """What was poison is not any more: all of it arrives, but for what could not be encoded."""
        self.store.is_mended = True
        self._until_served("replay")
        named, dead = self.store.history.named(), self.store.dead()
        assert Counter(self.store.arrived) == Counter(named.keys() - dead)
        self.assert_in_order()
        file = LetterFile(self.store.letters)
        left = file.letters("true ORDER BY batch, place")
        file.close()
        stuck = {(letter.stream, letter.key) for letter in left if letter.code == UNENCODABLE}
        assert all((letter.stream, letter.key) in stuck for letter in left)

    def drop_all(self) -> None:
        self._until_served("drop")
        assert not self.store.dead()

    def assert_in_order(self) -> None:
        if self.policy.order == "block_key":
            self.store.assert_in_order()

    def _until_served(self, action: Action) -> None:
        number = self._ask(action)

        def serve(publisher: Publisher) -> bool:
            file = LetterFile(self.store.letters)
            try:
                while letter_requests.request(file, number).finished_at is None:
                    publisher.drain(0.001)
            finally:
                file.close()
            return True

        while not self._term(serve):
            pass

    def _ask(self, action: Action) -> int:
        file = LetterFile(self.store.letters)
        try:
            return letter_requests.ask(file, action)
        finally:
            file.close()

    def _publish(self, publisher: Publisher) -> bool:
        for batch in self.store.history.batches(publisher.standing.position, self.draw):
            publisher.publish(batch)
        return publisher.drain(30)

    def _term(self, work: Callable[[Publisher], bool]) -> bool:
        """Whether it was done; a crash ends the term. A `TargetError`: a large transaction is read again."""
        self.epoch += 1
        with DeadLetters(self.store.letters, "kafka", self.policy) as letters:
            publisher = self.publisher(letters)
            try:
                held = publisher.open(term(self.epoch))
                publisher.begin(replace(held or START, epoch=Lsn(self.epoch)))
                return work(publisher)
            except (Crash, TargetError):
                return False
            finally:
                publisher.close()
