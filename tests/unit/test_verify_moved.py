"""Keys that changed right behind a position: those of every change of the range, before and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log.columns import log_schema
from penstock.log.reader import ChangeLog
from penstock.log.writer import LogWriter
from penstock.verify import drill, outcome
from penstock.verify.canonical import hash_rows
from penstock.verify.moved import moved_keys

pytestmark = pytest.mark.unit
STREAM, SECRET = StreamId("shop", "orders"), (3, 5)
SCHEMA = TableSchema(
    STREAM,
    (SourceColumn("_id", 20, -1, "int8", "bigint", 1), SourceColumn("v", 25, -1, "text", "text", 2)),
    key=("_id",),
)


def change(tx: int, op: str, new: str | None, old: str | None = None) -> dict[str, Any]:
    kept = None if old is None else {"__id": old, "v": None}
    own = {"_xid": 7, "_commit_ts": 0, "_old_kind": "n" if old is None else "k", "_old": kept}
    return {"__id": new, "v": "x", "_tx": tx, "_op_index": 0, "_op": op, **own}


def log_of(directory: Path, *changes: dict[str, Any]) -> ChangeLog:
    writer = LogWriter(directory, system_id="7", timeline=1, epoch=Lsn(1), end=Lsn(100), last_seq=0)
    rows = pa.RecordBatch.from_pylist(list(changes), log_schema(SCHEMA, str(STREAM)))
    writer.write(SCHEMA, STREAM, rows, {"u": len(changes)})
    writer.seal(Lsn(500))
    return ChangeLog(directory)


def hashed(*keys: int) -> set[tuple[int, int]]:
    found = hash_rows([pa.array(keys, pa.int64())], 1, SECRET)
    return set(zip(found.key_high.tolist(), found.key_low.tolist(), strict=True))


def test_keys_of_a_range_are_known_by_their_new_and_their_old_values(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        change(150, "u", "1"),
        change(200, "u", "2"),
        change(210, "d", None, "3"),
        change(220, "u", "5", "4"),
        change(300, "i", "6"),
    )
    found = moved_keys(log, STREAM, SCHEMA, Lsn(200), Lsn(300), SECRET)
    assert found is not None
    assert set(zip(found[0].tolist(), found[1].tolist(), strict=True)) == hashed(2, 3, 4, 5)
    nothing = moved_keys(log, STREAM, SCHEMA, Lsn(400), Lsn(450), SECRET)
    assert nothing is not None
    assert not nothing[0].size


def test_of_an_emptied_table_nobody_knows_the_keys(tmp_path: Path) -> None:
    log = log_of(tmp_path, change(150, "u", "1"))
    writer = LogWriter(tmp_path, system_id="7", timeline=1, epoch=Lsn(1), end=Lsn(500), last_seq=1)
    writer.truncate(STREAM, 520, 0)
    writer.seal(Lsn(600))
    assert moved_keys(log, STREAM, SCHEMA, Lsn(500), Lsn(600), SECRET) is None
    assert moved_keys(log, STREAM, SCHEMA, Lsn(100), Lsn(500), SECRET) is not None


def side(*rows: tuple[int, str]) -> drill.Picked:
    columns = [
        pa.array([row[0] for row in rows], pa.int64()),
        pa.array([row[1] for row in rows], pa.string()),
    ]
    return drill.Picked(pa.table(columns, names=["_id", "v"]), hash_rows(columns, 1, SECRET))


def test_differences_of_moved_keys_are_left_out_and_no_others() -> None:
    source = side((1, "a"), (2, "a"), (3, "a"), (4, "a"))
    table = side((1, "b"), (2, "b"), (5, "a"), (6, "a"))
    found = drill.pair(source.hashes, table.hashes)
    moved = hash_rows([pa.array([1, 3, 5], pa.int64())], 1, SECRET)
    left, count = outcome._unmoved(found, source, table, (moved.key_high, moved.key_low))
    assert count == 3
    assert source.rows.column("_id").take(pa.array(left.missing)).to_pylist() == [4]
    assert table.rows.column("_id").take(pa.array(left.extra)).to_pylist() == [6]
    assert [np.asarray(part).tolist() for part in left.different] == [[1], [1]]
