"""Processes are killed while the source is written to: a client has every change once, no shape ends."""

from __future__ import annotations

import http.client
import itertools
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import Database, wait_until
from tests.serving import Answer, Process, ShapeServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]
_KILLS: tuple[Process, ...] = ("shapes", "capture", "shapes", "shapes", "capture")


class Client:
    """Strict: it takes nothing twice, and is never told to fetch anew."""

    def __init__(self, server: ShapeServer, **shape: str) -> None:
        self._server = server
        self._shape = shape
        self._place: dict[str, str] = {"offset": "-1"}
        self.rows: dict[str, dict[str, Any]] = {}

    def read(self) -> None:
        """One answer, if there is a server to give it."""
        try:
            answer = self._server.get(**self._shape, **self._place)
        except (OSError, http.client.HTTPException):
            return
        assert answer.status in (200, 503), answer.body
        if answer.status == 200:
            self._take(answer)

    def _take(self, answer: Answer) -> None:
        for message in answer.json():
            operation = message["headers"].get("operation")
            if operation is None:
                continue
            key = message["key"]
            assert (key in self.rows) == (operation != "insert"), f"{operation} of {key}"
            if operation == "delete":
                del self.rows[key]
            else:
                self.rows[key] = self.rows.get(key, {}) | message["value"]
        self._place = {"offset": answer.offset, "handle": answer.handle}


def test_a_client_has_every_change_once_whatever_is_killed(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, owner int, note text)")
    database.execute("INSERT INTO items SELECT n, n % 3, 'row' FROM generate_series(0, 299) AS n")
    stop = threading.Event()
    writers = [threading.Thread(target=_write, args=(database.url, n, stop)) for n in range(3)]
    with ShapeServer(database.url, tmp_path) as server:
        server.wait_until_active()
        clients = [Client(server, table="items"), Client(server, table="items", where="owner = 1")]
        for client in clients:
            client.read()
            assert client.rows
        for writer in writers:
            writer.start()
        try:
            for process in _KILLS:
                wait_until(lambda: _has_moved(clients), "changes to come")
                server.kill(process)
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        wait_until(lambda: _is_equal(clients, database), "clients to have what the table has", 60)


def _has_moved(clients: list[Client]) -> bool:
    before = dict(clients[0].rows)
    for client in clients:
        client.read()
    return clients[0].rows != before


def _is_equal(clients: list[Client], database: Database) -> bool:
    for client in clients:
        client.read()
    rows = {
        f'"public"."items"/"{row_id}"': {"id": str(row_id), "owner": str(owner), "note": note}
        for row_id, owner, note in database.query("SELECT id, owner, note FROM items")
    }
    some = {key: row for key, row in rows.items() if row["owner"] == "1"}
    return clients[0].rows == rows and clients[1].rows == some


def _write(url: str, number: int, stop: threading.Event) -> None:
    """Transactions of up to three changes, each writer on rows of its own, until the end."""
    with psycopg.connect(url) as connection:
        for turn in itertools.count():
            if stop.is_set():
                return
            row = number + 3 * (turn % 90)
            connection.execute("UPDATE items SET owner = (owner + 1) %% 3 WHERE id = %s", (row,))
            connection.execute("DELETE FROM items WHERE id = %s", (row + 3,))
            connection.execute(
                "INSERT INTO items VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (row + 3, turn % 3, f"{turn}")
            )
            connection.commit()
            stop.wait(0.005)  # a source, not a load test
