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
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.core.position import Lsn
from penstock.sources.postgres.embedded import EmbeddedPostgres
from tests.conftest import Database
from tests.pipelines import PipelineUnderTest
from tests.running import Instance, instances

IDLE_S = float(os.environ.get("PENSTOCK_IDLE_S", "120"))
#: The lane moves its position twice a minute, and the server notes every 15 s from where it could go on.
KEPT_S_MAX = 75.0
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
def test_an_idle_pipeline_retains_no_log_while_another_database_writes(
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
class _Retained:
    """How much the server keeps for the slot, and since when; printed minute by minute."""

    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    kept_s_max: float = 0.0
    _written: deque[tuple[float, Lsn]] = field(default_factory=deque)
    _minutes: list[tuple[int, int, float]] = field(default_factory=list)  # written, kept at most, for how long

    def look(self, end: Lsn, kept_from: Lsn) -> None:
        self.seconds = time.monotonic() - self.began
        if not self._written:
            self._first = end
        self._written.append((self.seconds, end))
        while self._written[0][1] <= kept_from:  # written since, or never
            self._written.popleft()
        kept_s = self.seconds - self._written[0][0]
        self.kept_s_max = max(self.kept_s_max, kept_s)
        minute = int(self.seconds // 60)
        while minute >= len(self._minutes):
            self._minutes.append((0, 0, 0.0))
        _, kept, longest = self._minutes[minute]
        self._minutes[minute] = (end - self._first, max(kept, end - kept_from), max(longest, kept_s))

    def __str__(self) -> str:
        return "\n".join(
            f"minute {minute + 1}: {written / 2**20:.1f} MiB written in all, "
            f"at most {kept / 2**20:.1f} MiB kept, of the last {longest:.0f} s"
            for minute, (written, kept, longest) in enumerate(self._minutes)
        )
