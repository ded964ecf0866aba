"""A cache in front of shapes: many clients, one request.

Twice over: nginx with the configuration of `deploy/nginx`, and a cache of the tests' own that does what the
standards say.
"""

from __future__ import annotations

import http.client
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests import debian
from tests.caching_proxy import CachingProxy
from tests.conftest import Database, new_database, wait_until
from tests.ports import free_port
from tests.serving import ANSWER_TIMEOUT_S, Answer, ShapeServer

pytestmark = pytest.mark.integration

_CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "shapes.conf"
_CLIENTS = 40


@dataclass(frozen=True)
class Front:
    """`lines`: of each answer, the status that Penstock sent for it, `-` if it was not asked, and the URL;
    each may come a moment after the answer."""

    port: int
    lines: Callable[[], list[str]]

    def logged(self, **parameters: str) -> list[str]:
        """The statuses of requests that have exactly these."""
        wanted = {name: [value] for name, value in parameters.items()}
        found = (line.rsplit(" ", 1) for line in self.lines())
        return [status for status, url in found if parse_qs(urlsplit(url).query) == wanted]


@contextmanager
def nginx(directory: Path, server: ShapeServer) -> Iterator[Front]:
    """With the project's configuration; it logs what it asks Penstock for."""
    program = debian.program("nginx", ["nginx-light"], "usr/sbin/nginx")
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
        "log_format upstream '$upstream_status $request_uri';\n"
        f"access_log {directory}/access upstream; log_subrequest on;\n"
        f"client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;\n"
        f"fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;\n"
        f"{shapes}\n}}\n"
    )
    with subprocess.Popen([program, "-c", str(directory / "nginx.conf"), "-p", str(directory)]) as process:
        try:
            yield Front(port, lambda: (directory / "access").read_text().splitlines())
        finally:
            process.terminate()


@contextmanager
def own_cache(_: Path, server: ShapeServer) -> Iterator[Front]:
    with CachingProxy(server.port) as proxy:
        yield Front(proxy.port, lambda: list(proxy.log))


def ask(port: int, headers: Mapping[str, str] | None = None, /, **parameters: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", f"/v1/shape?{urlencode(parameters)}", headers=dict(headers or {}))
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())
    finally:
        connection.close()


def is_up(port: int) -> bool:
    try:
        return ask(port, table="nothing", offset="-1").status == 400
    except OSError:
        return False


@dataclass(frozen=True)
class Fronted:
    database: Database
    server: ShapeServer
    front: Front

    @property
    def port(self) -> int:
        return self.front.port

    def synced(self, table: str) -> Answer:
        """A new table with a row, and the answer that brought it up to date."""
        self.database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
        self.database.execute(f"INSERT INTO {table} VALUES (1, 'one')")
        last = ask(self.port, table=table, offset="-1")
        while "electric-up-to-date" not in last.headers:
            last = ask(self.port, table=table, offset=last.offset, handle=last.handle)
        return last


@pytest.fixture(scope="module", params=[own_cache, nginx], ids=["own", "nginx"])
def fronted(
    server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Fronted]:
    begun: Callable[[Path, ShapeServer], AbstractContextManager[Front]] = request.param
    directory = tmp_path_factory.mktemp("cache")
    environment = {"ELECTRIC_CACHE_MAX_AGE": "1", "ELECTRIC_CACHE_STALE_AGE": "1"}
    with (
        new_database(server) as database,
        ShapeServer(database.url, directory / "shapes", environment=environment) as shapes,
        begun(directory / "front", shapes) as front,
    ):
        shapes.wait_until_active()
        wait_until(lambda: is_up(front.port), "the cache")
        yield Fronted(database, shapes, front)


def test_clients_of_one_shape_cost_one_request_per_change(fronted: Fronted) -> None:
    last = fronted.synced("items")
    live = {"table": "items", "handle": last.handle, "live": "true"}
    position = {"offset": last.offset}
    for change in range(3):
        with ThreadPoolExecutor(_CLIENTS) as clients:
            asked = [clients.submit(ask, fronted.port, **live, **position) for _ in range(_CLIENTS)]
            wait_until(lambda: _waiting(fronted.server) > 0, "a client to wait at Penstock")
            fronted.database.execute("INSERT INTO items VALUES (%s, 'new')", (100 + change,))
            answers = [each.result() for each in asked]
        assert {answer.status for answer in answers} == {200}
        assert len({(answer.body, answer.headers["electric-cursor"]) for answer in answers}) == 1
        assert f'"{100 + change}"' in answers[0].body.decode()
        logged = partial(fronted.front.logged, **live, **position)
        wait_until(partial(_are_all, logged), "all of them to be logged")
        assert sorted(logged()) == ["-"] * (_CLIENTS - 1) + ["200"]
        position = {"offset": answers[0].offset, "cursor": answers[0].headers["electric-cursor"]}


def test_what_is_stored_is_asked_for_again_by_its_etag(fronted: Fronted) -> None:
    """By a client, whom the cache answers; and by the cache, whom Penstock answers."""
    last = fronted.synced("revalidated")
    shape = {"table": "revalidated", "handle": last.handle, "offset": last.offset}
    fronted.database.execute("INSERT INTO revalidated VALUES (2, 'new')")
    change = ask(fronted.port, **shape, live="true")
    while '"2"' not in change.body.decode():  # an answer without changes has come first
        change = ask(fronted.port, **shape, live="true", cursor=change.headers["electric-cursor"])
    first = ask(fronted.port, **shape)
    assert '"2"' in first.body.decode()
    etag = {"if-none-match": first.headers["etag"]}
    known = ask(fronted.port, etag, **shape)
    assert (known.status, known.body) == (304, b"")
    assert {"electric-handle", "electric-offset"} <= known.headers.keys()

    def asked_anew() -> bool:
        """Old enough by now; Penstock was asked whether it is still so, and not for the rows."""
        assert ask(fronted.port, **shape).body == first.body
        return "304" in fronted.front.logged(**shape)

    wait_until(asked_anew, "the cache to ask whether it is still so")
    assert fronted.front.logged(**shape).count("200") == 1


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


def _are_all(logged: Callable[[], list[str]]) -> bool:
    return len(logged()) == _CLIENTS


def _waiting(server: ShapeServer) -> int:
    """Live requests that are open at Penstock, as its process has them."""
    (process,) = server.running("shapes")
    return sum(
        1
        for each in process.net_connections()
        if each.status == "ESTABLISHED" and each.laddr.port == server.port
    )
