"""What tests of traps share: two tables that get the same rows, and syncs that stop on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.core.report import SyncReport
from tests.conftest import wait_until
from tests.oracle_history import install_audit
from tests.pipelines import DESTINATION, PipelineUnderTest

MakePipeline = Callable[..., PipelineUnderTest]
#: A failpoint where the table has a commit that nothing else knows of yet.
IN_A_COMMIT = "destination.recorded" if DESTINATION == "parquet" else "iceberg.committed"
#: Every trap is sprung on both kinds of table: one would forgive what the other does not.
STREAMS = ["public.state", {"table": "public.history", "write": "append"}]
TABLES = "CREATE TABLE state (id int PRIMARY KEY, v text); CREATE TABLE history (id int PRIMARY KEY, v text)"


def of_parquet(why: str) -> pytest.MarkDecorator:
    """A test of what only Parquet tables have."""
    return pytest.mark.skipif(DESTINATION != "parquet", reason=why)


def make_tables(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        install_audit(url, ["public.history"])
        write(connection, 1, 20)


def write(connection: psycopg.Connection[Any], first: int, last: int) -> None:
    """The same rows into both tables, in one transaction unless one is open."""
    with connection.transaction():
        for table in ("state", "history"):
            connection.execute(
                f"INSERT INTO {table} SELECT n, 'v' || n FROM generate_series({first}, {last}) n".encode()
            )


def assert_exact(pipeline: PipelineUnderTest) -> None:
    pipeline.assert_same("public.state")
    pipeline.assert_history("public.history")


@contextmanager
def syncing(pipeline: PipelineUnderTest) -> Iterator[Future[SyncReport]]:
    """A sync beside the test's own thread; its error, if it has one, is raised at the end."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(pipeline.sync)
        yield running
        running.result(timeout=400)


@dataclass
class Pause:
    """A place where the next sync stops until this block is left."""

    rule: str
    directory: Path

    def wait(self, running: Future[SyncReport]) -> None:
        report = self.directory / "report"
        wait_until(lambda: report.exists() or running.done(), f"a sync to come to {self.rule}", timeout_s=120)
        assert report.exists(), f"the sync ended without coming to {self.rule}: {running.exception()}"

    def __enter__(self) -> Pause:
        return self

    def __exit__(self, *_: object) -> None:
        (self.directory / "gate").touch()


PauseAt = Callable[[str], Pause]
