"""A stream lane that is killed again and again while writers work, and what it is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.chaos.databases import new_database
from tests.chaos.matrix import LEVEL, SEED
from tests.chaos.stream_targets import Target
from tests.conftest import WAIT_S, Database, wait_until
from tests.oracle_history import audit_end
from tests.stream_instances import LEVEL_S, LaneProcess, StreamInstance, StreamPipeline, running
from tests.stream_reader import Told, assert_told
from tests.workload import APPEND, UPSERT, Workload

TABLES = (*UPSERT, *APPEND)
_ROWS = 60 if LEVEL == "short" else 300
_LATER_S = 15.0


@dataclass
class Source:
    """A database with writers at work, whose tables are audited from their first row on."""

    database: Database
    workload: Workload


@dataclass
class Followed:
    """A lane in a database with writers at work. `since`: see `assert_told`."""

    source: Source
    target: Target
    pipeline: StreamPipeline
    instance: StreamInstance
    since: int = 0

    def load(self) -> None:
        """Have the lane begin and load its tables, while the writers rest.

        They truncate: in the midst of a load that has it go on under another snapshot, and then rows of every
        table that is still to be read come after changes of theirs. What is judged would be judged less
        strictly from then on; loads beside writers have tests of their own.
        """
        self.source.workload.stop()
        try:
            self.instance.start()
            self.instance.lane.wait_until_running()
            self.pipeline.wait_until_level(self.instance)
            self.since = audit_end(self.source.database.url)
        finally:
            self.source.workload.start()

    def read(self) -> list[Told]:
        return self.target.read(self.pipeline.name, self.pipeline.tables)

    def compare(self, *instances: StreamInstance, resumed: bool = False, timeout_s: float = LEVEL_S) -> int:
        """Let the writers rest, come level, and judge every table; how many changes there were."""
        self.source.workload.stop()
        try:
            self.pipeline.wait_until_level(*(instances or (self.instance,)), timeout_s=timeout_s)
            told = self.read()
            judged = [
                assert_told(
                    self.source.database.url,
                    table,
                    told,
                    since=self.since,
                    resumed=resumed,
                    one_place=self.target.one_place,
                )
                for table in self.pipeline.tables
            ]
            assert self.pipeline.dead_letters() == [], "nothing was refused"
        finally:
            self.source.workload.start()
        return sum(each.changes for each in judged)

    def wait_for_writes(self, transactions: int = 30) -> None:
        enough = self.source.workload.transactions + transactions
        wait_until(lambda: self.source.workload.transactions > enough, "the writers to go on")


def was_struck(lane: LaneProcess, rule: str) -> bool:
    """That it is killed there; False, if the whole matrix asks for a later time than the place has."""
    is_later = LEVEL == "full" and rule[-2:] in ("@2", "@3")
    struck = lane.wait_until_struck(rule, _LATER_S if is_later else WAIT_S)
    assert struck or is_later, lane.told()
    return struck


def skip_unless(struck: bool, rule: str) -> None:
    """At the end of a test that compared all the same: it must not pass for one that killed somebody."""
    if not struck:
        pytest.skip(f"{rule} struck nothing: the place is reached less often")


@contextmanager
def writing(server: EmbeddedPostgres) -> Iterator[Source]:
    with new_database(server) as database:
        workload = Workload(database.url, SEED, pause_s=0.04).setup(_ROWS, audited=TABLES)
        with workload.start():
            yield Source(database, workload)


@contextmanager
def lane_of(
    source: Source, at: Target, directory: Path, tables: tuple[str, ...] = TABLES
) -> Iterator[Followed]:
    """Not started yet; nothing of it outlives the block."""
    pipeline = StreamPipeline(
        source.database,
        directory,
        at.name,
        at.section,
        tables,
        settings={"load": {"rows_per_chunk": 100}},  # several chunks per table
        environment=at.environment,
    )
    try:
        with running(pipeline) as (instance,):
            yield Followed(source, at, pipeline, instance)
    finally:
        source.database.drop_slot(pipeline.name)
