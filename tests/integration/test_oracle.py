"""The oracle itself: it prints values as Postgres does, and it sees every kind of mistake."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import Database
from tests.oracle import assert_same, destination_rows, source_rows
from tests.oracle_history import (
    assert_append_is_history,
    assert_changes_since,
    assert_rows_since,
    install_audit,
)

# Half-way cases: the shortest text that reads back right is not the one Postgres prints.
_TIES = [127203803355504990.0, 45664309410274304.0, 428865926699100030.0, 51801036059765456.0]
_FLOATS = [
    *_TIES,
    0.0,
    -0.0,
    0.1,
    1e14,
    999999999999999.0,
    1e15,
    -1.5e15,
    1e-4,
    1e-5,
    5e-324,
    1.7976931348623157e308,
    1 / 3,
]
_DAYS = [0, -1, 19_000, -719_162, -719_163, -719_528, -735_000, 2_932_896, 2_932_897, -2_440_588]


def _write(path: Path, columns: dict[str, pa.Array[Any]]) -> Path:
    path.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path / "part.parquet")
    return path


@pytest.mark.parametrize(
    ("postgres_type", "values"),
    [
        ("boolean", pa.array([True, False, None])),
        ("bigint", pa.array([0, -1, 2**63 - 1, -(2**63)], pa.int64())),
        (
            "numeric(12,2)",
            pa.array([Decimal("0.00"), Decimal("-0.10"), Decimal("1234567890.12")], pa.decimal128(12, 2)),
        ),
        ("float8", pa.array(_FLOATS, pa.float64())),
        ("float8", pa.array(np.random.default_rng(1).lognormal(0, 40, 1000))),
        ("float4", pa.array(np.random.default_rng(2).lognormal(0, 10, 1000).astype(np.float32))),
        ("float8", pa.array([float("nan"), float("inf"), float("-inf")])),
        ("date", pa.array(_DAYS, pa.int32()).cast(pa.date32())),
        ("date", pa.array(range(-1_000_000, 1_000_000, 977), pa.int32()).cast(pa.date32())),
        ("timestamp", pa.array([0, -1, 1_500_000, -62_135_596_800_000_001, 10**17], pa.timestamp("us"))),
        (
            "timestamptz",
            pa.array([day * 86_400_000_000 + 120_000 for day in _DAYS], pa.timestamp("us", "UTC")),
        ),
        ("bytea", pa.array([b"", b"\x00\xff"], pa.binary())),
        ("text", pa.array(["", "NULL", "ä\n\t\\", None])),
    ],
)
def test_it_prints_typed_values_as_postgres_does(
    database: Database, tmp_path: Path, postgres_type: str, values: pa.Array[Any]
) -> None:
    path = _write(tmp_path / "t", {"place": pa.array(range(len(values))), "value": values})
    printed = destination_rows(path).rows
    database.execute(f"CREATE TABLE t (place bigint PRIMARY KEY, value {postgres_type})")
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO t VALUES (%s, %s::text::{postgres_type})".encode(), printed)
    # What Postgres prints after reading our text: a value that lost precision would come back changed.
    assert sorted(source_rows(database.url, "public.t").rows) == sorted(printed)


def test_it_reads_blanks_and_addresses_as_replication_sends_them(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a char(4), b inet, c boolean)")
    database.execute("INSERT INTO t VALUES (1, 'x', '10.0.0.1', true)")
    assert source_rows(database.url, "public.t").rows == [("1", "x   ", "10.0.0.1", "t")]


@pytest.mark.parametrize(
    ("ids", "notes", "complaint"),
    [
        ([1, 2, 3], ["a", "b", "c"], None),
        ([1, 2], ["a", "b"], "1 missing: 3"),
        ([1, 2, 3, 3], ["a", "b", "c", "c"], "1 doubled: 3"),
        ([1, 2, 3, 4], ["a", "b", "c", "d"], "1 should not be there: 4"),
        ([1, 2, 3], ["a", "b", None], "note: 'c' is null"),
    ],
)
def test_it_sees_lost_doubled_foreign_and_wrong_rows(
    database: Database, tmp_path: Path, ids: list[int], notes: list[str | None], complaint: str | None
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    path = _write(tmp_path / "t", {"id": pa.array(ids, pa.int32()), "note": pa.array(notes)})
    if complaint is None:
        assert assert_same(database.url, "public.t", path) == 3
    else:
        with pytest.raises(AssertionError, match=complaint):
            assert_same(database.url, "public.t", path)


_Rows = list[dict[str, Any]]
_HISTORY: _Rows = [
    {"id": 1, "note": "old", "_op": "r", "_tx": 0, "_op_index": 0},
    {"id": 1, "note": "new", "_op": "u", "_tx": 10, "_op_index": 0},
    {"id": 2, "note": "b", "_op": "i", "_tx": 10, "_op_index": 2},
    {"id": 2, "note": None, "_op": "d", "_tx": 20, "_op_index": 0},
    {"id": 3, "note": "b", "_op": "i", "_tx": 20, "_op_index": 1},
    {"id": 1, "note": None, "_op": "d", "_tx": 30, "_op_index": 0},
    {"id": 1, "note": "again", "_op": "i", "_tx": 40, "_op_index": 0},
]


def _swap_last_two(rows: _Rows) -> _Rows:
    return [*rows[:-2], {**rows[-1], "_tx": 30}, {**rows[-2], "_tx": 40}]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda rows: rows[:-1], id="the last change is lost"),
        pytest.param(lambda rows: rows[1:], id="a loaded row is lost"),
        pytest.param(lambda rows: [*rows[:4], *rows[5:]], id="half of a key change is lost"),
        pytest.param(lambda rows: [*rows, {**rows[-1], "_tx": 50}], id="a change is doubled"),
        pytest.param(lambda rows: [rows[0], *rows], id="a loaded row is doubled"),
        pytest.param(_swap_last_two, id="two changes are swapped"),
        pytest.param(lambda rows: [rows[0], {**rows[1], "note": None}, *rows[2:]], id="a value is null"),
        pytest.param(
            lambda rows: [{**rows[0], "note": "new"}, *rows[2:]], id="half of a transaction is in the load"
        ),
        pytest.param(
            lambda rows: [rows[0], {**rows[1], "_unchanged": ["note"]}, *rows[2:]], id="a false 'unchanged'"
        ),
    ],
)
def test_it_sees_every_fault_in_a_history(
    database: Database, tmp_path: Path, spoil: Callable[[_Rows], _Rows]
) -> None:
    _make_history(database)
    good = _write_history(tmp_path / "good", _HISTORY)
    assert assert_append_is_history(database.url, "public.t", good) == 6
    with pytest.raises(AssertionError):
        assert_append_is_history(database.url, "public.t", _write_history(tmp_path / "bad", spoil(_HISTORY)))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda rows: rows[1:], id="the first change is lost"),
        pytest.param(lambda rows: rows[:-1], id="the last change is lost"),
        pytest.param(lambda rows: [*rows[:3], *rows[4:]], id="half of a key change is lost"),
        pytest.param(lambda rows: [*rows, {**rows[-1], "_tx": 50}], id="a change is doubled"),
        pytest.param(_swap_last_two, id="two changes are swapped"),
        pytest.param(lambda rows: [{**rows[0], "note": None}, *rows[1:]], id="a value is null"),
        pytest.param(lambda rows: [{**_HISTORY[0], "_op": "i", "_tx": 5}, *rows], id="a change is too old"),
        pytest.param(lambda rows: [_HISTORY[0], *rows], id="a row was loaded"),
    ],
)
def test_it_sees_every_fault_in_changes_since_a_start(
    database: Database, tmp_path: Path, spoil: Callable[[_Rows], _Rows]
) -> None:
    _make_history(database)
    good = _write_history(tmp_path / "good", _HISTORY[1:])
    bad = _write_history(tmp_path / "bad", spoil(_HISTORY[1:]))
    assert assert_changes_since(database.url, "public.t", good, before=1, begun=1) == 6
    assert assert_changes_since(database.url, "public.t", good, before=0, begun=3) == 6
    with pytest.raises(AssertionError):
        assert_changes_since(database.url, "public.t", bad, before=1, begun=1)


@pytest.mark.parametrize(
    ("before", "begun", "rows", "is_right"),
    [
        pytest.param(1, 1, [(1, "again"), (3, "b")], True, id="all that was written since"),
        pytest.param(4, 4, [(1, "again")], True, id="what was not written since is not there"),
        pytest.param(1, 4, [(1, "again")], True, id="it began later"),
        pytest.param(1, 4, [(1, "again"), (3, "b")], True, id="it began sooner"),
        pytest.param(1, 1, [(1, "again")], False, id="a row is lost"),
        pytest.param(4, 4, [(1, "again"), (3, "b")], False, id="a row is too old"),
        pytest.param(1, 1, [(1, "new"), (3, "b")], False, id="an old value"),
        pytest.param(1, 1, [(1, "again"), (2, "b"), (3, "b")], False, id="a row that is gone"),
        pytest.param(1, 1, [(1, "again"), (3, "b"), (3, "b")], False, id="a row is doubled"),
    ],
)
def test_it_sees_every_fault_in_rows_since_a_start(
    database: Database, tmp_path: Path, before: int, begun: int, rows: list[tuple[int, str]], is_right: bool
) -> None:
    _make_history(database)
    ids, notes = pa.array([row[0] for row in rows], pa.int32()), pa.array([row[1] for row in rows])
    path = _write(tmp_path / "t", {"id": ids, "note": notes})
    with nullcontext() if is_right else pytest.raises(AssertionError):
        assert assert_rows_since(database.url, "public.t", path, before, begun) == len(rows)


def test_a_truncate_ends_the_history_of_every_key(database: Database, tmp_path: Path) -> None:
    _make_history(database)
    database.execute("TRUNCATE t")
    database.execute("INSERT INTO t VALUES (1, 'after')")
    truncate = {"id": None, "note": None, "_op": "t", "_tx": 50, "_op_index": 0}
    after = {"id": 1, "note": "after", "_op": "i", "_tx": 60, "_op_index": 0}
    path = _write_history(tmp_path / "good", [*_HISTORY, truncate, after])
    assert assert_append_is_history(database.url, "public.t", path) == 8
    with pytest.raises(AssertionError):
        assert_append_is_history(
            database.url, "public.t", _write_history(tmp_path / "bad", [*_HISTORY, after])
        )


def _make_history(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    install_audit(database.url, ["public.t"])
    database.execute("INSERT INTO t VALUES (1, 'old')")
    with database.connect() as connection, connection.transaction():
        connection.execute("UPDATE t SET note = 'new' WHERE id = 1")
        connection.execute("INSERT INTO t VALUES (2, 'b')")
    database.execute("UPDATE t SET id = 3 WHERE id = 2")
    database.execute("DELETE FROM t WHERE id = 1")
    database.execute("INSERT INTO t VALUES (1, 'again')")


def _write_history(path: Path, rows: _Rows) -> Path:
    now = datetime.datetime.now(datetime.UTC)
    fields: list[tuple[str, pa.DataType]] = [
        ("id", pa.int32()),
        ("note", pa.string()),
        ("_op", pa.string()),
        ("_tx", pa.int64()),
        ("_op_index", pa.int64()),
        ("_commit_ts", pa.timestamp("us", "UTC")),
        ("_unchanged", pa.list_(pa.string())),
    ]
    complete = [{**row, "_commit_ts": now if row["_tx"] else None} for row in rows]
    path.mkdir()
    pq.write_table(pa.Table.from_pylist(complete, schema=pa.schema(fields)), path / "part.parquet")
    return path
