"""The tables of the state file's contract, row by row, at sources of every kind.

Each row is a moment in which a sync is killed. The state file is then what that row says, in the source's own
words; the source goes on, and the next sync ends in the right tables and in a state without temporary fields.
`unit/test_two_phase.py`, `unit/test_mysql_state.py` and `unit/test_mongodb_state.py` have the same without
servers, and the chaos suite kills at every place beside writers.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.core.position import Lsn
from tests.pipelines import DESTINATIONS, PipelineUnderTest
from tests.predecessors import (
    TABLES,
    MongoPredecessor,
    MysqlPredecessor,
    PostgresTables,
    changes_of,
    held,
    successor,
)

POSTGRES = [("postgres", destination) for destination in DESTINATIONS]
ELSEWHERE = [(source, "parquet") for source in ("mysql", "mariadb", "mongodb")]


def at(cases: list[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("before", "destination"), cases, indirect=["before"])


everywhere = at(POSTGRES + ELSEWHERE)
pytestmark = [pytest.mark.integration, pytest.mark.slow]

Source = PostgresTables | MysqlPredecessor | MongoPredecessor
FOLLOWED: dict[str, dict[str, Any]] = {"state": {}, "history": {"write": "append"}}


def document(pipeline: PipelineUnderTest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((pipeline.state / "state.json").read_text())
    return found


def stream_states(pipeline: PipelineUnderTest) -> dict[str, dict[str, Any]]:
    return {entry["stream"]: entry["state"] for entry in document(pipeline)["streams"]}


def kill(pipeline: PipelineUnderTest, failpoint: str) -> None:
    ended = pipeline.sync_apart(f"{failpoint}=kill")
    assert (ended.killed, ended.struck) == (True, (f"{failpoint}=kill",)), str(ended)


def positions(before: Source, pipeline: PipelineUnderTest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of each stream where it is, and where the open round goes to if it is to be committed yet."""
    if isinstance(before, MongoPredecessor):
        states = stream_states(pipeline)
        at = {name: state["_data"] for name, state in states.items()}
        return at, {name: state["next_data"] for name, state in states.items() if "next_data" in state}
    shared = document(pipeline)["global"]
    fields = shared["state"]
    if isinstance(before, PostgresTables):
        place = fields["lsn"]
    else:
        place = f"{fields['state']['name']}:{fields['state']['pos']}"
    names = [name.partition(".")[2] for name in shared["streams"]]
    to = {name.partition(".")[2]: fields["next_cdc_pos"] for name in fields.get("processing", ())}
    return dict.fromkeys(names, place), to


def assert_settled(before: Source, pipeline: PipelineUnderTest, *streams: str) -> None:
    """Nothing temporary is left: omitted, neither null nor empty."""
    states = stream_states(pipeline)
    for name in streams:
        temporary = [field for field in states[name] if field.startswith(("next_", "olake_next_cursor_"))]
        assert (temporary, states[name]["chunks"]) == ([], [])
    shared = document(pipeline).get("global", {}).get("state", {})
    assert not {"next_cdc_pos", "processing"} & shared.keys()


def assert_not_acknowledged(before: Source, pipeline: PipelineUnderTest) -> None:
    """The server may forget no more than the state says is in every table."""
    if isinstance(before, PostgresTables):
        assert Lsn.parse(before.acknowledged()) <= Lsn.parse(document(pipeline)["global"]["state"]["lsn"])


# CDC: one position for all streams at Postgres and MySQL, one for each at MongoDB

MOMENTS = {
    "cdc.preparing": (set[str](), "before"),  # nothing is written down
    "cdc.prepared": (set(TABLES), "before"),  # no stream is committed
    "cdc.committed": (set(TABLES), "before"),  # one stream is, and nobody knows
    "cdc.processed": (set(TABLES[:1]), "partly"),  # it is taken from those that wait
    "cdc.all_processed": (set[str](), "partly"),  # all are, the shared position has not moved
    "cdc.moved": (set[str](), "after"),
}


@pytest.mark.parametrize("moment", MOMENTS)
@everywhere
def test_a_round_of_changes(before: Source, destination: str, tmp_path: Path, moment: str) -> None:
    before.insert(1, "loaded")
    pipeline = successor(before, tmp_path, FOLLOWED, destination=DESTINATIONS[destination])
    pipeline.sync()
    start, _ = positions(before, pipeline)
    before.insert(2, "new")
    before.update(1, "changed")
    kill(pipeline, moment)
    at, waiting = positions(before, pipeline)
    expected, moved = MOMENTS[moment]
    assert len(waiting) == len(expected), "streams are committed in their order"
    assert all(to not in start.values() for to in waiting.values())
    if isinstance(before, MongoPredecessor):
        still = {name for name in TABLES if at[name] == start[name]}
        assert still == set(waiting) if moment != "cdc.preparing" else set(TABLES)
    else:
        assert at == start if moved != "after" else at["state"] != start["state"]
        fields = document(pipeline)["global"]["state"]
        assert ("next_cdc_pos" in fields) == (moment in list(MOMENTS)[1:5])
        assert ("processing" in fields) == bool(expected), "omitted, not empty"
    assert_not_acknowledged(before, pipeline)
    before.insert(3, "after the crash")
    before.delete(2)
    pipeline.sync()
    assert_settled(before, pipeline, *TABLES)
    assert held(before, pipeline) == before.rows("state")
    found = Counter((op, number) for op, number, _ in changes_of(before, pipeline).elements())
    assert found == Counter([("r", 1), ("i", 2), ("u", 1), ("i", 3), ("d", 2)])


@pytest.mark.parametrize("moment", ["cdc.prepared", "cdc.committed", "cdc.processed"])
@everywhere
def test_a_round_that_waits_for_a_stream_which_is_no_longer_configured(
    before: Source, destination: str, tmp_path: Path, moment: str
) -> None:
    """It is taken from those that wait; if it was the only one, the round is over."""
    before.insert(1, "loaded")
    pipeline = successor(before, tmp_path, FOLLOWED, destination=DESTINATIONS[destination])
    pipeline.sync()
    before.insert(2, "new")
    kill(pipeline, moment)
    _, waiting = positions(before, pipeline)
    assert len(waiting) == (1 if moment == "cdc.processed" else 2)
    removed = next(iter(waiting)) if moment == "cdc.processed" else "history"
    [kept] = set(TABLES) - {removed}
    pipeline.streams = [each for each in pipeline.streams if each["table"] == f"{before.namespace}.{kept}"]
    pipeline.write_file()
    before.update(1, "changed")
    pipeline.sync()
    assert_settled(before, pipeline, kept)
    if kept == "state":
        assert held(before, pipeline) == before.rows("state")
    else:
        found = Counter((op, number) for op, number, _ in changes_of(before, pipeline).elements())
        assert found == Counter([("r", 1), ("i", 2), ("u", 1)])
    at, waiting = positions(before, pipeline)
    assert (set(at), waiting) == ({kept}, {})
    assert_not_acknowledged(before, pipeline)


@pytest.mark.parametrize("moment", ["cdc.prepared", "cdc.committed", "cdc.processed"])
@at([case for case in POSTGRES + ELSEWHERE if case[0] != "mongodb"])
def test_a_bounded_sync_ends_where_the_round_was_to_end(
    before: Source, destination: str, tmp_path: Path, moment: str
) -> None:
    """Whatever the source has by then; and a stream that has its part does not get it a second time."""
    before.insert(1, "loaded")
    streams: dict[str, dict[str, Any]] = {name: {"write": "append"} for name in TABLES}
    pipeline = successor(before, tmp_path, streams, destination=DESTINATIONS[destination])
    pipeline.sync()
    before.insert(2, "new")
    kill(pipeline, moment)
    _, waiting = positions(before, pipeline)
    [to] = set(waiting.values())
    before.insert(3, "after the crash")
    kill(pipeline, "cdc.moved")  # by what finishes the round: nothing else has moved
    at, waiting = positions(before, pipeline)
    assert (at, waiting) == (dict.fromkeys(TABLES, to), {})
    assert_not_acknowledged(before, pipeline)
    first = Counter([("r", 1, "loaded"), ("i", 2, "new")])
    for table in TABLES:
        assert changes_of(before, pipeline, table) == first
    pipeline.sync()
    assert_settled(before, pipeline, *TABLES)
    for table in TABLES:
        assert changes_of(before, pipeline, table) == first + Counter([("i", 3, "after the crash")])


@everywhere
def test_streams_without_an_open_round_need_no_recovery(
    before: Source, destination: str, tmp_path: Path
) -> None:
    """Only one of two has changes; the other is where the round ends, or where it was, without any."""
    before.insert(1, "loaded")
    pipeline = successor(before, tmp_path, FOLLOWED, destination=DESTINATIONS[destination])
    pipeline.sync()
    if isinstance(before, MongoPredecessor):
        before.database["state"].update_one({"_id": 1}, {"$set": {"v": "changed"}})
    elif isinstance(before, PostgresTables):
        before.database.execute("UPDATE state SET v = 'changed' WHERE id = 1")
    else:
        before.server.execute("UPDATE shop.state SET v = 'changed' WHERE id = 1")
    kill(pipeline, "cdc.prepared")
    _, waiting = positions(before, pipeline)
    assert set(waiting) == {"state"}
    pipeline.sync()
    assert_settled(before, pipeline, *TABLES)
    assert held(before, pipeline) == before.rows("state")
    assert sum(changes_of(before, pipeline).values()) == 1
    at, _ = positions(before, pipeline)
    assert len(set(at.values())) == 1


# Full refresh


@pytest.mark.parametrize(
    ("moment", "left", "preparing"),
    [
        ("load.planned", True, False),
        ("load.preparing", True, True),
        ("load.committed", True, True),
        ("load.chunks_removed", True, True),  # the last one stays: an empty list says that all is visible
        ("load.done", False, False),
    ],
)
@everywhere
def test_a_full_refresh(
    before: Source, destination: str, tmp_path: Path, moment: str, left: bool, preparing: bool
) -> None:
    pipeline = _in_chunks(before, destination, tmp_path, {"mode": "full_refresh"})
    kill(pipeline, moment)
    chunks = stream_states(pipeline)["state"]["chunks"]
    assert bool(chunks) == left
    assert any(chunk.get("status") == "preparing" for chunk in chunks) == preparing
    if moment == "load.planned":
        # Of servers that share no snapshots, one moment is one chunk.
        assert (len(chunks) > 1) == (not isinstance(before, MysqlPredecessor))
        assert (chunks[0]["min"], chunks[-1]["max"]) == (None, None)
        assert [chunk["max"] for chunk in chunks[:-1]] == [chunk["min"] for chunk in chunks[1:]]
        assert not any("status" in chunk for chunk in chunks)
    before.update(7, "second")
    before.delete(8)
    pipeline.sync()
    if moment != "load.done":
        pipeline.sync()  # a load that was cut short shows the moment in which it began, or a later one
    assert_settled(before, pipeline, "state")
    assert held(before, pipeline) == before.rows("state")


def _in_chunks(
    before: Source, destination: str, directory: Path, stream: dict[str, Any]
) -> PipelineUnderTest:
    for number in range(40):
        before.insert(number, "first")
    if isinstance(before, PostgresTables):
        before.database.execute("ANALYZE state")  # how many rows a page has
    load = {"rows_per_chunk": 10}
    to = DESTINATIONS[destination]
    return successor(before, directory, {"state": stream}, destination=to, load=load)


@pytest.mark.parametrize(
    ("moment", "again"),
    [("load.planned", True), ("load.preparing", True), ("load.committed", False), ("load.done", False)],
)
@at(POSTGRES)
def test_chunks_that_are_committed_are_not_read_again(
    before: Source, destination: str, tmp_path: Path, moment: str, again: bool
) -> None:
    """Where a log repairs rows that moved, a load goes on under another snapshot."""
    pipeline = _in_chunks(before, destination, tmp_path, {"mode": "cdc"})
    kill(pipeline, moment)
    before.update(7, "second")
    before.delete(8)
    [report] = pipeline.sync().streams
    assert report.rows_loaded == (39 if again else 0)
    assert_settled(before, pipeline, "state")
    assert held(before, pipeline) == before.rows("state")


@pytest.mark.parametrize(("resume", "goes_on"), [("exact", False), ("per_chunk", True)])
@at(POSTGRES)
def test_chunks_of_a_full_refresh_stay_by_choice_though_its_snapshot_is_gone(
    before: Source, destination: str, tmp_path: Path, resume: str, goes_on: bool
) -> None:
    """Such a table shows a row as of the moment of its own chunk; the next refresh shows one moment again."""
    assert isinstance(before, PostgresTables)
    before.database.execute("INSERT INTO state SELECT n, 'first' FROM generate_series(0, 399) AS n")
    before.database.execute("ANALYZE state")
    stream = {"mode": "full_refresh", "resume": resume}
    pipeline = successor(
        before,
        tmp_path,
        {"state": stream},
        destination=DESTINATIONS[destination],
        load={"rows_per_chunk": 10},
    )
    kill(pipeline, "load.chunks_removed")  # those of one commit are read, the others are not
    left = stream_states(pipeline)["state"]["chunks"]
    assert 0 < len(left) < 40
    before.database.execute("UPDATE state SET v = 'second'")
    [report] = pipeline.sync().streams
    assert (report.rows_loaded < 400) == goes_on
    assert ("second" in held(before, pipeline).values(), "first" in held(before, pipeline).values()) == (
        True,
        goes_on,
    )
    assert held(before, pipeline).keys() == before.rows("state").keys(), "a key stays in its chunk"
    assert_settled(before, pipeline, "state")
    pipeline.sync()
    assert held(before, pipeline) == before.rows("state")


# Incremental


@pytest.mark.parametrize(
    ("moment", "cursors", "write"),
    [
        ("incremental.preparing", {"id": 1}, "append"),
        ("incremental.prepared", {"id": 1, "olake_next_cursor_id": 3}, "append"),
        ("incremental.written", {"id": 1, "olake_next_cursor_id": 3}, "append"),
        ("incremental.committed", {"id": 1, "olake_next_cursor_id": 3}, "append"),
        ("incremental.committed", {"id": 1, "olake_next_cursor_id": 3}, "upsert"),
        ("incremental.moved", {"id": 3}, "append"),
    ],
)
@everywhere
def test_a_round_of_a_cursor(
    before: Source, destination: str, tmp_path: Path, moment: str, cursors: dict[str, int], write: str
) -> None:
    before.insert(1, "loaded")
    layout = {"layout": "fields"} if isinstance(before, MongoPredecessor) else {}
    streams = {"state": {"mode": "incremental", "cursor": "id", "lookback": 0, "write": write}}
    pipeline = successor(before, tmp_path, streams, source=layout, destination=DESTINATIONS[destination])
    pipeline.sync()
    assert _cursors(pipeline) == {"id": 1}
    before.insert(2, "new")
    before.insert(3, "new")
    kill(pipeline, moment)
    assert _cursors(pipeline) == cursors
    before.insert(4, "after the crash")
    pipeline.sync()
    assert _cursors(pipeline) == {"id": 4}
    assert_settled(before, pipeline, "state")
    assert held(before, pipeline) == before.rows("state")


def _cursors(pipeline: PipelineUnderTest) -> dict[str, Any]:
    fields = stream_states(pipeline)["state"]
    return {name: value for name, value in fields.items() if name.endswith("id")}
