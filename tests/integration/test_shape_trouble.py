"""What goes wrong with one shape, or with one client, stays there.

Writers go on all the while: the slot is told of what they wrote, and the other shapes hold what a SELECT has.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.conftest import Database, wait_until
from tests.running import flushed_position, is_acknowledged
from tests.serving import Answer, ShapeServer, followed, rows, synced

pytestmark = pytest.mark.integration

_MANY = 1000
_STALLED, _PINNING = 20, 50
_COLUMNS = ("id", "owner", "note")
_WITHIN_S = 120.0
#: The one that trouble comes to. It looks like no other, and is made, and rendered, first.
_VICTIM = {"table": "items", "columns": "id,note"}
_OTHERS: list[dict[str, str]] = [
    {},
    {"where": "owner = 1"},
    {"where": "note ILIKE '%a%' AND id < 1000000", "replica": "full"},
    {"where": "owner IN (SELECT id FROM owners WHERE chosen)"},
]


@dataclass
class Writer:
    """Inserts, updates and deletes rows of `items`, a transaction at a time, until it is stopped."""

    database: Database
    committed: int = 0
    error: BaseException | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            with self.database.connect() as connection:
                for number in itertools.count(1):
                    if self._stopping.is_set():
                        return
                    connection.execute(
                        "INSERT INTO items VALUES (%s, %s, %s)", (number, number % 3, f"a{number}")
                    )
                    turned = "UPDATE items SET owner = (owner + 1) %% 3 WHERE id = %s"
                    connection.execute(turned, (number // 2,))
                    connection.execute("DELETE FROM items WHERE id = %s", (number // 3,))
                    self.committed = number
                    self._stopping.wait(0.005)
        except BaseException as error:
            self.error = error

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run, name="writer")
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()
        assert self.error is None, self.error

    def wait_for_more(self) -> None:
        enough = self.committed + 50
        wait_until(lambda: self.error is not None or self.committed >= enough, "more to be written")


@dataclass
class Client:
    """Holds a shape from its first rows on: that it has to fetch anew is an error."""

    server: ShapeServer
    shape: dict[str, str]

    def __post_init__(self) -> None:
        self.last, self.messages = synced(self.server, **self.shape)

    def held_after(self, marker: str) -> list[dict[str, str]]:
        """All of it once that row has come."""
        self.messages += followed(self.server, self.last, marker, **self.shape)
        return sorted(rows(self.messages).values(), key=lambda row: int(row["id"]))


def selected(database: Database, where: str | None) -> list[dict[str, str]]:
    listed = ", ".join(f"{name}::text" for name in _COLUMNS)
    found = database.query(f"SELECT {listed} FROM items WHERE {where or 'true'} ORDER BY items.id")
    return [dict(zip(_COLUMNS, row, strict=True)) for row in found]


Trouble = Callable[[ShapeServer, Database, Client, ExitStack], None]


def must_fetch_anew(server: ShapeServer, client: Client) -> bool:
    answer = server.get(**client.shape, offset=client.last.offset, handle=client.last.handle)
    return answer.status == 409 and answer.headers.get("electric-handle") != client.last.handle


def a_shape_that_cannot_be_written(
    server: ShapeServer, database: Database, victim: Client, _: ExitStack
) -> None:
    """Its log has no directory any more; it is written once 64 KiB are to be."""
    (directory,) = server.storage.rglob(victim.last.handle)
    with replaced_by_a_file(directory / "log"):
        numbers = "generate_series(1, 100) AS i"
        database.execute(f"INSERT INTO items SELECT 1000000 + i, 7, repeat('x', 2000) FROM {numbers}")
        wait_until(partial(must_fetch_anew, server, victim), "the shape to be made anew", _WITHIN_S)
    assert "shape cannot be written" in server.log.read_text()


def a_dead_consumer(server: ShapeServer, _: Database, victim: Client, __: ExitStack) -> None:
    """The first rendering of all has raised, which was its own."""
    wait_until(partial(must_fetch_anew, server, victim), "the shape to be made anew", _WITHIN_S)
    assert "_strike" in server.log.read_text(), "it was the failpoint"


def a_thousand_shapes_at_once(server: ShapeServer, _: Database, __: Client, ___: ExitStack) -> None:
    together = threading.Barrier(_MANY)

    def create(number: int) -> Answer:
        together.wait(_WITHIN_S)
        return server.get(table="items", where=f"id = {number}", offset="-1")

    with ThreadPoolExecutor(_MANY) as clients:
        answers = list(clients.map(create, range(_MANY)))
    assert [answer.status for answer in answers] == [200] * _MANY
    assert len({answer.handle for answer in answers}) == _MANY


def clients_that_never_read(server: ShapeServer, database: Database, _: Client, stack: ExitStack) -> None:
    """Of rows, and of changes as events: each of more bytes than sockets take."""
    database.execute("CREATE TABLE large (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO large SELECT i, repeat('x', 10000) FROM generate_series(1, 2000) i")
    last, _messages = synced(server, table="large")
    live = {"live": "true", "live_sse": "true", "handle": last.handle, "offset": last.offset}
    for number in range(_STALLED):
        asked = {"table": "large", **({"offset": "-1"} if number % 2 else live)}
        client = stack.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(f"GET /v1/shape?{urlencode(asked)} HTTP/1.1\r\nHost: shapes\r\n\r\n".encode())
    database.execute("UPDATE large SET note = note || 'y'")
    synced(server, table="large", where="id < 10")


@contextmanager
def replaced_by_a_file(directory: Path) -> Iterator[None]:
    """A file stands in a directory's place."""
    if directory.exists():
        directory.rename(directory.with_name("taken away"))
    directory.write_bytes(b"")
    yield


@pytest.mark.parametrize(
    "trouble",
    [
        a_shape_that_cannot_be_written,
        a_dead_consumer,
        pytest.param(a_thousand_shapes_at_once, marks=pytest.mark.slow),
        pytest.param(clients_that_never_read, marks=pytest.mark.slow),
    ],
    ids=lambda trouble: trouble.__name__,
)
def test_the_slot_and_the_other_shapes_go_on(database: Database, tmp_path: Path, trouble: Trouble) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, owner int, note text)")
    database.execute("CREATE TABLE owners (id int PRIMARY KEY, chosen bool)")
    database.execute("INSERT INTO owners VALUES (0, false), (1, true), (2, false)")
    environment = {"ELECTRIC_MAX_CONCURRENT_REQUESTS": '{"initial": 1000, "existing": 1000}'}
    if trouble is a_dead_consumer:
        environment["PENSTOCK_FAILPOINT"] = "shapes.rendering=fail@1"
    with ShapeServer(database.url, tmp_path, environment=environment) as server, ExitStack() as stack:
        server.wait_until_active()
        victim = Client(server, _VICTIM)
        others = [Client(server, {"table": "items", **shape}) for shape in _OTHERS]
        writer = Writer(database)
        slot = f"penstock_slot_{server.stream_id}"
        with writer.at_work():
            trouble(server, database, victim, stack)
            writer.wait_for_more()
            position = flushed_position(database.url)
            wait_until(
                partial(is_acknowledged, database.url, slot, position),
                "the slot to be told of what was written since",
                _WITHIN_S,
            )
        database.execute("INSERT INTO items VALUES (0, 1, 'a last one')")
        for client, shape in zip(others, _OTHERS, strict=True):
            assert client.held_after("0") == selected(database, shape.get("where")), shape
        anew = rows(synced(server, **_VICTIM)[1])
        assert len(anew) == len(selected(database, None))
        for number in range(0, _MANY, 100) if trouble is a_thousand_shapes_at_once else ():
            where = f"id = {number}"
            found = rows(synced(server, table="items", where=where)[1])
            assert list(found.values()) == selected(database, where)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["identity", "gzip", "br"])
def test_a_client_that_does_not_read_pins_two_mebibytes_at_most(
    database: Database, tmp_path: Path, encoding: str
) -> None:
    """Of an answer of 32 MB; what the operating system has taken is not the process's."""
    database.execute("CREATE TABLE large (id int PRIMARY KEY, note text)")
    words = "(SELECT string_agg(md5(i || ' ' || j), '') FROM generate_series(1, 100) AS j)"
    database.execute(f"INSERT INTO large SELECT i, {words} FROM generate_series(1, 10000) AS i")
    environment = {"ELECTRIC_SHAPE_CHUNK_BYTES_THRESHOLD": str(64 << 20)}
    accepted = {"accept-encoding": encoding}
    asked = {"table": "large", "offset": "-1"}
    with ShapeServer(database.url, tmp_path, environment=environment) as server, ExitStack() as stack:
        server.wait_until_active()
        synced(server, table="large")
        whole = server.ask("GET", "/v1/shape", asked, headers=accepted)
        assert len(whole.body) > 12 << 20
        (process,) = server.running("shapes")
        before = process.memory_info().rss
        for _ in range(_PINNING):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            request = f"GET /v1/shape?{urlencode(asked)} HTTP/1.1\r\nHost: shapes\r\n"
            client.sendall(f"{request}Accept-Encoding: {encoding}\r\n\r\n".encode())
        queues: list[list[int]] = []

        def all_stalled() -> bool:
            """Each has something to send, and none has moved for ten looks."""
            queues.append(_unsent(server.port))
            return len(queues[-1]) == _PINNING and queues[-10:] == [queues[-1]] * 10

        wait_until(all_stalled, "all of them to stall", _WITHIN_S)
        pinned = (process.memory_info().rss - before) / _PINNING
    print(f"{encoding}: {pinned / 1024:,.0f} KiB for each client")
    assert pinned < 2 << 20


def _unsent(port: int) -> list[int]:
    """Bytes that wait in the operating system to be sent from this port, of each connection that has some."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    found = (line.split() for line in lines)
    waiting = [
        int(fields[4].split(":")[0], 16) for fields in found if int(fields[1].split(":")[1], 16) == port
    ]
    return sorted(size for size in waiting if size)
