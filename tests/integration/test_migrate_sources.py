"""Taking over from OLake at MySQL, MariaDB and MongoDB: what carries on has every change behind OLake's place
once, and none from before it; what cannot be exact is refused, with nothing written.

`test_migrate.py` has the same for Postgres, where a slot holds the log.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import PositionGoneError, SourceBusyError, StateError
from penstock.ledger.state import StateDocument
from penstock.ledger.state_check import problems
from penstock.sources.mongodb.warming import warm_up
from tests.mongo_server import MongoServer
from tests.mysql_server import MYSQL
from tests.pipelines import PipelineUnderTest
from tests.predecessors import (
    STRICT,
    TABLES,
    Change,
    MongoPredecessor,
    MysqlPredecessor,
    Predecessor,
    changes_of,
    held,
    migrate,
    successor,
    written,
)

pytestmark = pytest.mark.integration

slow = pytest.mark.slow


only_mysql = pytest.mark.parametrize("before", ["mysql", pytest.param("mariadb", marks=slow)], indirect=True)
only_mongodb = pytest.mark.parametrize("before", ["mongodb"], indirect=True)


def filled(before: Predecessor) -> Any:
    """Rows that OLake's tables have; where they end."""
    for number in range(1, 6):
        before.insert(number, "in both")
    before.update(1, "there too")
    before.delete(2)
    return before.end()


def change_all(before: Predecessor, first: int) -> Counter[Change]:
    """Changes of every kind, also of rows that only OLake's tables have; what they are."""
    before.insert(first, "new")
    before.insert(first + 1, "new")
    before.update(first, "changed")
    before.update(3, f"changed {first}")
    before.delete(first + 1)
    return Counter(
        [
            *(("i", first, "new"), ("i", first + 1, "new"), ("d", first + 1, None)),
            *(("u", first, "changed"), ("u", 3, f"changed {first}")),
        ]
    )


def assert_carried_on(before: Predecessor, pipeline: PipelineUnderTest, changes: Counter[Change]) -> None:
    """The append table has these and no others; the other has their rows as they are at the source."""
    found = changes_of(before, pipeline)
    if isinstance(before, MongoPredecessor):  # an update shows the document as it is when it is read
        changes, found = without_values(changes), without_values(found)
    assert found == changes
    touched = {number for _, number, _ in changes}
    there = before.rows("state")
    assert held(before, pipeline) == {number: there[number] for number in touched if number in there}


def without_values(changes: Counter[Change]) -> Counter[Change]:
    return Counter((op, number, None) for op, number, _ in changes.elements())


def nothing_is_written(pipeline: PipelineUnderTest) -> bool:
    return not (pipeline.state / "state.json").exists() and not list(pipeline.state.glob("l*/*"))


def test_a_strict_stream_carries_on_where_the_other_table_ends(
    before: MysqlPredecessor | MongoPredecessor, tmp_path: Path
) -> None:
    end = filled(before)
    changes = change_all(before, 100)
    pipeline = successor(before, tmp_path)
    told = migrate(pipeline, before.document(end))
    assert {name: each.action for name, each in told.items()} == dict.fromkeys(TABLES, "carries on")
    state = StateDocument(json.loads((pipeline.state / "state.json").read_text()))
    assert problems(state) == []
    with pytest.raises(StateError, match="There is a state"):
        migrate(pipeline, before.document(end))
    changes += change_all(before, 200)
    pipeline.sync()
    assert_carried_on(before, pipeline, changes)
    changes += change_all(before, 300)
    pipeline.sync()
    assert_carried_on(before, pipeline, changes)


@slow
def test_other_streams_are_loaded_anew_beside_those_that_carry_on(
    before: MysqlPredecessor | MongoPredecessor, tmp_path: Path
) -> None:
    end = filled(before)
    changes = change_all(before, 100)
    pipeline = successor(before, tmp_path, {"state": {}, "history": STRICT["history"]})
    told = migrate(pipeline, before.document(end))
    assert [told[table].action for table in TABLES] == ["is loaded anew", "carries on"]
    pipeline.sync()
    assert held(before, pipeline) == before.rows("state")
    changes += change_all(before, 200)
    pipeline.sync()
    assert held(before, pipeline) == before.rows("state")
    assert sum(changes_of(before, pipeline).values()) == sum(changes.values())


@slow
@pytest.mark.parametrize("failpoint", ["migrate.begun", "state.version_written"])
def test_a_migration_that_is_killed_is_done_again(
    before: MysqlPredecessor | MongoPredecessor, tmp_path: Path, failpoint: str
) -> None:
    """OLake may go on until there is a state; then the next sync finds it."""
    end = filled(before)
    pipeline = successor(before, tmp_path)
    command = ("state", "migrate", "--from", str(written(pipeline, before.document(end))))
    ended = pipeline.sync_apart(f"{failpoint}=kill", command=command)
    assert (ended.killed, ended.struck) == (True, (f"{failpoint}=kill",)), str(ended)
    before.insert(50, "there too")
    changes = Counter[Change]()
    if failpoint == "migrate.begun":
        migrate(pipeline, before.document(before.end()))
    else:
        changes["i", 50, "there too"] += 1
    changes += change_all(before, 100)
    pipeline.sync()
    assert_carried_on(before, pipeline, changes)


@slow
@pytest.mark.parametrize(
    "failpoint", ["load.committed", "load.swapped", "log.manifest_written", "cdc.committed", "cdc.moved"]
)
def test_a_first_sync_that_is_killed_goes_on(
    before: MysqlPredecessor | MongoPredecessor, tmp_path: Path, failpoint: str
) -> None:
    end = filled(before)
    changes = change_all(before, 100)
    pipeline = successor(before, tmp_path)
    migrate(pipeline, before.document(end))
    ended = pipeline.sync_apart(f"{failpoint}=kill")
    assert ended.struck == (f"{failpoint}=kill",), str(ended)
    changes += change_all(before, 200)
    pipeline.sync()
    assert_carried_on(before, pipeline, changes)


@slow
def test_what_cannot_be_exact_is_refused_and_changes_nothing(
    before: MysqlPredecessor | MongoPredecessor, tmp_path: Path
) -> None:
    end = filled(before)
    pipeline = successor(before, tmp_path)
    if isinstance(before, MongoPredecessor):
        in_doubt = before.document(end, next_data=end["state"])
    else:
        place = f"{end[0]}:{end[1]}"
        in_doubt = before.document(end, next_cdc_pos=place, processing=["shop.history", "shop.state"])
    left = before.document(end)
    for entry in left["streams"]:
        entry["state"]["chunks"] = [{"min": 1, "max": None}]
    unread = before.document(dict.fromkeys(TABLES, "82xyz") if isinstance(end, dict) else ("no file", 4))
    for document, message in (
        (in_doubt, "in the middle of a round"),
        (left, "chunks of its load left"),
        (unread, "cannot be read as an OLake state file"),
        (
            {"global": {"state": {"lsn": "0/10"}, "streams": ["public.a"]}, "streams": []},
            "and the pipeline",
        ),
    ):
        with pytest.raises(StateError, match=message):
            migrate(pipeline, document)
    assert nothing_is_written(pipeline)
    streams = {"state": {}, "history": {"write": "append"}}
    loaded = successor(before, tmp_path / "anew", streams)
    assert {each.action for each in migrate(loaded, left).values()} == {"is loaded anew"}
    loaded.sync()
    assert held(before, loaded) == before.rows("state")


@only_mysql
def test_a_binlog_place_must_be_between_two_transactions_of_this_log(
    before: MysqlPredecessor, tmp_path: Path
) -> None:
    if before.server.kind is MYSQL:
        before.server.execute("SET GLOBAL binlog_transaction_compression = ON")
    file, begin = filled(before)
    before.insert(90, "x" * 30)
    if before.server.kind is MYSQL:
        before.server.execute("SET GLOBAL binlog_transaction_compression = OFF")
    before.insert(91, "x")
    _, after = before.end()
    pipeline = successor(before, tmp_path)
    found = before.server.rows(f"SHOW BINLOG EVENTS IN '{file}' FROM {begin}")
    ends = {int(row[4]) for row in found if row[2] in ("Xid", "Transaction_payload")}
    inside = {int(row[4]) for row in found} - ends - {0}  # MariaDB leaves it out inside of transactions
    assert len(ends) == 2
    assert len(inside) > 1
    for pos in (*inside, begin + 1, after - 3):
        with pytest.raises(StateError, match="not between two transactions"):
            migrate(pipeline, before.document((file, pos)))
    for other in (("other.000001", begin), (file, after + 1), (f"{file[:-6]}999999", 4)):
        with pytest.raises(PositionGoneError, match="does not have"):
            migrate(pipeline, before.document(other))
    assert nothing_is_written(pipeline)
    migrate(pipeline, before.document((file, begin)))
    pipeline.sync()
    assert changes_of(before, pipeline) == Counter([("i", 90, "x" * 30), ("i", 91, "x")])


@slow
@only_mysql
def test_a_place_at_either_end_of_a_file_is_one_like_any_other(
    before: MysqlPredecessor, tmp_path: Path
) -> None:
    end = filled(before)
    before.server.execute("FLUSH BINARY LOGS")
    sizes = dict(row[:2] for row in before.server.rows("SHOW BINARY LOGS"))
    next_file, _ = before.end()
    changes = change_all(before, 100)
    for number, place in enumerate([end, (end[0], sizes[end[0]]), (next_file, 4), (next_file, 0)]):
        pipeline = successor(before, tmp_path / str(number))
        migrate(pipeline, before.document(place))
        pipeline.sync()
        assert_carried_on(before, pipeline, changes)


@slow
@only_mysql
def test_a_log_that_was_purged_before_or_after_the_migration_is_an_error(
    before: MysqlPredecessor, tmp_path: Path
) -> None:
    end = filled(before)
    migrated, late = successor(before, tmp_path / "migrated"), successor(before, tmp_path / "late")
    migrate(migrated, before.document(end))
    change_all(before, 100)
    before.server.execute("FLUSH BINARY LOGS")
    before.server.purge()
    with pytest.raises(PositionGoneError, match="does not have"):
        migrate(late, before.document(end))
    assert nothing_is_written(late)
    with pytest.raises(PositionGoneError, match="gone"):
        migrated.sync()


@slow
@only_mongodb
def test_a_mark_is_a_place_too_and_streams_have_places_of_their_own(
    before: MongoPredecessor, tmp_path: Path
) -> None:
    before.at = "mark"
    end = filled(before)
    before.insert(50, "in one of both")
    end["state"] = before.end()["state"]
    changes = change_all(before, 100)
    changes["i", 50, "in one of both"] += 1
    pipeline = successor(before, tmp_path)
    migrate(pipeline, before.document(end))
    pipeline.sync()
    assert {(op, number) for op, number, _ in changes_of(before, pipeline)} == {
        (op, number) for op, number, _ in changes
    }
    assert sorted(held(before, pipeline)) == [3, 100]


@slow
@only_mongodb
def test_a_token_inside_of_a_transaction_is_refused_and_the_last_one_of_it_is_not(
    before: MongoPredecessor, tmp_path: Path
) -> None:
    filled(before)
    client, history = before.server.client, before.database["history"]
    with history.watch() as watched, client.start_session() as session, session.start_transaction():
        for number in (70, 71):
            history.insert_one({"_id": number, "v": "in one"}, session=session)
        before.database["state"].insert_one({"_id": 72, "v": "in one"}, session=session)
        session.commit_transaction()
        first, last = (next(watched)["_id"]["_data"] for _ in range(2))
    end = before.end()
    pipeline = successor(before, tmp_path)
    with pytest.raises(StateError, match="in the middle of a transaction") as refused:
        migrate(pipeline, before.document({**end, "history": first}))
    assert refused.value.stream == f"{before.namespace}.history"
    assert nothing_is_written(pipeline)
    migrate(pipeline, before.document({**end, "history": last}))
    changes = change_all(before, 100)
    pipeline.sync()
    assert_carried_on(before, pipeline, changes)


@slow
@only_mongodb
def test_a_pipeline_that_the_cluster_knows_is_not_taken_over(
    before: MongoPredecessor, tmp_path: Path
) -> None:
    end = filled(before)
    pipeline = successor(before, tmp_path / "same")
    migrate(pipeline, before.document(end))
    pipeline.sync()
    again = successor(before, tmp_path / "other" / "same")
    with pytest.raises(SourceBusyError, match="knows a pipeline"):
        migrate(again, before.document(end))
    assert nothing_is_written(again)


@slow
def test_a_token_that_the_oplog_has_not_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It was dropped from the oplog, before or after the migration, or is of another cluster."""
    warm_up()
    first, second = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    with MongoServer(first) as one, MongoServer(second) as two:
        here, there = (MongoPredecessor(server, "shop") for server in (one, two))
        directory = tmp_path_factory.mktemp("pipelines")
        elsewhere = filled(there)
        end = filled(here)
        migrated, late = (successor(here, directory / name) for name in ("migrated", "late"))
        with pytest.raises(PositionGoneError):
            migrate(late, here.document(elsewhere))
        migrate(migrated, here.document(end))
        change_all(here, 100)
        now = one.client.admin.command("hello")["operationTime"]
        change_all(here, 200)
        one.drop_oplog_before(now.time << 32 | now.inc)
        with pytest.raises(PositionGoneError) as gone:
            migrate(late, here.document(end))
        assert "mode: cdc" in gone.value.remedy
        assert nothing_is_written(late)
        with pytest.raises(PositionGoneError):
            migrated.sync()
