"""A standby is promoted, and the pipeline goes on there: positions that its predecessor gave out come again.

The standby has the slot. If it lacked the end of its predecessor's log, what was read of that is no part of
the source's history any more; nothing is left out because a position was seen before (correctness 6).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import Pipeline
from penstock.core.errors import AnotherSourceError
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database, wait_until
from tests.pipelines import PipelineUnderTest
from tests.traps import STREAMS, make_tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Pair:
    """A primary and its standby, and a pipeline that reads the primary until the other is promoted."""

    primary: Database
    standby: Database
    pipeline: PipelineUnderTest

    def write(self, server: Database, value: str) -> None:
        server.execute(f"UPDATE state SET v = '{value}'; UPDATE history SET v = '{value}' WHERE id < 10")

    def has_slot(self) -> bool:
        """Have the standby take over the slot; it can once the slot is not behind what the standby keeps."""
        self.write(self.primary, "before")
        self.pipeline.sync()
        self.standby.execute("SELECT pg_sync_replication_slots()")
        found = self.standby.query(
            "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND NOT temporary", (self.pipeline.name,)
        )
        return bool(found)

    def cut_off(self) -> None:
        """Have the standby get nothing more."""
        self.standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.execute("SELECT pg_reload_conf()")
        wait_until(lambda: not self.standby.query("SELECT 1 FROM pg_stat_wal_receiver"), "it to be alone")

    def catch_up(self) -> None:
        (end,) = self.primary.query("SELECT pg_current_wal_flush_lsn()::text")[0]
        reached = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        wait_until(lambda: self.standby.query(reached) == [(True,)], "the standby to have everything")

    def promote(self) -> None:
        """The standby is the source from now on."""
        self.primary.server.kill()
        self.standby.execute("SELECT pg_promote()")
        self.pipeline.url = self.standby.url
        self.pipeline.write_file()
        self.write(self.standby, "after")

    def fall_behind(self) -> None:
        """The standby misses more than it will have written itself when it is read again."""
        self.cut_off()
        self.primary.execute(
            "INSERT INTO state SELECT n, repeat('lost', 50) FROM generate_series(100, 2100) n"
        )
        self.primary.execute("INSERT INTO history VALUES (100, 'lost')")
        self.pipeline.sync()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with EmbeddedPostgres() as server:
        primary = Database("postgres", server)
        primary.execute("SELECT pg_create_physical_replication_slot('standby', true)")
        settings = {"hot_standby_feedback": "on", "primary_slot_name": "standby"}
        with EmbeddedPostgres.standby_of(server, settings=settings) as running:
            standby = Database("postgres", running)
            source = (
                f"host=127.0.0.1 port={server.port} user=postgres password={server.password} dbname=postgres"
            )
            standby.execute(f"ALTER SYSTEM SET primary_conninfo = '{source}'")
            standby.execute("SELECT pg_reload_conf()")
            make_tables(primary.url)
            pipeline = PipelineUnderTest(
                tmp_path / "pipeline", primary.url, list(STREAMS), {"source": {"failover": True}}
            )
            pair = Pair(primary, standby, pipeline)
            wait_until(pair.has_slot, "the standby to have the slot")
            yield pair


def _assert_exact(pipeline: PipelineUnderTest) -> None:
    pipeline.assert_same("public.state")
    pipeline.assert_history("public.history")


def test_a_log_that_reaches_beyond_a_promotion_is_an_error_and_resync_its_remedy(pair: Pair) -> None:
    pair.fall_behind()
    pair.promote()
    with pytest.raises(AnotherSourceError, match="is not part of the new one") as raised:
        pair.pipeline.sync()
    assert "penstock resync --yes" in str(raised.value)
    Pipeline.from_yaml(pair.pipeline.file).resync()
    _assert_exact(pair.pipeline)
    pair.write(pair.standby, "later")
    pair.pipeline.sync()
    _assert_exact(pair.pipeline)


def test_tables_beyond_a_promotion_are_not_taken_up_without_the_state(pair: Pair) -> None:
    pair.fall_behind()
    shutil.rmtree(pair.pipeline.state)
    pair.promote()
    report = pair.pipeline.sync()
    assert all(stream.rows_loaded for stream in report.streams)
    assert any("is not part of timeline 2" in note for note in pair.pipeline.notes)
    _assert_exact(pair.pipeline)


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_tables_that_a_promoted_standby_knows_go_on(pair: Pair, state: str) -> None:
    pair.catch_up()
    if state == "lost":
        shutil.rmtree(pair.pipeline.state)
    pair.promote()
    report = pair.pipeline.sync()
    assert sum(stream.rows_loaded for stream in report.streams) == 0, "nothing is loaded again"
    _assert_exact(pair.pipeline)
