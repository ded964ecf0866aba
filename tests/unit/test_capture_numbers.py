"""What capture says in numbers, from one term to the next."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa

from penstock.capture.always import summed
from penstock.capture.reading import ends_after
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log.columns import log_schema
from penstock.log.manifest import manifest_path
from penstock.log.writer import LogWriter

ORDERS = TableSchema(StreamId("public", "orders"), (SourceColumn("id", 25, -1, "text", "text"),), key=("id",))


def test_a_counter_never_falls_and_says_zero_before_it_counts() -> None:
    before = summed({}, {"rows": 5.0, "failures": 0.0})
    assert before == {"rows": 5, "failures": 0}
    assert summed(before, {}) == before, "a term that reads nothing takes nothing away"
    assert summed(before, {"rows": 0.0, "failures": 2.0, "steps": 0.0}) == {
        "rows": 5,
        "failures": 2,
        "steps": 0,
    }


def test_the_age_of_what_a_lane_lacks_is_known_of_earlier_terms(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, system_id="7", timeline=1, epoch=Lsn(1), end=Lsn(100), last_seq=0)
    for end, has_changes in ((200, True), (300, False), (400, True), (500, False)):
        if has_changes:
            _write_row(writer, end - 50)
        assert writer.seal(Lsn(end)) is not None

    def ends(position: int, kept: int = 100) -> list[int]:
        return [end for end, _ in ends_after(tmp_path, Lsn(position), kept)]

    assert ends(100) == [200, 400], "steps that say that nothing happened are passed over"
    assert ends(200) == [400]
    assert ends(150) == [200, 400]
    assert ends(400) == []
    assert ends(100, kept=2) == [400], "no more is read than that"
    assert all(0 <= time.time() - at < 60 for _, at in ends_after(tmp_path, Lsn(100), 100))
    assert ends_after(tmp_path / "none", Lsn(0), 100) == []
    manifest_path(tmp_path, 3).write_text("{")
    assert ends(100) == [], "it is a number only: nothing fails for it"


def _write_row(writer: LogWriter, tx: int) -> None:
    row = {"id": "1", "_tx": tx, "_op_index": 0, "_op": "i", "_xid": 7, "_commit_ts": 0, "_old_kind": "n"}
    rows = pa.RecordBatch.from_pylist([row], log_schema(ORDERS, str(ORDERS.stream)))
    writer.write(ORDERS, ORDERS.stream, rows, {"i": 1})
