"""The judge of stream lanes finds what it is there to find: it is told a true story, then false ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, new_database
from tests.oracle import OPTIONS
from tests.oracle_history import audit_end, audited, install_audit
from tests.stream_reader import Told, assert_told

TABLE = "public.things"
Story = list[Told]


CHANGES = (
    "UPDATE things SET version = 10 WHERE id = 1; INSERT INTO things VALUES (5, 'new', 11)",
    "UPDATE things SET id = 7, version = 12 WHERE id = 2",
    "DELETE FROM things WHERE id = 5; INSERT INTO things VALUES (8, NULL, 13)",
    "INSERT INTO things VALUES (9, 'short', 14)",
    "DELETE FROM things WHERE id = 9",
    "UPDATE things SET version = 15 WHERE id = 1",
)
TRUNCATED = (
    *CHANGES,
    "TRUNCATE things; INSERT INTO things VALUES (1, 'after', 16)",
    "UPDATE things SET version = 17 WHERE id = 1",
)


@pytest.fixture(scope="module", params=[CHANGES, TRUNCATED], ids=["changed", "truncated"])
def source(request: pytest.FixtureRequest, server: EmbeddedPostgres) -> Iterator[tuple[Database, int, Story]]:
    with new_database(server) as database:
        database.execute("CREATE TABLE things (id int PRIMARY KEY, v text, version int)")
        install_audit(database.url, [TABLE])
        with psycopg.connect(database.url, options=OPTIONS, autocommit=True) as connection:
            connection.execute("INSERT INTO things SELECT n, 'v' || n, n FROM generate_series(1, 4) n")
            since = audit_end(database.url)
            for statement in request.param:
                connection.execute(statement.encode())
        yield database, since, _story(database.url, since)


def _story(url: str, since: int) -> Story:
    """What a lane would tell that had loaded the rows of `since`."""
    layout, audit = audited(url, TABLE)
    told: Story = []
    for at, change in enumerate(audit):
        row = dict(zip(layout.columns, change.row, strict=True)) if change.op in "iu" else None
        key = None if change.op == "t" else change.row if change.op == "d" else layout.key_of(change.row)
        op = {"i": "c"}.get(change.op, change.op)
        if change.number <= since:
            told.append(Told(TABLE, "r", 0, at, key, "0", None, row))
            continue
        tx = 1000 + int(change.xid)
        told.append(Told(TABLE, op, tx, 2 * at, key, "0", None, row, xid=change.xid))
        if op == "d":
            told.append(Told(TABLE, "n", tx, 2 * at, key, "0"))
    return told


def test_a_true_story_is_believed(source: tuple[Database, int, Story]) -> None:
    database, since, story = source
    judged = assert_told(database.url, TABLE, story, since=since)
    assert (judged.changes, judged.loaded) == (sum(each.is_change for each in story), 4)


def _first(story: Story, op: str) -> int:
    return next(place for place, each in enumerate(story) if each.op == op)


def _without(story: Story, place: int) -> Story:
    return story[:place] + story[place + 1 :]


def _swapped(story: Story) -> Story:
    first, second = [place for place, each in enumerate(story) if each.key == ("1",) and each.op in "cu"][-2:]
    changed = list(story)
    changed[first], changed[second] = changed[second], changed[first]
    return changed


def _other_value(story: Story) -> Story:
    place = _first(story, "u")
    after = {**(story[place].after or {}), "v": "wrong"}
    return [*story[:place], replace(story[place], after=after), *story[place + 1 :]]


LIES: dict[str, Callable[[Story], Story]] = {
    "one change is missing": lambda story: _without(story, _first(story, "u")),
    "a loaded row is missing": lambda story: _without(story, 2),
    "a loaded row is there twice": lambda story: [story[0], *story],
    "a change is there twice": lambda story: [*story, story[-1]],
    "a tombstone is there twice": lambda story: [*story, story[_first(story, "n")]],
    "two changes of a key are swapped": _swapped,
    "a value is another": _other_value,
    "a key is in two partitions": lambda story: [*story[:-1], replace(story[-1], place="1")],
    "a truncate is missing": lambda story: _without(story, _first(story, "t")),
    "a row that came and went is missing": lambda story: [each for each in story if each.key != ("9",)],
    "the end is missing": lambda story: story[:-1],
    "the beginning is missing": lambda story: story[5:],
}


#: A table that is truncated under its load is read anew, so that these may be true.
NOT_TRUNCATED = {"a loaded row is missing", "a loaded row is there twice", "the beginning is missing"}


@pytest.mark.parametrize("lie", LIES)
def test_a_false_story_is_not(source: tuple[Database, int, Story], lie: str) -> None:
    database, since, story = source
    is_truncated = any(each.op == "t" for each in story)
    if lie in NOT_TRUNCATED if is_truncated else lie == "a truncate is missing":
        pytest.skip("not of this story")
    with pytest.raises(AssertionError):
        assert_told(database.url, TABLE, LIES[lie](story), since=since)
