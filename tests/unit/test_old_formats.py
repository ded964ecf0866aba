"""What earlier versions wrote opens in this one: state, checkpoint, change log and Parquet tables.

`tests/fixtures/format-1` is a pipeline of version 0.1 as it was left after a load and one round: an upsert
and an append table of 20 rows, then updates, a delete, a key change, an added column with a default, an
insert, and one row that the upsert table could not hold. It is never written anew.
"""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.parquet import ParquetDestination
from penstock.destinations.records import Marker
from penstock.ledger.checkpoint import CheckpointFile
from penstock.ledger.store import StateStore
from penstock.log.reader import ChangeLog, read_rows

FIXTURE = Path(__file__).parents[1] / "fixtures" / "format-1"
STATE, HISTORY = StreamId("public", "state"), StreamId("public", "history")
END = Lsn.parse("0/173EAC0")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "kept", symlinks=True))


def test_the_state_is_read_and_written_on(kept: Path) -> None:
    store = StateStore(kept / "state")
    document = store.load()
    assert document is not None
    assert document.lsn == END
    assert set(document.global_streams) == {STATE, HISTORY}
    for stream in (STATE, HISTORY):
        found = document.stream(stream)
        assert found is not None
        assert found.has_completed_backfill
        assert found.committed_to == END
        assert found.paused is None
    written = store.save(document)
    assert StateStore(kept / "state").load() == written


def test_the_checkpoint_is_read_and_saved_on(kept: Path) -> None:
    file = CheckpointFile(kept / "state" / "checkpoint.json")
    found = file.load()
    assert found is not None
    assert (found.lsn, found.message_count) == (END, 36)
    assert found.timestamp == "2026-11-15T08:04:46.535184076Z"
    assert file.save(Lsn(int(END) + 8), found.message_count + 1)
    again = CheckpointFile(kept / "state" / "checkpoint.json").load()
    assert again is not None
    assert again.message_count == 37


def test_the_log_is_read(kept: Path) -> None:
    log = ChangeLog(kept / "state" / "log")
    start = log.start()
    assert start is not None
    assert log.end() == END
    for stream in (STATE, HISTORY):
        changes = log.files(stream, start, END)
        tables = list(read_rows(changes.files, start, END))
        assert sum(table.num_rows for table in tables) == 8
        schemas = [log.schema(file.schema_id).names for file in changes.files]
        assert [names[-1] for names in schemas] == ["until", "extra"]


def test_the_tables_are_read_and_take_the_next_batch(kept: Path) -> None:
    destination = ParquetDestination(kept / "lake")
    assert destination.streams() == [HISTORY, STATE]
    table = destination.table(STATE)
    record = table.record()
    assert record is not None
    assert record.marker is not None
    assert (record.rows, record.dead_letters.count, record.marker.to) == (20, 1, END)
    rows: pa.Table = pq.read_table(table.current).sort_by("id")
    assert rows.column("id").to_pylist() == [*range(1, 6), *range(8, 21), 107, 500]
    assert rows.column("amount").to_pylist()[1] == Decimal("2.50")
    assert set(rows.column("extra").to_pylist()) == {7}
    following = Marker(record.marker.generation, record.epoch, END, Lsn(int(END) + 8), ("next",))
    table.commit_changes(END, following, record.schema, added=[], removed=[])
    assert destination.table(STATE).is_thread_committed("next")
    appended = pq.read_table(destination.table(HISTORY).current)
    assert sorted(appended.column("_op").to_pylist()) == sorted([*"r" * 20, *"u" * 5, *"d" * 2, *"i" * 2])
