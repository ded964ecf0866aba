"""How old changes are, by the log's footers alone."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.lake.freshness import Freshness
from penstock.log.columns import log_schema
from penstock.log.reader import ChangeLog
from penstock.log.writer import LogWriter

ORDERS, EVENTS = StreamId("public", "orders"), StreamId("public", "events")


class Log:
    """A log whose transactions were committed some seconds ago."""

    def __init__(self, directory: Path) -> None:
        self._writer = LogWriter(directory, system_id="7", timeline=1, epoch=Lsn(1), end=Lsn(100), last_seq=0)

    def step(self, end: int, stream: StreamId, *transactions: tuple[int, float]) -> None:
        schema = TableSchema(stream, (SourceColumn("id", 25, -1, "text", "text"),), key=("id",))
        now = time.time()
        rows = [
            {
                "id": "1",
                "_tx": tx,
                "_op_index": 0,
                "_op": "i",
                "_xid": 7,
                "_commit_ts": datetime.fromtimestamp(now - age_s, UTC),
                "_old_kind": "n",
            }
            for tx, age_s in transactions
        ]
        batch = pa.RecordBatch.from_pylist(rows, log_schema(schema, str(stream)))
        self._writer.write(schema, stream, batch, {"i": len(rows)})
        assert self._writer.seal(Lsn(end)) is not None


def test_what_a_round_took_is_the_age_of_its_oldest_change(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.step(200, ORDERS, (100, 50), (150, 40))
    log.step(300, ORDERS, (200, 30))
    freshness = Freshness(tmp_path)
    freshness.committed(ORDERS, ChangeLog(tmp_path).files(ORDERS, Lsn(100), Lsn(300)).files)
    assert 50 <= freshness.of_newest_round()[ORDERS] < 60
    freshness.committed(ORDERS, ())
    assert freshness.of_newest_round()[ORDERS] >= 50, "a round without files says nothing"


def test_the_lag_is_the_age_of_the_oldest_change_that_is_not_shown(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.step(200, ORDERS, (100, 500), (150, 400))
    log.step(300, EVENTS, (200, 300))
    freshness = Freshness(tmp_path)
    lag = freshness.lag({ORDERS: Lsn(100), EVENTS: Lsn(100)})
    assert 500 <= lag[ORDERS] < 510
    assert 300 <= lag[EVENTS] < 310
    assert freshness.lag({ORDERS: Lsn(300), EVENTS: Lsn(300)}) == {ORDERS: 0, EVENTS: 0}
    assert freshness.lag_bytes() == {ORDERS: 0, EVENTS: 0}
    log.step(400, ORDERS, (300, 20))
    lag = freshness.lag({ORDERS: Lsn(300), EVENTS: Lsn(300)})
    assert 20 <= lag[ORDERS] < 30
    assert lag[EVENTS] == 0


def test_the_lag_in_bytes_is_what_the_changes_that_are_not_shown_take_in_the_log(tmp_path: Path) -> None:
    log, positions = Log(tmp_path), {ORDERS: Lsn(200), EVENTS: Lsn(100)}
    log.step(200, ORDERS, (100, 500))
    freshness = Freshness(tmp_path)
    for end in (300, 400):
        log.step(end, ORDERS, (end - 100, 30))
        freshness.lag(positions)
    freshness.lag(positions)  # what was counted is not counted again
    sizes = [file.bytes for file in ChangeLog(tmp_path).files(ORDERS, Lsn(200), Lsn(400)).files]
    assert len(sizes) == 2
    assert freshness.lag_bytes() == {ORDERS: sum(sizes), EVENTS: 0}
