"""`penstock state rewind`: the log is applied once more to a table that was spoilt, in one commit."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock import Pipeline
from penstock.core.stream import StreamId
from penstock.destinations.records import Marker
from penstock.lake.destination import destination_of
from tests.chaos.matrix import OF_REWIND
from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.traps import MakePipeline
from tests.verifiable import data_files, plant_in, with_column

pytestmark = pytest.mark.integration

#: On both kinds of tables; Iceberg's cost Java's start.
BOTH = pytest.mark.parametrize(
    "make", ["parquet", pytest.param("iceberg", marks=pytest.mark.slow)], indirect=True
)
STREAM = "public.items"
ITEMS = "CREATE TABLE items (id bigint PRIMARY KEY, n int, v text, large text)"
#: So long that it is stored out of line: an update of another column sends none of it.
LARGE = "(SELECT string_agg(md5((i * 1000 + j)::text), '') FROM generate_series(1, 100) AS j)"
#: Rows change, go, move with large values that are not sent, and others come under the keys they had: who
#: asked the table for the row of the key that a row came from would find a wrong one.
FIRST = (
    "UPDATE items SET n = n + 1 WHERE id % 5 = 0",
    "DELETE FROM items WHERE id BETWEEN 11 AND 20",
    f"INSERT INTO items SELECT i, 0, 'new', {LARGE} FROM generate_series(2001, 2020) AS i",
    "UPDATE items SET id = id + 10000 WHERE id BETWEEN 101 AND 110",
)
SECOND = (
    f"INSERT INTO items SELECT i, 5, 'another', reverse({LARGE}) FROM generate_series(101, 105) AS i",
    "UPDATE items SET large = reverse(large) WHERE id BETWEEN 121 AND 130",
    "UPDATE items SET v = v || '!' WHERE id BETWEEN 125 AND 140",
    "UPDATE items SET id = id + 10000 WHERE id BETWEEN 10101 AND 10103",
    "DELETE FROM items WHERE id BETWEEN 2011 AND 2015",
)
THIRD = (
    "UPDATE items SET n = n + 1 WHERE id % 7 = 0",
    "UPDATE items SET id = id + 50000 WHERE id BETWEEN 10104 AND 10106",
    "DELETE FROM items WHERE id = 2001",
)


def fill(database: Database, rows: int = 400) -> None:
    database.execute(ITEMS)
    database.execute("ALTER TABLE items ALTER COLUMN large SET STORAGE EXTERNAL")
    database.execute(
        f"INSERT INTO items SELECT i, i % 7, 'v' || i, {LARGE} FROM generate_series(1, {rows}) AS i"
    )


def execute(database: Database, statements: tuple[str, ...]) -> None:
    for statement in statements:
        database.execute(statement)


def document(pipeline: PipelineUnderTest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((pipeline.state / "state.json").read_text())
    return found


def position(pipeline: PipelineUnderTest) -> str:
    return str(document(pipeline)["global"]["state"]["lsn"])


def own(pipeline: PipelineUnderTest) -> dict[str, Any]:
    [entry] = document(pipeline)["streams"]
    found: dict[str, Any] = entry["state"]["penstock"]
    return found


def marker(pipeline: PipelineUnderTest) -> Marker:
    config = Pipeline.from_yaml(pipeline.file).config
    record = destination_of(config).table(StreamId.parse(STREAM)).record()
    assert record is not None
    assert record.marker is not None
    return record.marker


def rows_of(pipeline: PipelineUnderTest) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(pipeline.path(STREAM)).sort_by("id").to_pylist()
    return rows


def spoil(pipeline: PipelineUnderTest) -> None:
    """Other values in rows that changes of the log have made, behind everybody's back."""
    planted = 0
    for path in data_files(pipeline, STREAM):

        def change(rows: pa.Table) -> pa.Table:
            nonlocal planted
            touched = pa.array([*range(101, 106), *range(2001, 2011), 20101, 10104])
            hit = pc.is_in(rows.column("id"), touched)
            planted += pc.sum(hit).as_py() or 0
            wrong = pc.if_else(hit, "wrong", rows.column("v"))
            return with_column(rows, "v", wrong.combine_chunks())

        plant_in(path, change)
    assert planted > 0


def rewind(pipeline: PipelineUnderTest, to: str, *more: str, stream: str = STREAM) -> dict[str, Any]:
    ended = pipeline.sync_apart(command=("state", "rewind", stream, "--to", to, *more))
    assert (ended.status == 0) == ("--yes" in more and "error" not in ended.answer), str(ended)
    return ended.answer


@BOTH
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a_spoilt_table_is_what_the_log_says_after_a_rewind(
    database: Database, make: MakePipeline, deletes: str
) -> None:
    fill(database)
    pipeline = make([{"table": STREAM, "deletes": deletes}])
    pipeline.sync()
    loaded = position(pipeline)
    execute(database, FIRST)
    pipeline.sync()
    execute(database, SECOND)
    pipeline.sync()
    before, right = marker(pipeline), rows_of(pipeline)
    spoil(pipeline)
    assert rows_of(pipeline) != right
    told = rewind(pipeline, loaded, "--yes")
    assert (told["told"], told["rewind"]["from"], told["rewind"]["to"]) == ("ordered", loaded, str(before.to))
    assert own(pipeline)["rewind"] == {"to": loaded}
    report = pipeline.sync()
    now = marker(pipeline)
    assert rows_of(pipeline) == right
    assert (str(now.start), now.to) == (loaded, before.to), "the table is where it was"
    assert now.generation != before.generation
    assert set(now.thread_ids).isdisjoint(before.thread_ids)
    assert own(pipeline)["generation"] == now.generation
    assert "rewind" not in own(pipeline)
    assert [stream.rows_loaded for stream in report.streams] == [0]
    # And it goes on from there.
    execute(database, THIRD)
    pipeline.sync()
    assert marker(pipeline).generation == now.generation
    if deletes == "hard":
        pipeline.assert_same(STREAM)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("failpoint", OF_REWIND)
def test_killed_on_the_way_a_rewind_ends_right_though_the_source_goes_on(
    database: Database, make: MakePipeline, failpoint: str
) -> None:
    fill(database)
    pipeline = make([STREAM])
    pipeline.sync()
    loaded = position(pipeline)
    execute(database, (*FIRST, *SECOND))
    pipeline.sync()
    before = marker(pipeline)
    spoil(pipeline)
    rewind(pipeline, loaded, "--yes")
    database.execute("UPDATE items SET n = n + 1 WHERE id % 11 = 0")
    ended = pipeline.sync_apart(f"{failpoint}=kill")
    assert (ended.killed, ended.struck) == (True, (f"{failpoint}=kill",)), str(ended)
    execute(database, THIRD)
    report = pipeline.sync()
    pipeline.assert_same(STREAM)
    assert [stream.rows_loaded for stream in report.streams] == [0], "nothing was loaded again"
    assert marker(pipeline).generation != before.generation
    assert "rewind" not in own(pipeline)
