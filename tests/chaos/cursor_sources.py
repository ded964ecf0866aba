"""A source of each kind whose tables are read on by cursors, with writers at work, and what judges them."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests import mongo_shop, oracle, oracle_mysql
from tests.chaos.cursor_writers import COLUMNS, CursorWriters, of_mongodb, of_mysql, of_postgres
from tests.chaos.databases import new_database
from tests.chaos.killing import ToldNothing
from tests.chaos.matrix import SEED
from tests.conftest import wait_until
from tests.mongo_server import MongoServer
from tests.mysql_server import MysqlServer
from tests.pipelines import DESTINATIONS, PipelineUnderTest

_POSTGRES = """
    CREATE TABLE ticks (id bigint PRIMARY KEY, changed timestamptz, turn bigint NOT NULL, v text);
    CREATE TABLE parts (id uuid PRIMARY KEY, turn bigint NOT NULL, v text);
    CREATE INDEX ON ticks (changed); CREATE INDEX ON ticks (turn); CREATE INDEX ON parts (turn)
"""
_MYSQL = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    "CREATE TABLE shop.ticks (id BIGINT PRIMARY KEY, changed DATETIME(6), turn BIGINT NOT NULL, v TEXT, "
    "INDEX (changed), INDEX (turn))",
    "CREATE TABLE shop.parts (id CHAR(36) PRIMARY KEY, turn BIGINT NOT NULL, v TEXT, INDEX (turn))",
)


@dataclass
class CursorSource(ToldNothing, ABC):
    """`schema`: what its tables are in."""

    writers: CursorWriters
    schema: str

    @abstractmethod
    def settings(self, directory: Path) -> Mapping[str, Any]:
        """The source in the pipeline file."""

    @abstractmethod
    def assert_same(self, pipeline: PipelineUnderTest, table: str) -> None: ...

    def compare(self, pipeline: PipelineUnderTest) -> None:
        self.writers.stop()
        try:
            pipeline.sync()
            for table in COLUMNS:
                self.assert_same(pipeline, table)
        finally:
            self.writers.start()

    def wait_for_writes(self) -> None:
        enough = self.writers.transactions + 20
        wait_until(lambda: self.writers.transactions > enough, "the writers to go on")

    def pipeline(self, directory: Path, destination: str) -> PipelineUnderTest:
        ticks = {"table": f"{self.schema}.ticks", "mode": "incremental", "cursor": "changed:turn"}
        parts = {"table": f"{self.schema}.parts", "mode": "incremental", "cursor": "turn", "lookback": 0}
        settings: dict[str, Any] = {
            "source": self.settings(directory),
            "load": {"rows_per_chunk": 300},
            "readers": {"grace": "5s"},
            "destination": DESTINATIONS[destination],
        }
        return PipelineUnderTest(directory, "", [ticks, parts], settings)


@dataclass
class OfPostgres(CursorSource):
    url: str

    def settings(self, directory: Path) -> Mapping[str, Any]:
        return {"type": "postgres", "url": self.url}

    def assert_same(self, pipeline: PipelineUnderTest, table: str) -> None:
        oracle.assert_same(self.url, f"public.{table}", pipeline.path(f"public.{table}"))


@dataclass
class OfMysql(CursorSource):
    server: MysqlServer

    def settings(self, directory: Path) -> Mapping[str, Any]:
        url = f"mysql://root@127.0.0.1:{self.server.port}/shop"
        return {"type": "mysql", "url": url, "name": directory.name}

    def assert_same(self, pipeline: PipelineUnderTest, table: str) -> None:
        oracle_mysql.assert_same(self.server, f"shop.{table}", pipeline.path(f"shop.{table}"))


@dataclass
class OfMongodb(CursorSource):
    mongo: MongoServer

    def settings(self, directory: Path) -> Mapping[str, Any]:
        names = {"name": f"{self.schema}_{directory.name}", "database": self.schema}
        return {"type": "mongodb", "url": self.mongo.url, "layout": "fields", **names}

    def assert_same(self, pipeline: PipelineUnderTest, table: str) -> None:
        shop = self.mongo.client[self.schema]
        names = ("_id", *COLUMNS[table][1:])
        rows = mongo_shop.rows_of(pipeline, shop, table)
        assert all(row["_rest"] is None for row in rows)
        found = {row["_id"]: tuple(row[name] for name in names) for row in rows}
        assert len(found) == len(rows), f"{table}: {len(rows) - len(found)} rows are there twice"
        expected = {
            each["_id"]: tuple(
                each[name].replace(tzinfo=UTC) if name == "changed" and each[name] else each[name]
                for name in names
            )
            for each in shop[table].find()
        }
        wrong = [key for key in {*found, *expected} if found.get(key) != expected.get(key)]
        assert not wrong, f"{table}: {len(wrong)} rows differ: {wrong[:5]}"


@contextmanager
def postgres(server: EmbeddedPostgres) -> Iterator[CursorSource]:
    with new_database(server) as database:
        database.execute(_POSTGRES)
        writers = CursorWriters(lambda: of_postgres(database.url), SEED).set_up()
        with writers.start():
            yield OfPostgres(writers, "public", database.url)


@contextmanager
def mysql(directory: Path) -> Iterator[CursorSource]:
    with MysqlServer(directory) as server:
        server.execute(*_MYSQL)
        writers = CursorWriters(lambda: of_mysql(lambda: server.connect("shop")), SEED).set_up()
        with writers.start():
            yield OfMysql(writers, "shop", server)


@contextmanager
def mongodb(mongo: MongoServer) -> Iterator[CursorSource]:
    name = f"shop_{uuid.uuid4().hex[:8]}"
    for table in COLUMNS:
        mongo.client[name].create_collection(table)
    writers = CursorWriters(lambda: of_mongodb(mongo, name), SEED).set_up()
    with writers.start():
        yield OfMongodb(writers, name, mongo)
    mongo.client.drop_database(name)
