"""Capture's service over Arrow Flight: who may read, what a reader is given, what one can do to others."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.capture import service as capture_service
from penstock.capture.remote import RemoteCapture
from penstock.capture.service import CaptureService
from penstock.capture.spec import ServiceSpec
from penstock.capture.tail import Tail
from penstock.capture.tail_items import Origin, Transactions
from penstock.capture.tail_reader import TailReader
from penstock.core.errors import (
    CaptureAwayError,
    ConfigError,
    PositionGoneError,
    SourceBusyError,
    StateError,
)
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.reader import ChangeLog, read_rows
from penstock.log.retention import apply_retention
from tests.capture_specs import capture_spec
from tests.conftest import Database, wait_until
from tests.unit.test_tail import MIB, START, TABLES, Feed, add, new_tail, offsets_of, rows

pytestmark = pytest.mark.integration

TOKEN = "a token of letters"


@contextmanager
def serving(
    tail: Tail | None, address: str, answer: Callable[[str, dict[str, Any]], Any] | None = None, **guard: Any
) -> Iterator[CaptureService]:
    service = CaptureService(address, answer or (lambda request, arguments: {}), lambda: tail, **guard)
    service.start()
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("s")
    directory.chmod(0o700)
    return f"grpc+unix://{directory / 'capture'}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("tls")
    made = directory / "certificate.pem", directory / "key.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2",
        "-out", str(made[0]), "-keyout", str(made[1]),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return made


def next_transactions(items: Iterator[Any]) -> Transactions:
    """The next that has rows."""
    while True:
        found = next(items)
        if isinstance(found, Transactions) and found.pieces:
            return found


def test_a_request_is_answered_or_fails_with_the_error_it_failed_with_there(address: str) -> None:
    def answer(request: str, arguments: dict[str, Any]) -> Any:
        if request == "hello":
            return {"leading": True, "epoch": "0/5", "reason": ""}
        if request == "status":
            raise StateError("The state is broken.", remedy="Mend it.", stream="public.orders")
        raise ValueError("a secret value")

    with serving(None, address, answer), RemoteCapture(address, "lake") as capture:
        assert capture.hello().leading
        with pytest.raises(StateError, match=r"public\.orders: The state is broken\.\nWhat to do: Mend it\."):
            capture.status()
        with pytest.raises(Exception, match="ValueError") as caught:
            capture.lanes()
        assert "secret" not in str(caught.value)
        with pytest.raises(CaptureAwayError, match="has not joined"):
            capture.note_target()


def test_requests_of_a_term_carry_its_epoch_and_lane(address: str) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    started = {
        "system_id": "7", "timeline": 1, "server_version": 180000, "slot_created": True,
        "slot_position": "0/1", "log_end": None, "epoch": "0/5", "published": [],
    }  # fmt: skip
    snapshot = {"name": "n", "consistent_point": "0/9", "held_by_pid": 1}
    sealed = iter([None, None, "0/30"])

    def answer(request: str, arguments: dict[str, Any]) -> Any:
        asked.append((request, arguments))
        answers: dict[str, Callable[[], Any]] = {
            "join": lambda: started,
            "snapshot": lambda: snapshot,
            "note_target": lambda: "0/20",
            "sealed": lambda: next(sealed),
            "flushed": lambda: "0/18",
        }
        return answers.get(request, lambda: None)()

    with serving(None, address, answer), RemoteCapture(address, "lake") as capture:
        capture.join([StreamId("public", "orders")], [StreamId("public", "orders")])
        assert capture.epoch == Lsn(5)
        assert capture.snapshot().consistent_point == Lsn(9)
        capture.read_to(capture.note_target())
        assert capture.reached(within_s=0.0) is None
        assert capture.reached() == Lsn(0x30)
        assert capture.acknowledge("lake", Lsn(0x30)) == Lsn(0x18)
    by_name = dict(asked)
    orders = [["public", "orders"]]
    assert by_name["join"] == {"lane": "lake", "streams": orders, "full_identity": orders}
    assert by_name["snapshot"] == {"epoch": "0/5", "lane": "lake"}
    assert by_name["demand"] == {"epoch": "0/5", "target": "0/20"}
    assert by_name["flushed"] == {"epoch": "0/5", "lane": "lake", "position": "0/30"}


def test_a_reader_is_greeted_and_follows(address: str) -> None:
    tail = new_tail()
    with serving(tail, address), RemoteCapture(address, "lake") as capture:
        items = capture.tail(START)
        assert next(items) == Origin("7", 1, Lsn(5), START)
        for number in range(20):
            tx = 1010 + 10 * number
            add(tail, (tx, 0), (tx, 2))
            tail.committed(Lsn(tx + 5), None)
            found = next_transactions(items)
            assert found.end == tx + 5
            assert [offset[1:3] for offset in offsets_of(iter(found.pieces))] == [(tx, 0), (tx, 2)]


def test_a_reader_that_leaves_gives_its_seat_back(address: str) -> None:
    tail = new_tail()
    with serving(tail, address) as service, RemoteCapture(address, "lake") as capture:
        for _ in range(3):
            items = capture.tail(START)
            next(items)
            assert service.readers == 1
            items.close()  # type: ignore[attr-defined]
            wait_until(lambda: service.readers == 0, "the seat is free")


def test_readers_are_limited_in_number(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_service, "READERS_MAX", 2)
    with serving(new_tail(), address), RemoteCapture(address, "lake") as capture:
        readers = [capture.tail(START) for _ in range(3)]
        for reader in readers[:2]:
            next(reader)
        with pytest.raises(SourceBusyError, match="2 readers"):
            next(readers[2])


def test_readers_are_sent_away_with_the_term_and_by_another_epoch(address: str) -> None:
    terms = [new_tail()]
    service = CaptureService(address, lambda request, arguments: {}, lambda: terms[-1])
    service.start()
    with RemoteCapture(address, "lake") as capture:
        items = capture.tail(START)
        next(items)
        terms.append(new_tail())
        with pytest.raises(CaptureAwayError):
            list(items)
        capture.epoch = Lsn(4)
        with pytest.raises(CaptureAwayError):
            next(capture.tail(START))
        capture.epoch = Lsn(5)
        items = capture.tail(START)
        next(items)
        service.stop()
        with pytest.raises(CaptureAwayError):
            list(items)
        with pytest.raises(CaptureAwayError):
            capture.hello()


def test_a_lane_finds_a_capture_that_comes_back(address: str) -> None:
    def answer(request: str, arguments: dict[str, Any]) -> Any:
        return {"leading": next(leads), "epoch": "0/5", "reason": ""}

    leads = iter([False, False, True])
    stop, found = threading.Event(), []
    with RemoteCapture(address, "lake") as capture:
        waiting = threading.Thread(target=lambda: found.append(capture.wait_until_leading(stop)))
        waiting.start()
        with serving(None, address, answer):
            waiting.join(120)
        assert found == [True]
        stop.set()
        assert not capture.wait_until_leading(stop)


def test_a_stuck_reader_holds_nobody_up_and_goes_on_by_the_log(address: str, tmp_path: Path) -> None:
    feed = Feed(random.Random(1), tmp_path, new_tail(MIB))
    with serving(feed.tail, address), RemoteCapture(address, "slow") as capture:
        stuck = TailReader(capture, tmp_path).follow(START)
        other = TailReader(capture, tmp_path).follow(START)
        seen: list[Any] = []
        for table in TABLES * 100:
            tx = feed.boundaries[-1]
            feed.boundaries.append(Lsn(tx + 10))
            piece = rows(table, [(tx, 2 * index) for index in range(100)], width=1000)
            feed.write(table, piece, feed.boundaries[-1])
            assert feed.tail.bytes < 2 * MIB
            while next(other).end < feed.boundaries[-1]:
                pass
            if not seen:
                seen = offsets_of(iter(next(stuck).pieces))  # and then not for a long time
        by_log = 0
        for found in stuck:
            seen += offsets_of(iter(found.pieces))
            by_log += found.at is None
            if found.end == feed.boundaries[-1]:
                break
        assert by_log
        assert seen == feed.all


def test_what_retention_has_removed_is_gone_for_a_reader_too(address: str, tmp_path: Path) -> None:
    feed = Feed(random.Random(2), tmp_path, new_tail(64 << 10))
    for _ in range(40):
        feed.batch()
    feed.finish()
    end = feed.log.end()
    assert end is not None
    apply_retention(tmp_path, end)
    with (
        serving(feed.tail, address),
        RemoteCapture(address, "late") as capture,
        pytest.raises(PositionGoneError, match="does not reach back"),
    ):
        list(TailReader(capture, tmp_path).follow(START))


def test_over_tcp_the_token_and_the_certificate_must_be_right(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    tail = new_tail()
    guard = {"token": TOKEN, "certificate": certificate[0], "key": certificate[1]}
    answer = {"leading": True, "epoch": "0/5", "reason": ""}
    with serving(tail, "grpc+tls://localhost:0", lambda *_: answer, **guard) as service:
        assert not service.address.endswith(":0")
        with RemoteCapture(service.address, "lake", TOKEN, certificate[0]) as capture:
            assert capture.hello().leading
            assert isinstance(next(capture.tail(START)), Origin)
        for wrong in (None, "another token"):
            with RemoteCapture(service.address, "lake", wrong, certificate[0]) as capture:
                with pytest.raises(ConfigError, match="token"):
                    capture.hello()
                with pytest.raises(ConfigError, match="token"):
                    next(capture.tail(START))
        with RemoteCapture(service.address, "lake", TOKEN) as capture, pytest.raises(CaptureAwayError):
            capture.hello()
        plain = service.address.replace("grpc+tls", "grpc")
        with RemoteCapture(plain, "lake", TOKEN) as capture, pytest.raises(CaptureAwayError):
            capture.hello()


def test_a_socket_that_others_could_open_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="chmod 700"), serving(None, f"grpc+unix://{tmp_path}/open/capture"):
        pass
    with pytest.raises(ConfigError, match="longer than"), serving(None, f"grpc+unix:///{'x' * 120}/capture"):
        pass


@contextmanager
def running(database: Database, directory: Path, address: str, **changed: Any) -> Iterator[RemoteCapture]:
    """An always-on capture process, and a lane that has joined it."""
    spec = capture_spec(
        url=database.url,
        slot=f"slot_{database.name}",
        publication="penstock",
        log_directory=directory / "log",
        checkpoint_path=directory / "checkpoint.json",
        lanes_path=directory / "lanes.json",
        service=ServiceSpec(address),
        **changed,
    )
    command = [sys.executable, "-m", "penstock.capture"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(spec.to_json()) + "\n")
        process.stdin.flush()
        with RemoteCapture(address, "lake") as capture:
            assert capture.wait_until_leading(threading.Event())
            yield capture
        process.stdin.close()  # it ends with its driver


def make_changes(database: Database, chance: random.Random, first_id: int) -> None:
    """Transactions of all kinds, among them an ALTER, a TRUNCATE and one larger than the tail."""
    with database.connect(autocommit=False) as connection:
        for number in range(60):
            for _ in range(chance.choice([1, 1, 1, 3, 20])):
                key = first_id + chance.randint(0, 200)
                statement = chance.choice(
                    [
                        f"INSERT INTO orders (id, note) VALUES ({key}, 'n{number}') ON CONFLICT DO NOTHING",
                        f"UPDATE orders SET note = note || '{number}' WHERE id = {key}",
                        f"UPDATE orders SET id = -id WHERE id = {key}",
                        f"DELETE FROM orders WHERE id = {key}",
                        f"INSERT INTO events (body) SELECT repeat('{number}', 9) FROM generate_series(1, 20)",
                    ]
                )
                connection.execute(statement.encode())
            if number == 20:
                connection.execute(f"ALTER TABLE orders ADD COLUMN c{first_id} text DEFAULT 'x'".encode())
            if number == 30:
                connection.execute("TRUNCATE events")
            if number == 40:
                connection.execute(
                    "INSERT INTO events (body) SELECT repeat('x', 500) FROM generate_series(1, 20000)"
                )
            if chance.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()


def log_content(log: ChangeLog, after: Lsn, to: Lsn) -> list[tuple[str, dict[str, Any]]]:
    found = [
        (str(stream), row)
        for stream, part in log.streams_with_changes(after, to).items()
        for table in read_rows(part.files, after, to)
        for row in table.to_pylist()
    ]
    return sorted(found, key=lambda each: (each[1]["_tx"], each[1]["_op_index"]))


class Follower(threading.Thread):
    """Follows from `after` until it is told the end; keeps everything that it was given."""

    def __init__(self, capture: RemoteCapture, directory: Path, after: Lsn, pause_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._reader = TailReader(capture, directory / "log")
        self._after, self._pause_s = after, pause_s
        self._seen: list[tuple[str, dict[str, Any]]] = []
        self._at = after
        self.items = self.by_log = 0
        self.start()

    def run(self) -> None:
        with suppress(CaptureAwayError):  # the end of the test
            self._follow()

    def _follow(self) -> None:
        for found in self._reader.follow(self._after):
            new = [(str(piece.stream), row) for piece in found.pieces for row in piece.rows.to_pylist()]
            assert all(self._at <= row["_tx"] < found.end for _, row in new)
            self._seen += sorted(new, key=lambda each: (each[1]["_tx"], each[1]["_op_index"]))
            self.items += 1
            self.by_log += found.at is None
            self._at = found.end
            time.sleep(self._pause_s)

    def seen(self, to: Lsn) -> list[tuple[str, dict[str, Any]]]:
        wait_until(lambda: self._at >= to or not self.is_alive(), "the reader has read so far", 60)
        assert self._at >= to
        return [each for each in self._seen if each[1]["_tx"] < to]


def test_readers_of_a_real_capture_are_given_exactly_what_the_log_has(
    database: Database, tmp_path: Path, address: str
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute("CREATE TABLE events (id serial PRIMARY KEY, body text)")
    chance = random.Random(5)
    with running(database, tmp_path, address, tail_bytes_max=MIB, seal_every_s=1.0) as capture:
        started = capture.join([StreamId("public", "orders"), StreamId("public", "events")])
        start = started.log_end or started.slot_position
        followers = [Follower(capture, tmp_path, start), Follower(capture, tmp_path, start, pause_s=0.3)]
        make_changes(database, chance, 0)
        middle = ChangeLog(tmp_path / "log").end() or start
        followers.append(Follower(capture, tmp_path, middle))
        make_changes(database, chance, 1000)
        capture.read_to(capture.note_target())
        end = capture.reached()
        assert end is not None
        log = ChangeLog(tmp_path / "log")
        everything = log_content(log, start, end)
        assert {row["_op"] for _, row in everything} == {"i", "u", "d", "t"}
        for follower, after in zip(followers, (start, start, middle), strict=True):
            assert follower.seen(end) == log_content(log, after, end)
        assert followers[0].items > followers[0].by_log > 0, "the large transactions came by the log"
        with database.connect() as connection:
            kept = connection.execute("SELECT count(*) FROM events").fetchone()
        inserted = [row for stream, row in everything if stream == "public.events" and row["_op"] == "i"]
        assert kept is not None
        assert len(inserted) > kept[0] >= 20_000


@pytest.mark.slow
def test_a_reader_goes_on_with_the_next_term_after_capture_was_killed(
    database: Database, tmp_path: Path, address: str
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    orders = [StreamId("public", "orders")]
    seen: list[tuple[int, int]] = []

    def read(capture: RemoteCapture, after: Lsn, rows_wanted: int) -> Lsn:
        for found in TailReader(capture, tmp_path / "log").follow(after):
            for piece in found.pieces:
                columns = (piece.rows.column(name).to_pylist() for name in ("_tx", "_op_index"))
                seen.extend(zip(*columns, strict=True))
            after = found.end
            if len(seen) >= rows_wanted:
                break
        return after

    with running(database, tmp_path, address, seal_every_s=3600.0) as capture:
        started = capture.join(orders)
        database.execute("INSERT INTO orders SELECT i FROM generate_series(1, 10) AS i")
        after = read(capture, started.log_end or started.slot_position, 10)
        log_end = ChangeLog(tmp_path / "log").end()
        assert log_end is None or log_end < after, "the reader is ahead of the log"
    database.execute("INSERT INTO orders SELECT i FROM generate_series(11, 20) AS i")
    with running(database, tmp_path, address, seal_every_s=3600.0) as capture:
        capture.join(orders)
        read(capture, after, 20)
    assert len(seen) == len(set(seen)) == 20
