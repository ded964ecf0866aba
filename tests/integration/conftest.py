"""Pipelines, sources of each kind, and places where a sync in this process stops."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import failpoints
from penstock.lake import light
from tests.conftest import Database
from tests.pipelines import DESTINATION, DESTINATIONS, PipelineUnderTest
from tests.share import is_in_share
from tests.traps import MakePipeline, Pause, PauseAt, make_tables

if TYPE_CHECKING:
    from tests.mysql_server import MysqlServer
    from tests.predecessors import MongoPredecessor, MysqlPredecessor, PostgresTables


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the slow ones a part, if that is asked for; for another destination what is written to it, or a part
    of that."""
    if DESTINATION == "parquet":
        gone = [item for item in items if item.get_closest_marker("slow") and not is_in_share(item.nodeid)]
    else:
        gone = [item for item in items if not (_follows_the_destination(item) and is_in_share(item.nodeid))]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item not in set(gone)]


def _follows_the_destination(item: pytest.Item) -> bool:
    """Whether it makes pipelines and does not say itself what they write to."""
    module = getattr(item, "module", None)
    makes = "make" in getattr(item, "fixturenames", ()) or hasattr(module, "PipelineUnderTest")
    chosen = getattr(getattr(item, "callspec", None), "params", {}).values()
    return makes and not any(value in DESTINATIONS for value in chosen if isinstance(value, str))


@pytest.fixture(scope="session", autouse=True)
def fast_syncs(captures_are_forked: None) -> None:
    """Hundreds of tests sync in this process."""


@pytest.fixture
def make(database: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakePipeline]:
    """Parametrised by "parquet" or "iceberg", pipelines with such tables."""
    usual = {"destination": DESTINATIONS[request.param]} if hasattr(request, "param") else {}
    made: list[PipelineUnderTest] = []

    def make_pipeline(streams: list[Any], url: str | None = None, **settings: Any) -> PipelineUnderTest:
        directory = tmp_path / f"pipeline{len(made)}"
        made.append(PipelineUnderTest(directory, url or database.url, streams, usual | settings))
        return made[-1]

    yield make_pipeline
    for pipeline in made:
        pipeline.drop()


@pytest.fixture
def loads_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of small tables: all that a load is told must arrive in a process that has none of it."""
    monkeypatch.setattr(light, "TABLE_BYTES_TO_LOAD_MAX", -1)


@pytest.fixture
def tables(database: Database) -> Database:
    make_tables(database.url)
    return database


@pytest.fixture
def parted(database: Database) -> Database:
    database.execute("CREATE TABLE m (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)")
    database.execute("CREATE TABLE m1 PARTITION OF m FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')")
    database.execute("CREATE TABLE m2 PARTITION OF m FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')")
    database.execute("INSERT INTO m SELECT i, date '2026-01-01' + (i % 50) FROM generate_series(1, 100) AS i")
    return database


@pytest.fixture
def pause_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PauseAt:
    def set_up(rule: str) -> Pause:
        monkeypatch.setattr(failpoints, "_reached", {})
        monkeypatch.setenv("PENSTOCK_FAILPOINT", rule)
        monkeypatch.setenv("PENSTOCK_FAILPOINT_GATE", str(tmp_path / "gate"))
        monkeypatch.setenv("PENSTOCK_FAILPOINT_REPORT", str(tmp_path / "report"))
        return Pause(rule, tmp_path)

    return set_up


@pytest.fixture(scope="module")
def mysql_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], MysqlServer]]:
    """A server of "mysql" or of "mariadb", started when it is asked for."""
    from penstock.sources.mysql.binlog.warming import warm_up
    from tests.mysql_server import MARIADB, MYSQL, MysqlServer

    started: dict[str, MysqlServer] = {}

    def server(name: str) -> MysqlServer:
        if name not in started:
            warm_up()  # no test waits for a compiler
            kind = {"mysql": MYSQL, "mariadb": MARIADB}[name]
            started[name] = MysqlServer(tmp_path_factory.mktemp(name), kind)
            started[name].start()
        return started[name]

    yield server
    for each in started.values():
        each.kill()


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.slow), "mongodb"])
def before(request: pytest.FixtureRequest) -> Iterator[PostgresTables | MysqlPredecessor | MongoPredecessor]:
    """Two tables at a source of each kind that OLake reads beside Postgres; there too, if a test asks."""
    from penstock.sources.mongodb.warming import warm_up
    from tests.predecessors import MongoPredecessor, MysqlPredecessor, PostgresTables

    if request.param == "postgres":
        yield PostgresTables(request.getfixturevalue("database"))
        return
    if request.param != "mongodb":
        yield MysqlPredecessor(request.getfixturevalue("mysql_servers")(request.param))
        return
    warm_up()
    mongo = request.getfixturevalue("mongo")
    found = MongoPredecessor(mongo, f"olake_{uuid.uuid4().hex[:8]}")
    yield found
    mongo.client.drop_database(found.namespace)
