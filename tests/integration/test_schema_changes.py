"""Tables that change at the source: followed, or waited for, or refused, and exact in the end."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock import Pipeline
from penstock.core.errors import SourceError
from penstock.core.report import StreamStatus
from tests.conftest import Database
from tests.pipelines import DESTINATIONS, PipelineUnderTest
from tests.traps import MakePipeline

pytestmark = pytest.mark.integration

TABLE = """
CREATE TABLE state (id int PRIMARY KEY, v varchar(20), n int, code int NOT NULL);
INSERT INTO state SELECT g, 'v' || g, g, g FROM generate_series(1, 20) g;
"""
OTHER = "CREATE TABLE other (id int PRIMARY KEY, v text); INSERT INTO other SELECT generate_series(1, 5)"
#: What happens to the table between two changes of rows; whether a pause sees it in the log or the catalog.
CHANGES = {
    "a column with a constant default": "ALTER TABLE state ADD c int NOT NULL DEFAULT 7",
    "a column with a volatile default": "ALTER TABLE state ADD c uuid DEFAULT gen_random_uuid()",
    "a column without default": "ALTER TABLE state ADD c text",
    "a generated column": "ALTER TABLE state ADD g int GENERATED ALWAYS AS (n * 2) STORED",
    "a column dropped": "ALTER TABLE state DROP COLUMN n",
    "a column renamed": "ALTER TABLE state RENAME COLUMN n TO m",
    "a column dropped and added": "ALTER TABLE state DROP COLUMN n; ALTER TABLE state ADD n int DEFAULT 5",
    "a type of other values": "ALTER TABLE state ALTER n TYPE bigint",
    "values rewritten": "ALTER TABLE state ALTER n TYPE int USING n * 10",
    "a table made anew": "ALTER TABLE state RENAME TO was; CREATE TABLE state (LIKE was INCLUDING ALL);"
    "INSERT INTO state SELECT * FROM was WHERE id < 9; DROP TABLE was",
    "another key": "ALTER TABLE state DROP CONSTRAINT state_pkey; ALTER TABLE state ADD PRIMARY KEY (code)",
    "several at once": "ALTER TABLE state RENAME n TO m; ALTER TABLE state ADD c int DEFAULT 1;"
    "UPDATE state SET c = 2 WHERE id < 4; ALTER TABLE state DROP v;"
    "ALTER TABLE state ADD v date DEFAULT now(); INSERT INTO state (id, code) VALUES (50, 50)",
}
#: These change nothing that the table holds, so nobody is asked.
NO_CHANGES = {
    "a virtual column": "ALTER TABLE state ADD g int GENERATED ALWAYS AS (n * 2) VIRTUAL",
    "a wider type": "ALTER TABLE state ALTER v TYPE varchar(40)",
    "text instead of varchar": "ALTER TABLE state ALTER v TYPE text",
    "nullable": "ALTER TABLE state ALTER code DROP NOT NULL",
    "a new default": "ALTER TABLE state ALTER n SET DEFAULT 5",
    "an index": "CREATE INDEX ON state (n)",
}


def opened(pipeline: PipelineUnderTest) -> Pipeline:
    return Pipeline.from_yaml(pipeline.file)


def status_of(pipeline: PipelineUnderTest, stream: str = "public.state") -> StreamStatus:
    return next(each for each in opened(pipeline).status().streams if each.stream == stream)


def stream(policy: str, **settings: Any) -> dict[str, Any]:
    return {"table": "public.state", "on_schema_change": policy, **settings}


def on(table: str, statements: str) -> str:
    """The statements for another table than `state`."""
    return re.sub(r"\b(state|was)(?=\b|_pkey)", lambda match: f"{table}_{match[0]}"[-63:], statements)


def tables_for(database: Database, changes: dict[str, str]) -> dict[str, str]:
    """A table for each change, so that one sync sees them all: the changes by stream."""
    database.execute(OTHER)
    for number in range(len(changes)):
        database.execute(on(f"t{number}", TABLE))
    return {
        f"public.t{number}_state": on(f"t{number}", change) for number, change in enumerate(changes.values())
    }


def write(database: Database, word: str, *tables: str) -> None:
    """Changes of rows that need none of the columns that come and go."""
    database.execute(f"UPDATE other SET v = '{word}'")
    for table in tables or ("state",):
        database.execute(f"UPDATE {table} SET code = code + 100 WHERE id % 3 = 0")
        database.execute(f"INSERT INTO {table} (id, code) SELECT max(id) + 1, -max(id) FROM {table}")
        database.execute(f"DELETE FROM {table} WHERE id = (SELECT min(id) FROM {table})")


@pytest.mark.parametrize("destination", ["parquet", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_tables_follow_every_change_of_their_sources(
    database: Database, make: MakePipeline, destination: str
) -> None:
    changes = tables_for(database, {**CHANGES, **NO_CHANGES})
    pipeline = make(["public.*"], destination=DESTINATIONS[destination])
    pipeline.sync()
    write(database, "before", *changes)
    for change in changes.values():
        database.execute(change)
    write(database, "after", *changes)
    pipeline.sync()
    pipeline.assert_same(*changes, "public.other")
    write(database, "later", *changes)
    pipeline.sync()
    pipeline.assert_same(*changes, "public.other")


@pytest.mark.slow
def test_streams_that_wait_for_a_person_hold_nobody_up_and_miss_nothing(
    database: Database, make: MakePipeline
) -> None:
    changes = tables_for(database, CHANGES)
    pipeline = make([{"table": "public.t*", "on_schema_change": "pause"}, "public.other"])
    pipeline.sync()
    write(database, "before", *changes)
    pipeline.sync()
    pipeline.assert_same(*changes)
    for change in changes.values():
        database.execute(change)
    write(database, "after", *changes)
    shown = {stream: pipeline.version(stream) for stream in changes}
    for word in ("one", "two"):
        pipeline.sync()
        pipeline.assert_same("public.other")
        assert {stream: pipeline.version(stream) for stream in changes} == shown
        write(database, word, *changes)
    notes = opened(pipeline).status().notes
    for stream in changes:
        paused = status_of(pipeline, stream).paused
        assert paused is not None, f"{stream} should wait"
        assert "on_schema_change" in paused.reason
        assert paused.log_steps_kept > 0
        assert any(f"{stream} is paused" in note for note in notes), "it pins the log, which must be seen"
    names = list(changes)
    opened(pipeline).resume(names[::2])
    opened(pipeline).resync(names[1::2])
    pipeline.assert_same(*changes, "public.other")
    assert {status_of(pipeline, stream).state for stream in changes} == {"following"}
    database.execute("ALTER TABLE t0_state ADD another int DEFAULT 1")
    write(database, "later", *changes)
    pipeline.sync()
    assert status_of(pipeline, names[0]).state == "paused", "what was accepted was that change, not the next"
    pipeline.assert_same(*names[1:])


@pytest.mark.slow
def test_what_changed_once_more_is_asked_about_once_more(database: Database, make: MakePipeline) -> None:
    database.execute(TABLE)
    database.execute(OTHER)
    pipeline = make([stream("pause"), "public.other"])
    pipeline.sync()
    database.execute("ALTER TABLE state ADD c int DEFAULT 1")
    write(database, "after")
    pipeline.sync()
    opened(pipeline).resume(["public.state"])
    database.execute("ALTER TABLE state DROP COLUMN v")
    write(database, "again")
    pipeline.sync()
    assert status_of(pipeline).state == "paused"
    opened(pipeline).resume(["public.state"])
    pipeline.sync()
    pipeline.assert_same("public.state", "public.other")


@pytest.mark.parametrize("policy", ["pause", pytest.param("fail", marks=pytest.mark.slow)])
def test_what_changes_nothing_in_the_table_asks_nobody(
    database: Database, make: MakePipeline, policy: str
) -> None:
    changes = tables_for(database, NO_CHANGES)
    pipeline = make([{"table": "public.t*", "on_schema_change": policy}, "public.other"])
    pipeline.sync()
    for change in changes.values():
        database.execute(change)
    write(database, "on", *changes)
    pipeline.sync()
    assert {status_of(pipeline, stream).state for stream in changes} == {"following"}
    pipeline.assert_same(*changes, "public.other")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["a column dropped", "a type of other values"])
def test_a_stream_may_end_the_sync_until_somebody_decides(
    database: Database, make: MakePipeline, change: str
) -> None:
    database.execute(TABLE)
    database.execute(OTHER)
    pipeline = make([stream("fail"), "public.other"])
    pipeline.sync()
    database.execute(CHANGES[change])
    write(database, "after")
    for _ in range(2):
        with pytest.raises(SourceError, match="changed at the source") as refused:
            pipeline.sync()
        assert refused.value.stream == "public.state"
        assert "penstock resync public.state" in refused.value.remedy
    opened(pipeline).resync(["public.state"])
    pipeline.assert_same("public.state", "public.other")


PARTITIONS = """
CREATE TABLE state (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE state_low PARTITION OF state FOR VALUES FROM (0) TO (100);
CREATE TABLE state_high PARTITION OF state FOR VALUES FROM (100) TO (200);
CREATE TABLE state_spare (id int PRIMARY KEY, v text);
INSERT INTO state SELECT g, 'v' FROM generate_series(90, 110) g;
INSERT INTO state_spare VALUES (300, 'brought along');
"""
OF_PARTITIONS = (
    "ALTER TABLE state ATTACH PARTITION state_spare FOR VALUES FROM (300) TO (400)",
    "ALTER TABLE state DETACH PARTITION state_high",
    "DROP TABLE state_high",
)


@pytest.mark.parametrize("policy", ["evolve", "pause"])
def test_partitions_that_come_and_go_with_their_rows_are_followed_or_waited_for(
    database: Database, make: MakePipeline, policy: str
) -> None:
    tables = {f"public.p{number}": change for number, change in enumerate(OF_PARTITIONS)}
    database.execute(OTHER)
    for table in tables:
        database.execute(PARTITIONS.replace("state", table.partition(".")[2]))
    settings = [{"table": table, "on_schema_change": policy} for table in tables]
    pipeline = make([*settings, "public.other"])
    pipeline.sync()
    for table, change in tables.items():
        database.execute(change.replace("state", table.partition(".")[2]))
        database.execute(f"UPDATE {table} SET v = 'w'; UPDATE other SET v = 'x'")
    pipeline.sync()
    pipeline.assert_same("public.other")
    expected = "paused" if policy == "pause" else "following"
    assert {status_of(pipeline, table).state for table in tables} == {expected}
    if policy == "pause":
        opened(pipeline).resume(list(tables))
        pipeline.sync()
    pipeline.assert_same(*tables)


def test_an_append_table_waits_too_and_then_has_every_change_once(
    database: Database, make: MakePipeline
) -> None:
    database.execute(TABLE)
    database.execute(OTHER)
    pipeline = make([stream("pause", write="append")])
    pipeline.sync()
    database.execute("ALTER TABLE state ADD c int DEFAULT 1")
    write(database, "after")
    pipeline.sync()
    assert status_of(pipeline).state == "paused"
    opened(pipeline).resume(["public.state"])
    pipeline.sync()
    rows = opened(pipeline).table("public.state").to_arrow().to_pylist()
    log = opened(pipeline).log("public.state").to_arrow().to_pylist()
    offsets = sorted((row["_tx"], row["_op_index"]) for row in rows if row["_op"] != "r")
    assert offsets == sorted((row["_tx"], row["_op_index"]) for row in log)
