"""`penstock resync STREAM`: readers keep the old table until the new one is whole, and nothing is missed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pyarrow.compute as pc
import pytest

from penstock import Pipeline
from penstock.core.stream import StreamId
from penstock.lake.backfill import Backfill
from penstock.lake.following import Following
from penstock.ledger.load_record import LoadRecord
from tests.conftest import Database, wait_until
from tests.pipelines import PipelineUnderTest
from tests.traps import STREAMS, MakePipeline, PauseAt, assert_exact

ROWS = 20


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sync.ROUND_EVERY_S", 0.2)


@contextmanager
def writing(database: Database) -> Iterator[list[int]]:
    """One transaction after the other gives every row of both tables the same new value."""
    written: list[int] = []
    stopping = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            while not stopping.wait(0.05):
                value = f"v{len(written)}"
                with connection.transaction():
                    connection.execute("UPDATE state SET v = %s", (value,))
                    connection.execute("UPDATE history SET v = %s", (value,))
                written.append(len(written))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stopping.set()
        thread.join()


@contextmanager
def reading(pipeline: PipelineUnderTest) -> Iterator[list[str]]:
    """Somebody reads the table again and again; what a reader saw that the source never or no longer was."""
    wrong: list[str] = []
    newest = [-1]
    stopping = threading.Event()

    def read() -> None:
        while not stopping.wait(0.02):
            rows = Pipeline.from_yaml(pipeline.file).table("public.state").to_arrow()
            values = pc.count_distinct(rows.column("v")).as_py()
            if (rows.num_rows, values) != (ROWS, 1):
                wrong.append(f"{rows.num_rows} rows with {values} values")
                continue
            number = number_of(rows.column("v")[0].as_py())
            if number < newest[-1]:
                wrong.append(f"value {number} after {newest[-1]}")
            newest.append(number)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield wrong
    finally:
        stopping.set()
        thread.join()


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    "streams",
    [pytest.param(["public.state"], marks=pytest.mark.slow), ["public.state", "public.history"]],
)
def test_the_old_table_is_kept_up_until_the_new_one_is_complete_and_nothing_is_missed(
    tables: Database, make: MakePipeline, pause_at: PauseAt, streams: list[str]
) -> None:
    tables.execute("UPDATE state SET v = 'one value'; UPDATE history SET v = 'one value'")
    pipeline = make(STREAMS, load={"rows_per_chunk": 5})
    pipeline.sync()
    opened = Pipeline.from_yaml(pipeline.file)
    pause = pause_at("load.before_swap=pause")
    with writing(tables) as written, reading(pipeline) as wrong, ThreadPoolExecutor(1) as thread:
        with pause:
            running = thread.submit(opened.resync, streams, pipeline.notes)
            pause.wait(running)
            asked = len(written)
            for stream in streams:
                wait_until(partial(shows_later_than, pipeline, stream, asked), f"{stream} to go on")
            assert not running.done(), "the loads should still be waiting to be shown"
        report = running.result(timeout=400)
    assert {each.stream: each.rows_loaded for each in report.streams} == {
        stream: ROWS if stream in streams else 0 for stream in ("public.state", "public.history")
    }
    assert wrong == []
    pipeline.sync()
    assert_exact(pipeline)


def shows_later_than(pipeline: PipelineUnderTest, stream: str, number: int) -> bool:
    values = Pipeline.from_yaml(pipeline.file).table(stream).to_arrow().column("v").to_pylist()
    return max(map(number_of, values)) > number


def number_of(value: str) -> int:
    return int(value[1:]) if value[1:].isdigit() else -1


@pytest.mark.usefixtures("soon")
def test_a_load_that_ends_while_a_round_has_failed_leaves_a_state_that_goes_on(
    tables: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make(STREAMS)
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'before'; UPDATE history SET v = 'before'")
    failed = threading.Event()
    swap = Backfill._swap

    def swap_when_it_has_failed(self: Backfill, stream: StreamId, record: LoadRecord) -> None:
        failed.wait(60)
        swap(self, stream, record)

    def fail(*_: object) -> None:
        failed.set()
        raise _GaveUpError

    with monkeypatch.context() as patch:
        patch.setattr(Backfill, "_swap", swap_when_it_has_failed)
        patch.setattr(Following, "_apply", fail)
        with pytest.raises(_GaveUpError):
            Pipeline.from_yaml(pipeline.file).resync(["public.state"])
    tables.execute("UPDATE state SET v = 'after' WHERE id % 2 = 0; DELETE FROM history WHERE id = 3")
    pipeline.sync()
    assert_exact(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    ["cdc.prepared", "cdc.committed", "cdc.processed", "cdc.moved", "load.swapped", "load.done"],
)
def test_a_kill_while_the_old_table_is_kept_up_loses_nothing(
    tables: Database, make: MakePipeline, place: str
) -> None:
    pipeline = make(STREAMS, load={"rows_per_chunk": 5})
    pipeline.sync()
    tables.execute("UPDATE state SET v = 'before'; UPDATE history SET v = 'before'")
    # A round while the load stands still, or the load's end when a round has been.
    waits = "load.preparing=pause," if place.startswith("cdc") else ""
    ended = pipeline.sync_apart(f"{waits}{place}=kill", command=["resync", "public.state"])
    assert ended.killed, str(ended)
    tables.execute("UPDATE state SET v = 'after' WHERE id % 2 = 0; DELETE FROM history WHERE id = 3")
    pipeline.sync()
    assert_exact(pipeline)


@pytest.mark.slow
def test_a_resync_that_was_killed_still_replaces_the_history_of_an_append_table(
    tables: Database, make: MakePipeline
) -> None:
    """What was asked for is in the state: the sync that goes on must not add to the old rows."""
    pipeline = make([STREAMS[1]])
    pipeline.sync()
    tables.execute("UPDATE history SET v = 'x'")
    pipeline.sync()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.lake.load.Loader.run", _gives_up)
        with pytest.raises(_GaveUpError):
            Pipeline.from_yaml(pipeline.file).resync(["public.history"])
    tables.execute("UPDATE history SET v = 'y'")
    pipeline.sync()
    assert_history_is_of_the_new_load(pipeline)


class _GaveUpError(Exception):
    pass


def _gives_up(*_: object) -> None:
    raise _GaveUpError


def assert_history_is_of_the_new_load(pipeline: PipelineUnderTest) -> None:
    pipeline.assert_history("public.history")
    operations = Pipeline.from_yaml(pipeline.file).table("public.history").to_arrow().column("_op")
    assert operations.to_pylist().count("r") == ROWS
