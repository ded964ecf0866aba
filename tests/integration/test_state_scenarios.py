"""The tables of the state file's contract, row by row, at MySQL, MariaDB and MongoDB.

Each row is a moment in which a sync is killed. The state file is then what that row says, in the source's own
words; the source goes on, and the next sync ends in the right tables and in a state without temporary fields.
`unit/test_mysql_state.py` and `unit/test_mongodb_state.py` have the same without servers, and the chaos suite
kills at every place beside writers.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines import PipelineUnderTest
from tests.predecessors import (
    TABLES,
    MongoPredecessor,
    MysqlPredecessor,
    changes_of,
    held,
    successor,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

Source = MysqlPredecessor | MongoPredecessor
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


# CDC: one position for all streams at MySQL, one for each at MongoDB

MOMENTS = {
    "cdc.preparing": (set[str](), "before"),  # nothing is written down
    "cdc.prepared": (set(TABLES), "before"),  # no stream is committed
    "cdc.committed": (set(TABLES), "before"),  # one stream is, and nobody knows
    "cdc.processed": (set(TABLES[:1]), "partly"),  # it is taken from those that wait
    "cdc.all_processed": (set[str](), "partly"),  # all are, the shared position has not moved
    "cdc.moved": (set[str](), "after"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_round_of_changes(before: Source, tmp_path: Path, moment: str) -> None:
    before.insert(1, "loaded")
    pipeline = successor(before, tmp_path, FOLLOWED)
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
    before.insert(3, "after the crash")
    before.delete(2)
    pipeline.sync()
    assert_settled(before, pipeline, *TABLES)
    assert held(before, pipeline) == before.rows("state")
    found = Counter((op, number) for op, number, _ in changes_of(before, pipeline).elements())
    assert found == Counter([("r", 1), ("i", 2), ("u", 1), ("i", 3), ("d", 2)])


@pytest.mark.parametrize("moment", ["cdc.prepared", "cdc.committed"])
def test_a_round_that_waits_for_a_stream_which_is_no_longer_configured(
    before: Source, tmp_path: Path, moment: str
) -> None:
    """It is taken from those that wait; if it was the only one, the round is over."""
    before.insert(1, "loaded")
    pipeline = successor(before, tmp_path, FOLLOWED)
    pipeline.sync()
    before.insert(2, "new")
    kill(pipeline, moment)
    _, waiting = positions(before, pipeline)
    assert set(waiting) == set(TABLES)
    pipeline.streams = pipeline.streams[:1]
    pipeline.write_file()
    before.update(1, "changed")
    pipeline.sync()
    assert_settled(before, pipeline, "state")
    assert held(before, pipeline) == before.rows("state")
    _, waiting = positions(before, pipeline)
    assert waiting == {}


def test_streams_without_an_open_round_need_no_recovery(before: Source, tmp_path: Path) -> None:
    """Only one of two has changes; the other is where the round ends, or where it was, without any."""
    before.insert(1, "loaded")
    pipeline = successor(before, tmp_path, FOLLOWED)
    pipeline.sync()
    if isinstance(before, MongoPredecessor):
        before.database["state"].update_one({"_id": 1}, {"$set": {"v": "changed"}})
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
def test_a_full_refresh(before: Source, tmp_path: Path, moment: str, left: bool, preparing: bool) -> None:
    for number in range(40):
        before.insert(number, "first")
    pipeline = successor(before, tmp_path, {"state": {"mode": "full_refresh"}}, load={"rows_per_chunk": 10})
    kill(pipeline, moment)
    chunks = stream_states(pipeline)["state"]["chunks"]
    assert bool(chunks) == left
    assert any(chunk.get("status") == "preparing" for chunk in chunks) == preparing
    if moment == "load.planned":
        # Of servers that share no snapshots, one moment is one chunk.
        assert (len(chunks) > 1) == isinstance(before, MongoPredecessor)
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
def test_a_round_of_a_cursor(
    before: Source, tmp_path: Path, moment: str, cursors: dict[str, int], write: str
) -> None:
    before.insert(1, "loaded")
    layout = {"layout": "fields"} if isinstance(before, MongoPredecessor) else {}
    streams = {"state": {"mode": "incremental", "cursor": "id", "lookback": 0, "write": write}}
    pipeline = successor(before, tmp_path, streams, source=layout)
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
