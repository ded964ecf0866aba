"""kill -9 of stream lanes of MySQL, MariaDB and MongoDB, with a writer that never stops.

As `test_streams` has it for Postgres: a lane is killed at a named place, the writer goes on, another process
of the lane recovers while it writes. The judge is the writer itself, which notes what it has committed: of
each order the changes that a consumer reads (of a topic, with `read_committed`) must be the last ones that
were made of it, each once and in their order, behind the row as it was before them.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.sources.mongodb.warming import warm_up as warm_up_mongodb
from penstock.sources.mysql.binlog.warming import warm_up as warm_up_mysql
from tests.chaos.matrix import ASKED, FULL, LEVEL, SEED, shared
from tests.chaos.stream_matrix import FOLLOWING, LOADING, cases
from tests.conftest import WAIT_S, wait_until
from tests.kafka_server import KafkaServer
from tests.mysql_server import MARIADB, MYSQL, MysqlServer
from tests.stream_orders import MongoOrders, MysqlOrders, Orders, OrdersLane
from tests.stream_reader import TOMBSTONE, Told, read_file, read_topics

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

SOURCES = ("mysql", "mongodb", "mariadb")
TARGETS = ("file", "kafka")
ORDERS = 300
#: What is made of an order: c, u or d, and its status then.
Made = tuple[str, str]


class Writer:
    """Notes what it has committed, of each order in the order in which it did."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._chance = random.Random(SEED)
        self._numbers = itertools.count(ORDERS)
        self._statuses = itertools.count()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.failures: list[BaseException] = []
        self.made: dict[int, list[Made]] = defaultdict(list)
        self.transactions = 0

    def begin(self) -> None:
        """The orders that are there first."""
        self._write({number: self._status() for number in range(ORDERS)}, {}, [])

    def start(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        assert self.failures == []

    def wait_for_more(self, transactions: int = 30) -> None:
        enough = self.transactions + transactions
        wait_until(lambda: bool(self.failures) or self.transactions >= enough, "the writer to go on", WAIT_S)

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.01):
                there = [number for number, made in self.made.items() if made[-1][0] != "d"]
                gone = [number for number, made in self.made.items() if made[-1][0] == "d"]
                chosen = self._chance.sample(there, 5)
                again = self._chance.sample(gone, min(1, len(gone)))
                self._write(
                    {number: self._status() for number in (next(self._numbers), *again)},
                    {number: self._status() for number in chosen[:4]},
                    chosen[4:],
                )
        except BaseException as error:
            self.failures.append(error)

    def _status(self) -> str:
        return f"status {next(self._statuses)}"

    def _write(self, inserts: dict[int, str], updates: dict[int, str], deletes: list[int]) -> None:
        self._orders.write({**inserts}, {**updates}, deletes)
        for number, status in inserts.items():
            self.made[number].append(("c", status))
        for number, status in updates.items():
            self.made[number].append(("u", status))
        for number in deletes:
            self.made[number].append(("d", ""))
        self.transactions += 1


class Struck:
    """A lane that is killed again and again while the writer works."""

    def __init__(self, shop: OrdersLane, writer: Writer, kafka: KafkaServer | None) -> None:
        self.shop, self.writer, self._kafka = shop, writer, kafka
        self._reports = itertools.count()

    def strike(self, rule: str) -> None:
        name = rule.partition("=")[0]
        report = self.shop.path.parent / f"report{next(self._reports)}"
        with self.shop.process(PENSTOCK_FAILPOINT=rule, PENSTOCK_FAILPOINT_REPORT=str(report)) as lane:
            may_be_left_out = FULL and not rule.endswith("@1")
            wait_until(
                lambda: lane.process.poll() is not None or (may_be_left_out and lane.state == "running"),
                f"{name} to strike",
                WAIT_S,
            )
            if may_be_left_out and lane.process.poll() is None:
                return  # the matrix asks for more times than some places have
        assert report.read_text().split() == [f"{name}=kill"], lane.said
        self.writer.wait_for_more()

    def compare(self, *, resumed: bool = False) -> int:
        """Let the writer rest, come level, and judge; how many changes there were."""
        self.writer.stop()
        try:
            with self.shop.process() as lane:
                wait_until(
                    lambda: lane.process.poll() is not None or self._is_level(),
                    "the lane to be level",
                    WAIT_S,
                )
                assert lane.process.poll() is None, lane.said
                return judge(self.shop.orders, self.writer, self._told(), resumed=resumed)
        finally:
            self.writer.start()

    def _is_level(self) -> bool:
        return _folded(self._told()) == self.shop.orders.rows()

    def _told(self) -> list[Told]:
        if self._kafka is None:
            return read_file(self.shop.out)
        table = self.shop.orders.table
        topic = f"{self.shop.orders.source['name']}.{table}"
        return read_topics(self._kafka, {topic: table}) if topic in self._kafka.topics() else []


def _number(told: Told) -> int:
    assert told.key is not None
    return int(str(told.key[0]))


def _folded(told: list[Told]) -> dict[int, str | None]:
    rows: dict[int, str | None] = {}
    for each in told:
        if each.op == "d":
            rows.pop(_number(each), None)
        elif each.op != TOMBSTONE:
            rows[_number(each)] = (each.after or {}).get("status", rows.get(_number(each)))
    return rows


def judge(orders: Orders, writer: Writer, told: list[Told], *, resumed: bool) -> int:
    """`resumed`: a load went on after a crash, so rows may be told again, and behind changes of theirs."""
    names = [(each.at, each.op == TOMBSTONE) for each in told if each.op != "r"]
    assert len(names) == len(set(names)), "a change is there twice"
    looks_up = isinstance(orders, MongoOrders)  # an update shows the document as it is when it is read
    by_key: dict[int, list[Told]] = defaultdict(list)
    for each in told:
        if each.op != TOMBSTONE:
            by_key[_number(each)].append(each)
    for number, made in writer.made.items():
        changes = [each for each in by_key[number] if each.op != "r"]
        expected = made[len(made) - len(changes) :]
        assert [each.op for each in changes] == [op for op, _ in expected], number
        places = [each.at for each in changes]
        assert places == sorted(places), number
        for each, (op, status) in zip(changes, expected, strict=True):
            if op == "c" or (op == "u" and not looks_up):
                assert (each.after or {})["status"] == status, number
        loaded = [each for each in by_key[number] if each.op == "r"]
        if not resumed:
            before = made[: len(made) - len(changes)]
            there = [status for op, status in before[-1:] if op != "d"]
            assert [(each.after or {})["status"] for each in loaded] == there, number
            assert by_key[number][: len(loaded)] == loaded, "the row goes first"
    assert set(by_key) <= set(writer.made)
    assert _folded(told) == orders.rows()
    return len(names)


@contextmanager
def orders_of(name: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[Orders]:
    if name == "mongodb":
        warm_up_mongodb()
        yield MongoOrders(request.getfixturevalue("mongo"))
        return
    warm_up_mysql()
    with MysqlServer(directory / name, MYSQL if name == "mysql" else MARIADB) as server:
        yield MysqlOrders(server)


@contextmanager
def lane_of(source: str, target: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[Struck]:
    with orders_of(source, request, directory) as orders:
        kafka: KafkaServer | None = request.getfixturevalue("kafka") if target == "kafka" else None
        section = {} if kafka is None else {"bootstrap": kafka.bootstrap, "partitions": 2}
        shop = OrdersLane(directory, orders, target, section)
        writer = Writer(orders)
        writer.begin()
        writer.start()
        try:
            with shop.captured():
                yield Struck(shop, writer, kafka)
        finally:
            writer.stop()


def sources() -> list[tuple[str, str]]:
    """By `short` MySQL into a file; by `once` each source, with a part of the pairs in `rest`."""
    if ASKED == "short":
        return [("mysql", "file")]
    return list(shared([(source, target) for source in SOURCES for target in TARGETS]))


@pytest.mark.parametrize(("source", "target"), sources())
def test_killed_while_following_each_change_is_there_once(
    source: str, target: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """One after the other in one pipeline, so that each crash meets the traces of those before it."""
    with lane_of(source, target, request, tmp_path) as struck:
        assert struck.compare() >= 0
        rules = [rule for where, rule in cases(FOLLOWING, LEVEL, (target,)) if where == target]
        for rule in rules:
            struck.strike(rule)
        changes = struck.compare()
        assert changes > 0
        print(f"{source} to {target}: struck {len(rules)} times, {changes} events of changes, none twice")


@pytest.mark.skipif(ASKED == "short", reason="only by make chaos-once and make chaos")
@pytest.mark.parametrize(("source", "target"), sources())
def test_killed_while_loading_each_change_is_there_once(
    source: str, target: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with lane_of(source, target, request, tmp_path) as struck:
        for where, rule in cases(LOADING, LEVEL, (target,)):
            assert where == target
            struck.strike(rule)
        struck.compare(resumed=True)
