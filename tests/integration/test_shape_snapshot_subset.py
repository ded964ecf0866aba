"""Subsets of shapes, read from real Postgres."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.stream import StreamId
from penstock.shapes.shape import SnapshotProblem
from penstock.shapes.source.pool import Pools
from penstock.shapes.source.spool import PIECE_BYTES
from penstock.shapes.source.subset import SubsetError, SubsetReader, SubsetRequest, define_subset
from tests.conftest import WAIT_S, Database
from tests.shape_source import definition_of, settings_for


class Subsets:
    def __init__(self, url: str, directory: Path) -> None:
        settings = settings_for(url, directory)
        self._url = url
        self.pools = Pools.open(settings)
        self._reader = SubsetReader(self.pools.queries, settings)

    def read(self, table: str, shape: dict[str, Any] | None = None, **request: Any) -> dict[str, Any]:
        definition = definition_of(self._url, table, **shape or {})
        answer = self._reader.read(definition, define_subset(definition, SubsetRequest(**request)))
        found = answer.result(WAIT_S)
        pieces = list(found.pieces())
        assert max(map(len, pieces)) <= PIECE_BYTES
        found.close()
        body: dict[str, Any] = json.loads(b"".join(pieces))
        return body

    def ids(self, table: str, shape: dict[str, Any] | None = None, **request: Any) -> list[str]:
        return [row["value"]["id"] for row in self.read(table, shape, **request)["data"]]


@pytest.fixture
def subsets(database: Database, tmp_path: Path) -> Iterator[Subsets]:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, name text, mood mood)")
    names = [("b", "ok"), ("B", "sad"), ("a", "ok"), (None, None), ("ä", "sad")]
    for number, (name, mood) in enumerate(names, 1):
        database.execute("INSERT INTO t VALUES (%s, %s, %s)", (number, name, mood))
    made = Subsets(database.url, tmp_path)
    yield made
    made.pools.close()


def test_rows_come_in_the_order_and_number_asked_for(subsets: Subsets) -> None:
    assert subsets.ids("t", order_by="name") == ["2", "3", "1", "5", "4"]
    assert subsets.ids("t", order_by="name DESC NULLS LAST", limit=2, offset=1) == ["1", "3"]
    assert subsets.ids("t", order_by="mood, id DESC") == ["5", "2", "3", "1", "4"]
    assert subsets.ids("t", order_by="id", limit=3, where="name > $1", params=("a",)) == ["1", "5"]


def test_a_subset_is_part_of_its_shape(subsets: Subsets) -> None:
    shape = {"where": "id > 1 OR name = 'b'", "columns": "id"}
    body = subsets.read("t", shape, where="id <= 2 OR id = 1", order_by="id")
    assert [row["value"] for row in body["data"]] == [{"id": "1"}, {"id": "2"}]
    assert subsets.ids("t", {"where": "id > 3"}, where="id = 1 OR true", order_by="id") == ["4", "5"]


def test_an_answer_says_which_moment_it_shows(database: Database, subsets: Subsets) -> None:
    with database.connect(autocommit=False) as running:
        running.execute("INSERT INTO t VALUES (9)")
        (xid,) = running.execute("SELECT pg_current_xact_id()::text").fetchone() or ("",)
        database.execute("INSERT INTO t VALUES (10)")  # a later transaction that has ended
        before = database.query("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0]
        body = subsets.read("t", order_by="id", limit=1)
    metadata, row = body["metadata"], body["data"][0]
    assert (metadata["xmin"], metadata["xip_list"]) == (xid, [xid])
    assert int(metadata["xmax"]) > int(xid)
    assert int(metadata["database_lsn"]) >= before
    assert 0 <= metadata["snapshot_mark"] < 2**31
    assert row["headers"] == {
        "operation": "insert",
        "relation": ["public", "t"],
        "snapshot_mark": metadata["snapshot_mark"],
    }
    assert subsets.read("t", where="id = 0") | {"metadata": {}} == {"metadata": {}, "data": []}


def test_what_only_postgres_finds_wrong_with_a_condition_is_a_plain_sentence(
    database: Database, subsets: Subsets
) -> None:
    assert subsets.ids("t", where="mood = 'sad'", order_by="id") == ["2", "5"]
    with pytest.raises(SubsetError) as caught:
        subsets.read("t", where="mood = $1", params=("glad",))
    said = caught.value.errors["where"]
    assert said == 'invalid input value for enum mood: "glad"' or "glad" in str(said)
    database.execute("UPDATE t SET name = 'confidential' WHERE id = 1")
    with pytest.raises(SubsetError) as caught:
        subsets.read("t", where="name::int = 1")
    assert caught.value.errors == {
        "where": "the condition has no answer for some row: invalid text representation"
    }


def test_a_large_subset_is_kept_on_disk_and_comes_in_pieces(database: Database, subsets: Subsets) -> None:
    database.execute("CREATE TABLE large (id int PRIMARY KEY, a text)")
    database.execute("INSERT INTO large SELECT i, repeat('x', 1000) FROM generate_series(1, 12000) AS i")
    assert subsets.ids("large", order_by="id DESC") == [str(i) for i in range(12000, 0, -1)]


def test_a_table_that_has_changed_is_told_as_such(
    database: Database, subsets: Subsets, tmp_path: Path
) -> None:
    definition = definition_of(database.url, "t")
    database.execute("ALTER TABLE t RENAME COLUMN name TO other")
    changed: list[StreamId] = []
    reader = SubsetReader(subsets.pools.queries, settings_for(database.url, tmp_path), changed.append)
    with pytest.raises(SnapshotProblem) as caught:
        reader.read(definition, define_subset(definition, SubsetRequest())).result(WAIT_S)
    assert caught.value.status == 409
    assert changed == [definition.table]
