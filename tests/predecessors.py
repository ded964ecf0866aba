"""Two tables at a source of each kind, and what OLake leaves behind there: a state file that names a place.

The file is written by hand as OLake writes it, at a place that the test chooses. The oracle is the driver's:
the rows that the source has, and what the test itself changed behind the place.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
from bson.json_util import loads
from pymongo.collection import Collection

from penstock import Pipeline
from penstock.ledger.takeover import MigratedStream
from tests.conftest import Database
from tests.mongo_server import MongoServer
from tests.mysql_server import MysqlServer
from tests.pipelines import DESTINATIONS, PipelineUnderTest

#: `state` holds the last value of each row, `history` each change.
TABLES = ("state", "history")
STRICT = {"state": {"mode": "strict_cdc"}, "history": {"mode": "strict_cdc", "write": "append"}}
Change = tuple[str, int, str | None]


class TwoTables(Protocol):
    """Ids grow; every change is made to both in one transaction, where there are such."""

    @property
    def namespace(self) -> str: ...

    def insert(self, number: int, value: str) -> None: ...

    def update(self, number: int, value: str) -> None: ...

    def delete(self, number: int) -> None: ...

    def source(self) -> dict[str, Any]: ...

    def values(self, row: dict[str, Any]) -> tuple[int, str | None]:
        """Of a row of our table."""

    def rows(self, table: str) -> dict[int, str]: ...


class Predecessor(TwoTables, Protocol):
    """`end` is where the source is now, as OLake would have written it down."""

    def end(self) -> Any: ...

    def document(self, end: Any, **changes: Any) -> dict[str, Any]:
        """The state file of a complete sync up to there. `changes`: of the state of what has the position."""


class PostgresTables:
    """What OLake leaves behind here is in `test_migrate.py`: a slot holds the log."""

    namespace = "public"

    def __init__(self, database: Database) -> None:
        self.database = database
        for table in TABLES:  # of a few rows on each page, so that few rows have several
            database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text) WITH (fillfactor = 10)")

    def insert(self, number: int, value: str) -> None:
        self._both(f"INSERT INTO {{}} VALUES ({number}, '{value}')")

    def update(self, number: int, value: str) -> None:
        self._both(f"UPDATE {{}} SET v = '{value}' WHERE id = {number}")

    def delete(self, number: int) -> None:
        self._both(f"DELETE FROM {{}} WHERE id = {number}")

    def source(self) -> dict[str, Any]:
        name = f"slot_{self.database.name}"
        return {"type": "postgres", "url": self.database.url, "slot": name, "publication": name}

    def values(self, row: dict[str, Any]) -> tuple[int, str | None]:
        return row["id"], row["v"]

    def rows(self, table: str) -> dict[int, str]:
        return dict(self.database.query(f"SELECT id, v FROM {table}"))

    def acknowledged(self) -> str:
        """What the server may forget."""
        slots = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        [(found,)] = self.database.query(slots, (self.source()["slot"],))
        return str(found)

    def _both(self, statement: str) -> None:
        self.database.execute(";".join(statement.format(table) for table in TABLES))


class MysqlPredecessor:
    namespace = "shop"

    def __init__(self, server: MysqlServer) -> None:
        self.server = server
        tables = [f"CREATE TABLE shop.{table} (id INT PRIMARY KEY, v VARCHAR(40))" for table in TABLES]
        server.execute("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop", *tables)

    def insert(self, number: int, value: str) -> None:
        self._both(f"INSERT INTO shop.{{}} VALUES ({number}, '{value}')")

    def update(self, number: int, value: str) -> None:
        self._both(f"UPDATE shop.{{}} SET v = '{value}' WHERE id = {number}")

    def delete(self, number: int) -> None:
        self._both(f"DELETE FROM shop.{{}} WHERE id = {number}")

    def end(self) -> tuple[str, int]:
        return self.server.position()

    def document(self, end: Any, **changes: Any) -> dict[str, Any]:
        name, pos = end
        state = {"server_id": 1234567890, "state": {"name": name, "pos": pos}, **changes}
        names = [f"shop.{table}" for table in TABLES]
        entries = [_entry("shop", table, {"chunks": []}) for table in TABLES]
        return {"type": "GLOBAL", "global": {"state": state, "streams": names}, "streams": entries}

    def source(self) -> dict[str, Any]:
        return {"type": "mysql", "url": f"mysql://root@127.0.0.1:{self.server.port}/shop"}

    def values(self, row: dict[str, Any]) -> tuple[int, str | None]:
        return row["id"], row["v"]

    def rows(self, table: str) -> dict[int, str]:
        return dict(self.server.rows(f"SELECT id, v FROM shop.{table}"))

    def _both(self, statement: str) -> None:
        self.server.execute("BEGIN", *(statement.format(table) for table in TABLES), "COMMIT")


class MongoPredecessor:
    """`at`: whether the token is of the last event, or a mark, as a stream without events has it."""

    def __init__(self, server: MongoServer, namespace: str, at: str = "event") -> None:
        self.server, self.namespace, self.at = server, namespace, at
        self.database = server.client[namespace]
        for table in TABLES:
            self.database.create_collection(table)
        self._watched = {table: self.database[table].watch() for table in TABLES}

    def insert(self, number: int, value: str) -> None:
        for table in self._tables():
            table.insert_one({"_id": number, "id": number, "v": value})

    def update(self, number: int, value: str) -> None:
        for table in self._tables():
            table.update_one({"_id": number}, {"$set": {"v": value}})

    def delete(self, number: int) -> None:
        for table in self._tables():
            table.delete_one({"_id": number})

    def end(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for table, changes in self._watched.items():
            last = None
            while (event := changes.try_next()) is not None:
                last = event["_id"]
            token = last if self.at == "event" else changes.resume_token
            assert token is not None
            found[table] = token["_data"]
        return found

    def document(self, end: Any, **changes: Any) -> dict[str, Any]:
        states = {table: {"_data": end[table], "chunks": [], **changes} for table in TABLES}
        return {"type": "STREAM", "streams": [_entry(self.namespace, *each) for each in states.items()]}

    def source(self) -> dict[str, Any]:
        return {"type": "mongodb", "url": self.server.url, "database": self.namespace}

    def values(self, row: dict[str, Any]) -> tuple[int, str | None]:
        if "document" not in row:
            return int(row["_id"]), row["v"]
        document = row["document"]
        return int(row["_id"]), None if document is None else loads(document)["v"]

    def rows(self, table: str) -> dict[int, str]:
        return {each["_id"]: each["v"] for each in self.database[table].find()}

    def _tables(self) -> list[Collection[dict[str, Any]]]:
        return [self.database[table] for table in TABLES]


def _entry(namespace: str, table: str, state: dict[str, Any]) -> dict[str, Any]:
    return {"stream": table, "namespace": namespace, "sync_mode": "cdc", "state": state}


def successor(
    before: TwoTables, directory: Path, streams: dict[str, dict[str, Any]] = STRICT, **settings: Any
) -> PipelineUnderTest:
    """A pipeline of such streams, in a state directory of its own; to Parquet unless `settings` say it."""
    listed = [{"table": f"{before.namespace}.{name}", **options} for name, options in streams.items()]
    source = {**before.source(), **settings.pop("source", {})}
    if not isinstance(before, PostgresTables):  # which has a slot and a publication
        source.setdefault("name", f"{before.namespace}_{directory.name}")
    settings = {"destination": DESTINATIONS["parquet"], **settings, "source": source}
    return PipelineUnderTest(directory / "pipeline", "", listed, settings)


def written(pipeline: PipelineUnderTest, document: dict[str, Any]) -> Path:
    path = pipeline.directory / "olake-state.json"
    path.write_text(json.dumps(document))
    return path


def migrate(pipeline: PipelineUnderTest, document: dict[str, Any]) -> dict[str, MigratedStream]:
    told = Pipeline.from_yaml(pipeline.file).migrate(written(pipeline, document))
    return {each.stream.partition(".")[2]: each for each in told}


def changes_of(before: TwoTables, pipeline: PipelineUnderTest, table: str = "history") -> Counter[Change]:
    """What an append table has, by operation; deleted rows by their id."""
    found = Counter[Change]()
    for row in _rows(before, pipeline, table):
        number, value = before.values(row)
        found[row["_op"], number, None if row["_op"] == "d" else value] += 1
    return found


def held(before: TwoTables, pipeline: PipelineUnderTest, table: str = "state") -> dict[int, str | None]:
    rows = [before.values(row) for row in _rows(before, pipeline, table)]
    assert len(dict(rows)) == len(rows), "a row is there twice"
    return dict(rows)


def _rows(before: TwoTables, pipeline: PipelineUnderTest, table: str) -> list[dict[str, Any]]:
    files = sorted(pipeline.path(f"{before.namespace}.{table}").glob("*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
