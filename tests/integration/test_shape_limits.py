"""What a served instance keeps of shapes is bounded: by bytes on disk, and by when somebody last read them.

A shape that goes takes its handle with it: clients are told to fetch anew, and then have the rows again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.shapes.storage import place
from tests.conftest import Database, wait_until
from tests.serving import Answer, ShapeServer, followed, rows, synced

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_ROWS = 6_000  # of 1 KB and a bit: two tables stay below the smallest limit there is, three do not
_UPKEEP_S = 60.0


def test_beyond_the_limit_on_disk_the_shape_goes_that_was_not_read_for_longest(
    database: Database, tmp_path: Path
) -> None:
    for table in ("first", "second", "third"):
        _fill(database, table, _ROWS)
    with ShapeServer(database.url, tmp_path / "shapes", options={"--max-disk-bytes": "16MiB"}) as server:
        server.wait_until_active()
        first, _ = synced(server, table="first")
        second, _ = synced(server, table="second")
        assert _kept(server) == {first.handle, second.handle}
        assert _again(server, first, "first").status == 200, "read since: the other one is next"
        third, _ = synced(server, table="third")
        wait_until(lambda: len(_kept(server)) == 2, "a shape to go", _UPKEEP_S)
        assert _kept(server) == {first.handle, third.handle}
        assert _again(server, third, "third").status == 200
        _assert_fetched_anew(database, server, second, "second", _ROWS)


def test_a_shape_that_nobody_reads_goes_and_one_that_is_read_stays(
    database: Database, tmp_path: Path
) -> None:
    for table in ("unread", "kept"):
        _fill(database, table, 10)
    with ShapeServer(database.url, tmp_path / "shapes", options={"--expire-after": "10s"}) as server:
        server.wait_until_active()
        kept, _ = synced(server, table="kept")
        left, _ = synced(server, table="unread")

        def has_gone() -> bool:
            assert _again(server, kept, "kept").status == 200
            return left.handle not in _kept(server)

        wait_until(has_gone, "the shape that nobody reads to go", _UPKEEP_S)
        assert kept.handle in _kept(server)
        _assert_fetched_anew(database, server, left, "unread", 10)


def _fill(database: Database, table: str, count: int) -> None:
    database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
    database.execute(
        f"INSERT INTO {table} SELECT i, repeat(md5(i::text), 32) FROM generate_series(1, {count}) AS i"
    )


def _kept(server: ShapeServer) -> set[str]:
    """Handles of the shapes on disk; looking there is not reading them."""
    files = place.files_of(server.storage / "shapes")
    assert files is not None
    return {path.name for path in (files / "shapes").iterdir()}


def _again(server: ShapeServer, last: Answer, table: str) -> Answer:
    return server.get(table=table, offset=last.offset, handle=last.handle)


def _assert_fetched_anew(
    database: Database, server: ShapeServer, last: Answer, table: str, count: int
) -> None:
    told = _again(server, last, table)
    assert told.status == 409
    assert told.json() == [{"headers": {"control": "must-refetch"}}]
    assert told.handle != last.handle
    last, messages = synced(server, table=table)
    assert len(rows(messages)) == count
    database.execute(f"INSERT INTO {table} VALUES (0, 'new')")
    messages += followed(server, last, "0", table=table)
    assert {(row["id"], row["note"]) for row in rows(messages).values()} == {
        (str(key), note) for key, note in database.query(f"SELECT id, note FROM {table}")
    }
