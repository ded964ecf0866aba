"""nginx in front of shapes, with the configuration of `deploy/nginx`: many clients, one request."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, new_database, wait_until
from tests.ports import free_port
from tests.serving import ANSWER_TIMEOUT_S, Answer, ShapeServer

pytestmark = pytest.mark.integration

_CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "shapes.conf"
_CLIENTS = 40


@contextmanager
def nginx(directory: Path, server: ShapeServer) -> Iterator[int]:
    """The port of one that has the project's configuration, and logs what it asks Penstock for."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/opt/homebrew/bin")
    if program is None:
        pytest.skip("there is no nginx here: apt-get install nginx-light")
    port = free_port()
    directory.mkdir()
    shapes = (
        _CONFIGURATION.read_text()
        .replace("/var/cache/nginx", str(directory))
        .replace("listen 80", f"listen 127.0.0.1:{port}")
        .replace("http://127.0.0.1:3000", server.url)
    )
    # Started by root it would give that up, and could not reach its files.
    user = "user root;" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(
        f"{user} daemon off; pid {directory}/pid; error_log {directory}/errors; worker_processes 1;\n"
        "events { worker_connections 1000; }\n"
        "http {\n"
        "log_format upstream '$upstream_addr $request_uri';\n"
        f"access_log {directory}/access upstream;\n"
        f"client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;\n"
        f"fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;\n"
        f"{shapes}\n}}\n"
    )
    with subprocess.Popen([program, "-c", str(directory / "nginx.conf"), "-p", str(directory)]) as process:
        try:
            yield port
        finally:
            process.terminate()


def ask(port: int, **parameters: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", f"/v1/shape?{urlencode(parameters)}")
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())
    finally:
        connection.close()


def logged(directory: Path, offset: str) -> list[str]:
    """Live requests from this offset that are answered; nginx writes each down a moment later."""
    lines = (directory / "access").read_text().splitlines()
    return [line for line in lines if "live=true" in line and line.endswith(f"offset={offset}")]


def all_logged(directory: Path, offset: str) -> bool:
    return len(logged(directory, offset)) == _CLIENTS


def is_up(port: int) -> bool:
    try:
        return ask(port, table="nothing", offset="-1").status == 400
    except OSError:
        return False


@dataclass(frozen=True)
class Fronted:
    database: Database
    server: ShapeServer
    directory: Path
    port: int

    def synced(self, table: str) -> Answer:
        """A new table with a row, and the answer that brought it up to date."""
        self.database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
        self.database.execute(f"INSERT INTO {table} VALUES (1, 'one')")
        last = ask(self.port, table=table, offset="-1")
        while "electric-up-to-date" not in last.headers:
            last = ask(self.port, table=table, offset=last.offset, handle=last.handle)
        return last


@pytest.fixture(scope="module")
def fronted(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    directory = tmp_path_factory.mktemp("cache")
    with (
        new_database(server) as database,
        ShapeServer(database.url, directory / "shapes") as shapes,
        nginx(directory / "nginx", shapes) as port,
    ):
        shapes.wait_until_active()
        wait_until(lambda: is_up(port), "nginx")
        yield Fronted(database, shapes, directory / "nginx", port)


def test_clients_of_one_shape_cost_one_request_per_change(fronted: Fronted) -> None:
    last = fronted.synced("items")
    live = {"table": "items", "handle": last.handle, "live": "true"}
    front, offset = fronted.directory, last.offset
    for change in range(3):
        with ThreadPoolExecutor(_CLIENTS) as clients:
            asked = [clients.submit(ask, fronted.port, **live, offset=offset) for _ in range(_CLIENTS)]
            wait_until(lambda: _waiting(fronted.server) > 0, "a client to wait at Penstock")
            fronted.database.execute("INSERT INTO items VALUES (%s, 'new')", (100 + change,))
            answers = [each.result() for each in asked]
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body for answer in answers}) == 1
        assert f'"{100 + change}"' in answers[0].body.decode()
        wait_until(partial(all_logged, front, offset), "all of them to be logged")
        assert len([line for line in logged(front, offset) if not line.startswith("- ")]) == 1
        offset = answers[0].offset


def test_events_come_through_as_they_happen(fronted: Fronted) -> None:
    last = fronted.synced("events")
    live = {"table": "events", "handle": last.handle, "offset": last.offset, "live": "true"}
    connection = http.client.HTTPConnection("127.0.0.1", fronted.port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", f"/v1/shape?{urlencode({**live, 'live_sse': 'true'})}")
        stream = connection.getresponse()
        assert stream.headers["content-type"] == "text/event-stream"
        for number in (2, 3):  # the second one, while the stream goes on
            fronted.database.execute("INSERT INTO events VALUES (%s, 'new')", (number,))
            while f'"id":"{number}"' not in (line := stream.readline().decode()):
                assert line, "the stream has ended"
    finally:
        connection.close()


def _waiting(server: ShapeServer) -> int:
    """Live requests that are open at Penstock, as its process has them."""
    (process,) = server.running("shapes")
    return sum(
        1
        for each in process.net_connections()
        if each.status == "ESTABLISHED" and each.laddr.port == server.port
    )
