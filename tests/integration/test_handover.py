"""From snapshot to stream with everybody writing: each change is in the load or in the log, never in both.

Eight writers that never wait, and around them what has broken such hand-overs: a transaction that is open
when the slot is created, a commit that stands in the log long before any snapshot shows it, transactions
open across the reads of chunks, a load that is killed and goes on under another snapshot, and rows that
move meanwhile: to other pages, to other key ranges, to other partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import wait_until
from tests.oracle import OPTIONS
from tests.pipelines import DESTINATIONS, PipelineUnderTest, streams_of
from tests.traps import PauseAt, syncing
from tests.workload import APPEND, UPSERT, Workload

WRITERS = 8


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """One that waits for a standby that never comes, but only in sessions that ask for it."""
    with EmbeddedPostgres() as own, psycopg.connect(own.url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_commit = 'local'")
        connection.execute("SELECT pg_reload_conf()")
        yield own


class Straggler:
    """A transaction that writes to a table of either kind, and stays open until it is told to commit."""

    def __init__(self, url: str, number: int, settings: str = "") -> None:
        self._connection = psycopg.connect(url, options=OPTIONS)
        self._id = 50_000_000 + number * 1000
        if settings:
            self._connection.execute(settings.encode())
        self.write()

    def write(self) -> None:
        for _ in range(5):
            self._id += 1
            version = 10**13 + self._id
            self._connection.execute(
                "INSERT INTO orders (id, customer, note, version) VALUES (%s, 1, 'straggler', %s)",
                (self._id, version),
            )
            self._connection.execute(
                "INSERT INTO events (id, kind, version) VALUES (gen_random_uuid(), 'straggler', %s)",
                (version,),
            )
            self._connection.execute(
                "UPDATE orders SET note = 'straggler again', version = %s WHERE id = %s",
                (version + 10**6, self._id - 1),
            )

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()


@contextmanager
def committed_but_not_visible(url: str, number: int) -> Iterator[Callable[[], None]]:
    """A commit that is in the log while no snapshot shows it, until the value is called."""
    with psycopg.connect(url, autocommit=True) as observer:

        def wait_for(names: str) -> None:
            observer.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'".encode())
            observer.execute("SELECT pg_reload_conf()")

        def waits() -> bool:
            return bool(
                observer.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchall()
            )

        wait_for("nobody")
        straggler = Straggler(url, number, "SET synchronous_commit = 'on'")
        thread = threading.Thread(target=straggler.commit)
        thread.start()
        wait_until(waits, "the commit to wait for its standby")
        try:
            yield lambda: wait_for("")
        finally:
            wait_for("")
            thread.join()


def slot_creation_waits(url: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'walsender' "
            "AND wait_event_type = 'Lock' AND wait_event = 'transactionid'"
        ).fetchall()
    return bool(rows)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("destination", list(DESTINATIONS))
@pytest.mark.parametrize("method", ["key", "ctid"])
def test_every_change_is_handed_over_once_while_everybody_writes(
    server: EmbeddedPostgres, tmp_path: Path, pause_at: PauseAt, method: str, destination: str
) -> None:
    url = server.url()
    workload = Workload(url, pause_s=0.15).setup(400)
    settings = {
        "load": {"rows_per_chunk": 20, "method": method},
        "destination": DESTINATIONS[destination],
    }
    pipeline = PipelineUnderTest(tmp_path / "pipeline", url, streams_of(UPSERT, APPEND), settings)
    with workload.start(WRITERS):
        _first_load_is_killed(pipeline, url)
        _load_goes_on(pipeline, url, pause_at)
        pipeline.sync()
    pipeline.sync()
    assert any("going on with a load" in note for note in pipeline.notes), pipeline.notes
    pipeline.assert_same(*UPSERT)
    for stream in APPEND:
        # Key ranges of a resumed load are each of their own moment; a load by pages began anew.
        pipeline.assert_history(stream, one_moment=method == "ctid")


def _first_load_is_killed(pipeline: PipelineUnderTest, url: str) -> None:
    """The slot waits for an open transaction and for a commit that is not visible; then chunks are read."""
    early = Straggler(url, 1)
    with committed_but_not_visible(url, 2) as show:
        running = pipeline.start_sync("load.committed=kill@3")
        wait_until(
            lambda: slot_creation_waits(url) or running.process.poll() is not None,
            "slot creation to wait",
            timeout_s=120,
        )
        early.write()
        early.commit()
        wait_until(
            lambda: slot_creation_waits(url) or running.process.poll() is not None,
            "slot creation to wait for the commit that is not visible",
        )
        show()
    ended = running.wait()
    assert ended.killed, str(ended)
    pipeline.wait_until_nothing_runs()


def _load_goes_on(pipeline: PipelineUnderTest, url: str, pause_at: PauseAt) -> None:
    """The rest of the load, with transactions that are open while its chunks are read."""
    held = Straggler(url, 3)
    pause = pause_at("load.preparing=pause")

    def snapshot_waits() -> bool:
        return slot_creation_waits(url) or running.done()

    with syncing(pipeline) as running, ExitStack() as not_visible:
        with pause:
            wait_until(snapshot_waits, "the new snapshot to wait", timeout_s=120)
            held.commit()
            pause.wait(running)
            while_chunks_are_read, across = Straggler(url, 4), Straggler(url, 5)
            not_visible.enter_context(committed_but_not_visible(url, 6))
        while_chunks_are_read.commit()
        # Over, or a table must be loaded once more: the next snapshot waits for whoever is open.
        wait_until(snapshot_waits, "the chunks to be read", timeout_s=200)
        across.commit()
