"""The lake lane of `penstock run`, with a real always-on capture beside it and no supervisor.

In a thread of the test's it shares the test run's Spark session; as a process of its own it can be killed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from penstock import Pipeline, lake_process, metrics
from penstock.capture.from_config import service_of, spec_of
from penstock.capture.remote import RemoteCapture
from penstock.capture.spec import LAKE_LANE
from penstock.config import Config
from penstock.core.errors import DestinationError, SourceBusyError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.lake import maintenance
from penstock.lake_process import LakeProcess
from penstock.ledger.state import StreamState
from penstock.ledger.store import StateStore
from penstock.log.manifest import newest_manifest
from penstock.metrics import Metric, Sample
from penstock.operations import rewinds
from penstock.operations import streams as operations
from tests.conftest import Database, wait_until
from tests.pipelines import DESTINATIONS, PipelineUnderTest, streams_of
from tests.traps import MakePipeline, write
from tests.workload import APPEND, UPSERT, Workload

WAIT_S = 120.0
A_CHANGE = "UPDATE state SET v = v WHERE id = 1"
SETTINGS: dict[str, Any] = {"lanes": {"lake": {"every": "200ms"}}, "load": {"rows_per_chunk": 200}}


class Child:
    """A process as the supervisor has it. `said`: the lines on its channel."""

    def __init__(self, module: str, spec: dict[str, Any], **environment: str) -> None:
        self.said: list[dict[str, Any]] = []
        path = os.pathsep.join(each for each in sys.path if each)
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "PYTHONPATH": path},
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(spec) + "\n")
        self.process.stdin.flush()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def stop(self) -> int:
        """Ask for the end, as the supervisor does; the exit code."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write('{"request": "stop"}\n')
            self.process.stdin.flush()
        self.process.wait(WAIT_S)
        return self._end()

    def state(self) -> str:
        return next((line["state"] for line in reversed(self.said) if line["event"] == "state"), "")

    def _end(self) -> int:
        status = self.process.wait(WAIT_S)
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        return status

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))


@dataclass
class Heard:
    """A channel that leads nowhere."""

    stop_asked: threading.Event = field(default_factory=threading.Event)
    states: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def state(self, state: str, reason: str = "") -> None:
        self.states.append(state)

    def metrics(self, samples: list[Sample]) -> None:
        self.samples = samples

    def note(self, message: str) -> None:
        self.notes.append(message)

    def value(self, metric: Metric, **labels: str) -> float | None:
        return next((value for name, at, value in self.samples if (name, at) == (metric.name, labels)), None)


class Instance:
    """Capture and lake of one instance: what `penstock run` would start for this pipeline."""

    def __init__(self, pipeline: PipelineUnderTest) -> None:
        self.pipeline = pipeline
        self.config = Config.load(pipeline.file)
        self.heard = Heard()
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-")
        self._service = service_of(self.config, Path(self._directory.name))
        self.capture: Child | None = None
        self.lake: Child | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as ends:
            ends.callback(self._directory.cleanup)
            for child in (self.capture, self.lake):
                if child is not None:
                    ends.callback(child.kill)
            ends.callback(self.stop_lane)

    def start_capture(self) -> None:
        spec = spec_of(self.config, service=self._service).to_json()
        self.capture = Child("penstock.capture", spec)

    def start_lake(self) -> None:
        """As a process of its own."""
        capture = {"address": self._service.address, "token": None, "certificate": None}
        spec = {"config": str(self.pipeline.file), "capture": capture, "warm": True}
        self.lake = Child("penstock.lake_process", spec, JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1")

    def start_lane(self) -> None:
        """In a thread of ours."""
        self.heard = Heard()
        self._thread = threading.Thread(target=self._run_lane, name="lake")
        self._thread.start()

    def stop_lane(self) -> None:
        self.heard.stop_asked.set()
        if self._thread is not None:
            self._thread.join(WAIT_S)
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def stop(self) -> None:
        """In order."""
        self.stop_lane()
        assert self.capture is not None
        assert self.capture.stop() == 0
        self.capture = None

    def _run_lane(self) -> None:
        try:
            with RemoteCapture(self._service.address, LAKE_LANE) as capture:
                LakeProcess(self.heard, self.config, capture).run(warm=False)  # type: ignore[arg-type]
        except BaseException as error:
            self._failure = error

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: self._failure is not None or condition(), what, WAIT_S)
        if self._failure is not None:
            raise self._failure

    def wait_until_level(self, database: Database, change: str = A_CHANGE) -> None:
        """Until the tables hold all that is committed now: a change that comes later is there."""
        [(now,)] = database.query("SELECT pg_current_wal_insert_lsn()::text")
        database.execute(change)
        self.wait(lambda: _is_at(self.pipeline.state, Lsn.parse(now)), f"every table to be at {now}")


def _is_at(state: Path, position: Lsn) -> bool:
    document = StateStore(state).load()
    if document is None or document.lsn is None or document.lsn < position or document.next_cdc_pos:
        return False
    loaded = all(each.has_completed_backfill for each in document.stream_states)
    return loaded and all((each.cdc_from or position) >= position for each in document.stream_states)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done seldom is done often."""
    monkeypatch.setattr(lake_process, "LOOK_EVERY_S", 0.5)
    monkeypatch.setattr(lake_process, "MOVE_EVERY_S", 0.5)
    monkeypatch.setattr(lake_process, "SWEEP_EVERY_S", 1.0)


@pytest.fixture
def pipeline(tables: Database, make: MakePipeline) -> PipelineUnderTest:
    return make(["public.state", {"table": "public.history", "write": "append"}], **SETTINGS)


@pytest.fixture
def instance(pipeline: PipelineUnderTest) -> Iterator[Instance]:
    with Instance(pipeline) as made:
        yield made


def test_tables_are_loaded_and_then_follow_their_source(tables: Database, instance: Instance) -> None:
    instance.start_capture()
    instance.start_lane()
    for first in (100, 200, 300):
        with tables.connect() as connection:
            write(connection, first, first + 9)
        instance.wait_until_level(tables)
        instance.pipeline.assert_same("public.state")
        instance.pipeline.assert_history("public.history")
    heard = instance.heard

    def is_fresh() -> bool:
        seconds = heard.value(metrics.FRESHNESS_SECONDS, stream="public.state")
        return seconds is not None and 0 <= seconds < WAIT_S

    instance.wait(is_fresh, "a round to be measured")
    applied = {"stream": "public.state", "operation": "insert"}
    # The first ten may have been loaded.
    instance.wait(lambda: heard.value(metrics.ROWS_APPLIED, **applied) in (20, 30), "inserts to be counted")
    instance.wait(lambda: heard.value(metrics.STREAM_LAG_SECONDS, stream="public.state") == 0, "no lag")
    instance.stop()
    assert heard.states[0] == "waiting"
    assert heard.states[-1] == "stopping"
    [(acknowledged,)] = tables.query(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
        (instance.pipeline.name,),
    )
    document = StateStore(instance.pipeline.state).load()
    assert document is not None
    assert Lsn.parse(acknowledged) == document.lsn, "what the tables hold is acknowledged in the end"


@pytest.mark.slow
def test_a_commit_comes_by_size_long_before_its_time(tables: Database, make: MakePipeline) -> None:
    settings = {"lanes": {"lake": {"every": "1h", "max_bytes": "1MiB"}}, "log": {"seal_every": "200ms"}}
    with Instance(make(["public.state"], **settings)) as instance:
        instance.start_capture()
        instance.start_lane()
        instance.wait(lambda: instance.pipeline.has_table("public.state"), "the load")
        shown = instance.pipeline.version("public.state")
        tables.execute("INSERT INTO state VALUES (100, 'little')")
        [(text,)] = tables.query("SELECT pg_current_wal_insert_lsn()::text")
        written, log = Lsn.parse(text), instance.pipeline.state / "log"

        def is_sealed() -> bool:
            newest = newest_manifest(log)
            return newest is not None and newest.end >= written

        instance.wait(is_sealed, "the change to wait in the log")
        assert instance.pipeline.version("public.state") == shown, "too little, and the hour is not over"
        tables.execute(
            "INSERT INTO state SELECT n, string_agg(md5(n::text || m), '') FROM generate_series(101, 140) n, "
            "generate_series(1, 2000) m GROUP BY n"
        )
        instance.wait(lambda: _is_same(instance, "public.state"), "a commit by size")
        instance.stop()


@pytest.mark.slow
def test_a_lane_begins_anew_with_the_next_term(tables: Database, instance: Instance) -> None:
    instance.start_capture()
    instance.start_lane()
    instance.wait_until_level(tables)
    for first in (100, 200):
        assert instance.capture is not None
        instance.capture.kill()
        with tables.connect() as connection:
            write(connection, first, first + 9)
        instance.start_capture()
        instance.wait_until_level(tables)
    instance.pipeline.assert_same("public.state")
    instance.pipeline.assert_history("public.history")
    assert (instance.heard.value(metrics.ROUND_RETRIES, lane="lake") or 0) >= 2


@pytest.mark.slow
def test_a_table_that_a_pattern_matches_later_is_loaded_beside_the_others(
    tables: Database, make: MakePipeline
) -> None:
    with Instance(make(["public.state", "public.la*"], **SETTINGS)) as instance:
        instance.start_capture()
        instance.start_lane()
        instance.wait_until_level(tables)
        tables.execute("CREATE TABLE later (id int PRIMARY KEY, v text)")
        tables.execute("INSERT INTO later SELECT n, 'v' FROM generate_series(1, 500) n")
        state = StateStore(instance.pipeline.state)
        instance.wait(lambda: "public.later" in map(str, _streams(state)), "the new table to be there")
        tables.execute("UPDATE later SET v = 'w' WHERE id % 2 = 0")
        with tables.connect() as connection:
            write(connection, 100, 109)
        instance.wait_until_level(tables)
        instance.pipeline.assert_same("public.later", "public.state")


def _streams(store: StateStore) -> list[object]:
    document = store.load()
    return [] if document is None else list(document.streams)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["made again", "taken out of the publication"])
def test_a_table_that_the_publication_lost_is_followed_on(
    how: str, tables: Database, instance: Instance
) -> None:
    instance.start_capture()
    instance.start_lane()
    instance.wait_until_level(tables)
    if how == "made again":
        tables.execute(
            "CREATE TABLE other (LIKE state INCLUDING ALL);"
            "INSERT INTO other SELECT * FROM state WHERE id > 3;"
            "DROP TABLE state; ALTER TABLE other RENAME TO state"
        )
    else:
        tables.execute(f"ALTER PUBLICATION {instance.pipeline.name} DROP TABLE state")
    tables.execute("UPDATE state SET v = v || '!'")

    def is_published() -> bool:
        found = tables.query(
            "SELECT 1 FROM pg_publication_tables WHERE pubname = %s AND tablename = 'state'",
            (instance.pipeline.name,),
        )
        return bool(found)

    instance.wait(is_published, "the table to be in the publication again")
    with tables.connect() as connection:
        write(connection, 500, 509)
    instance.wait_until_level(tables)
    instance.wait(lambda: _is_same(instance, "public.state"), "the table to be loaded again and level")
    instance.stop()


def _is_same(instance: Instance, stream: str) -> bool:
    try:
        instance.pipeline.assert_same(stream)
    except AssertionError:
        return False
    return True


@pytest.mark.slow
def test_streams_that_read_no_log_are_read_again_after_their_time(
    tables: Database, make: MakePipeline
) -> None:
    tables.execute("CREATE TABLE whole (id int, v text)")
    tables.execute("CREATE TABLE risen (id int PRIMARY KEY, v text)")
    streams: list[Any] = [
        "public.state",
        {"table": "public.whole", "mode": "full_refresh"},
        {"table": "public.risen", "mode": "incremental", "cursor": "id"},
    ]
    settings = {**SETTINGS, "lanes": {"lake": {"every": "200ms", "refresh_every": "500ms"}}}
    with Instance(make(streams, **settings)) as instance:
        instance.start_capture()
        instance.start_lane()
        instance.wait_until_level(tables)
        tables.execute("INSERT INTO whole VALUES (1, 'a'), (2, 'b')")
        tables.execute("INSERT INTO risen VALUES (1, 'a'), (2, 'b')")

        def shown(stream: str) -> bool:
            with suppress(DestinationError):  # there is no table yet
                return bool(Pipeline(instance.config).table(stream).to_arrow().num_rows == 2)
            return False

        instance.wait(lambda: shown("public.whole"), "the new rows of a full refresh")
        instance.wait(lambda: shown("public.risen"), "the new rows of an incremental stream")
        instance.stop()
        instance.pipeline.assert_same("public.whole", "public.risen", "public.state")


@pytest.mark.slow  # capture seals a step without changes every half minute
def test_where_nothing_changes_the_position_moves_and_spark_is_not_asked(
    tables: Database, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.start_capture()
    instance.start_lane()
    instance.wait_until_level(tables)
    jobs: list[str] = []
    monkeypatch.setattr("penstock.lake.following.fold", lambda *_: jobs.append("fold"))
    document = StateStore(instance.pipeline.state).load()
    assert document is not None
    before = document.lsn
    assert before is not None
    tables.execute("CREATE TABLE elsewhere (id int)")
    instance.wait_until_level(tables, "INSERT INTO elsewhere SELECT generate_series(1, 1000)")
    assert not jobs


@pytest.mark.slow
def test_commands_that_write_the_state_say_that_the_pipeline_runs(
    tables: Database, instance: Instance
) -> None:
    instance.start_capture()
    instance.start_lane()
    instance.wait_until_level(tables)
    with pytest.raises(SourceBusyError, match="`penstock run` is at work"):
        Pipeline(instance.config).sync()
    instance.stop()
    Pipeline(instance.config).pause(["public.state"])


@pytest.mark.slow
def test_a_stream_is_paused_resumed_and_loaded_again_by_orders_while_the_lane_runs(
    tables: Database, instance: Instance
) -> None:
    instance.start_capture()
    instance.start_lane()
    instance.wait_until_level(tables)
    pipeline = Pipeline(instance.config)

    def state_of(stream: str) -> str:
        return next(each.state for each in pipeline.status().streams if each.stream == stream)

    assert pipeline.pause(["public.state"], "a migration") == "done"
    assert state_of("public.state") == "paused"
    paused = next(each for each in pipeline.status().streams if each.stream == "public.state").paused
    assert paused is not None
    assert paused.reason == "a migration"

    def values(stream: str) -> set[str]:
        return set(pipeline.table(stream).to_arrow()["v"].to_pylist())

    tables.execute("UPDATE state SET v = 'while it stood still'")
    tables.execute("UPDATE history SET v = 'while the other stood still'")
    wait_until(lambda: "while the other stood still" in values("public.history"), "the other one to go on")
    assert "while it stood still" not in values("public.state")

    assert pipeline.resume(["public.state"]) == "done"
    wait_until(
        lambda: values("public.state") == {"while it stood still"}, "it to catch up, though nothing is new"
    )
    # The table has it before the state says so.
    wait_until(lambda: state_of("public.state") == "following", "the state to say that it follows")

    before = instance.pipeline.version("public.state")
    assert operations.resync(instance.config, ["public.state"]) == "done"
    wait_until(lambda: instance.pipeline.version("public.state") != before, "the table to be loaded again")
    tables.execute("UPDATE state SET v = 'after it was loaded again'")
    wait_until(lambda: values("public.state") == {"after it was loaded again"}, "it to follow")
    instance.stop()
    instance.pipeline.assert_same("public.state")


@pytest.mark.slow
def test_the_log_is_applied_again_by_the_run_that_is_at_work(tables: Database, instance: Instance) -> None:
    instance.start_capture()
    instance.start_lane()
    instance.wait_until_level(tables)

    def state() -> StreamState:
        document = StateStore(instance.config.state).load()
        assert document is not None
        found = document.stream(StreamId("public", "state"))
        assert found is not None
        return found

    loaded = state().committed_to
    assert loaded is not None
    tables.execute("UPDATE state SET v = 'changed'")
    wait_until(lambda: (state().committed_to or loaded) > loaded, "the change to be in the table")
    before = state()
    plan = rewinds.plan(instance.config, "public.state", str(loaded))
    assert (plan.start, plan.to) == (loaded, before.committed_to)
    assert operations.rewind(instance.config, plan.stream, plan.start) == "done"
    wait_until(lambda: state().generation != before.generation, "the log to be applied again")
    assert state().rewind is None
    tables.execute("UPDATE state SET v = 'after it' WHERE id > 3")
    instance.wait_until_level(tables)
    instance.stop()
    instance.pipeline.assert_same("public.state")


@pytest.mark.slow
def test_an_instance_with_an_old_state_of_its_own_goes_on_from_the_tables(
    tables: Database, instance: Instance, tmp_path: Path
) -> None:
    """Two state directories, one slot, one destination: each leads in turn."""
    first = instance
    other = first.pipeline
    settings = {**other.settings, **_same_tables(other)}
    copy = PipelineUnderTest(tmp_path / "other", other.url, other.streams, settings, name=other.name)
    with Instance(copy) as second:
        for number, leader in enumerate((first, second, first, second)):
            leader.start_capture()
            leader.start_lane()
            with tables.connect() as connection:
                write(connection, 1000 * (number + 1), 1000 * (number + 1) + 50)
                connection.execute("UPDATE state SET v = v || %s WHERE id %% 7 = 0", (str(number),))
            leader.wait_until_level(tables)
            leader.stop()
            other.assert_same("public.state")
            other.assert_history("public.history")
        assert any("Another instance has led" in note for note in [*first.heard.notes, *second.heard.notes])
    assert list(other.state.glob("superseded-*"))


def _same_tables(pipeline: PipelineUnderTest) -> dict[str, Any]:
    lake = str(pipeline.warehouse)
    key = "warehouse" if pipeline.on_iceberg else "path"
    return {"destination": {"type": "iceberg" if pipeline.on_iceberg else "parquet", key: lake}}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_that_are_killed_again_and_again_lose_and_double_nothing(
    database: Database, tmp_path: Path
) -> None:
    chance = random.Random(seed := random.SystemRandom().randrange(10**6))
    print(f"seed {seed}")
    with ExitStack() as stack:
        workload = stack.enter_context(Workload(database.url, seed, pause_s=0.02).setup(400))
        pipeline = PipelineUnderTest(tmp_path, workload.url, streams_of(UPSERT, APPEND), SETTINGS)
        stack.callback(pipeline.drop)
        instance = stack.enter_context(Instance(pipeline))
        instance.start_capture()
        instance.start_lake()
        workload.start()
        for _ in range(8):
            time.sleep(chance.uniform(1, 12))  # not for a condition: at any moment
            victim = chance.choice(["capture", "lake", "both"])
            print(f"killing {victim}")
            if victim != "lake" and instance.capture is not None:
                instance.capture.kill()
                instance.start_capture()
            if victim != "capture" and instance.lake is not None:
                instance.lake.kill()
                instance.start_lake()
        workload.stop()
        instance.wait_until_level(database, "UPDATE orders SET note = 'last' WHERE id % 7 = 0")
        assert instance.lake is not None
        assert instance.lake.stop() == 0
        instance.lake = None
        pipeline.assert_same(*UPSERT)
        pipeline.assert_history(*APPEND)


@pytest.fixture
def worn(tables: Database, make: MakePipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """A lane of Iceberg tables that are looked after all the time, with more files than they should have."""
    monkeypatch.setattr(lake_process, "UPKEEP_EVERY_S", 0.2)
    settings = {**SETTINGS, "maintenance": {"every": "0s", "delete_ratio": 0.01}}
    pipeline = make(
        streams_of(["public.state"], ["public.history"]), destination=DESTINATIONS["iceberg"], **settings
    )
    with Instance(pipeline) as running:
        running.start_capture()
        yield running


@pytest.mark.slow
def test_rounds_go_on_while_a_table_is_looked_after(
    tables: Database, worn: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rewrite stands still for as long as the test likes; then it has lost to the rounds, or has not."""
    under_way, may_go_on, merged = threading.Event(), threading.Event(), threading.Event()
    rewrite = maintenance._Turn._rewrite_data_files

    def wait_and_rewrite(turn: Any, files_max: int) -> int:
        under_way.set()
        assert may_go_on.wait(WAIT_S)
        replaced = rewrite(turn, files_max)
        if replaced:
            merged.set()
        return replaced

    monkeypatch.setattr(maintenance._Turn, "_rewrite_data_files", wait_and_rewrite)
    worn.start_lane()

    def is_under_way_after_a_round() -> bool:
        change_and_wait(worn, tables, "UPDATE state SET v = v || '.' WHERE id % 3 = 0")
        return under_way.is_set()

    wait_until(is_under_way_after_a_round, "the table to be looked after")
    for number in range(3):
        change_and_wait(worn, tables, f"UPDATE state SET v = v || '!' WHERE id % 4 = {number}")
        worn.pipeline.assert_same("public.state")
    may_go_on.set()
    while not merged.wait(0.01):
        change_and_wait(worn, tables, "UPDATE state SET v = v || '?' WHERE id % 5 = 0")
    change_and_wait(worn, tables, "DELETE FROM state WHERE id % 7 = 0")
    worn.pipeline.assert_same("public.state")


def change_and_wait(instance: Instance, database: Database, statement: str) -> None:
    """Until the tables hold what it changed."""
    database.execute(statement)
    instance.wait_until_level(database)


@pytest.mark.slow
def test_a_table_is_compacted_by_hand_while_the_lane_goes_on(tables: Database, worn: Instance) -> None:
    worn.config = worn.config.model_copy(
        update={"maintenance": worn.config.maintenance.model_copy(update={"every": None})}
    )
    by_hand = Pipeline(worn.config)
    worn.start_lane()
    worn.wait_until_level(tables)
    while "data files" not in by_hand.compact(["public.state"], dry_run=True).streams[0].due:
        change_and_wait(worn, tables, "UPDATE state SET v = v || '.' WHERE id % 3 = 0")
    stop = threading.Event()

    def change() -> None:
        while not stop.wait(0.05):
            tables.execute("UPDATE state SET v = v || '!' WHERE id = (SELECT min(id) FROM state)")

    changing = threading.Thread(target=change)
    changing.start()
    try:
        [done] = by_hand.compact(["public.state"]).streams
    finally:
        stop.set()
        changing.join()
    assert "data files" in done.due
    worn.wait_until_level(tables)
    worn.pipeline.assert_same("public.state")
    [again] = by_hand.compact(["public.state"]).streams
    assert again.after is not None
    worn_files = done.before.data_files + done.before.delete_files
    assert again.after.data_files + again.after.delete_files < worn_files
    change_and_wait(worn, tables, "DELETE FROM state WHERE id % 7 = 0")
    worn.pipeline.assert_same("public.state")
