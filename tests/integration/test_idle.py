"""A pipeline whose tables nobody writes to, on a server where another database is written to all the while.

The server keeps its log for the slot from `restart_lsn` on, and the log is one for all databases. So the slot
must follow although none of what is written is for it: at any moment all that is kept was written within
`KEPT_S_MAX`, however long the pipeline has been idle. `PENSTOCK_IDLE_S=600` makes it ten minutes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.core.position import Lsn
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.running import Instance, instances

IDLE_S = float(os.environ.get("PENSTOCK_IDLE_S", "120"))
#: The lane moves its position twice a minute, and the server lets go one move later, of what it had noted by
#: then: it notes every 15 s from where it could go on.
KEPT_S_MAX = 90.0
_WRITE = "INSERT INTO noise SELECT i, repeat('x', 1000) FROM generate_series(1, 500) AS i"
_POSITIONS = "SELECT pg_current_wal_lsn()::text, restart_lsn::text FROM pg_replication_slots"


@pytest.fixture
def idle() -> Iterator[Database]:
    with EmbeddedPostgres() as server:
        database = Database("postgres", server)
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        database.execute("INSERT INTO orders VALUES (1, 'the only one')")
        yield database


@pytest.mark.slow
@pytest.mark.timeout(IDLE_S + 300)
def test_an_idle_pipeline_retains_little_log_while_another_database_writes(
    idle: Database, tmp_path: Path
) -> None:
    idle.execute("CREATE DATABASE other")
    other = Database("other", idle.server)
    other.execute("CREATE TABLE noise (id int, filler text)")
    pipeline = PipelineUnderTest(tmp_path / "pipeline", idle.url, ["public.orders"])
    instance = Instance(pipeline, "one")
    with instances(instance):
        instance.start().wait_until(lambda: pipeline.has_table("public.orders"), "the first load")
        retained = _Retained()
        with other.connect() as writer, idle.connect() as source:
            while retained.seconds < IDLE_S:
                writer.execute(_WRITE.encode())
                [(end, kept_from)] = source.execute(_POSITIONS).fetchall()
                retained.look(Lsn.parse(end), Lsn.parse(kept_from))
                time.sleep(1)
        print(retained)
        assert retained.kept_s_max < KEPT_S_MAX
        assert instance.stop() == 0, instance.said()


@dataclass
class _Minute:
    written: int = 0  # in all, up to its end
    kept_max: int = 0
    kept_s_max: float = 0.0


class _Retained:
    """How much the server keeps for the slot, and since when; printed minute by minute."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = time.monotonic()
        self._first: Lsn | None = None
        self._written: deque[tuple[float, Lsn]] = deque()  # and still kept
        self._minutes: list[_Minute] = []

    @property
    def kept_s_max(self) -> float:
        return max(minute.kept_s_max for minute in self._minutes)

    def look(self, end: Lsn, kept_from: Lsn) -> None:
        self.seconds = time.monotonic() - self._began
        self._first = self._first or end
        self._written.append((self.seconds, end))
        while self._written[0][1] <= kept_from:
            self._written.popleft()
        while len(self._minutes) * 60 <= self.seconds:
            self._minutes.append(_Minute())
        minute = self._minutes[-1]
        minute.written = end - self._first
        minute.kept_max = max(minute.kept_max, end - kept_from)
        minute.kept_s_max = max(minute.kept_s_max, self.seconds - self._written[0][0])

    def __str__(self) -> str:
        return "\n".join(
            f"minute {number}: {minute.written / 2**20:.1f} MiB written in all, "
            f"at most {minute.kept_max / 2**20:.1f} MiB kept, of the last {minute.kept_s_max:.0f} s"
            for number, minute in enumerate(self._minutes, 1)
        )
