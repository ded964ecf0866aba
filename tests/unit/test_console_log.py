"""The log on the screen, over a small real log: every change of a row is there, the newest ones if there are
many, and what did not change is not said to have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.console import log_screen, row_history, shown_values
from penstock.core.errors import ConfigError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log.columns import log_schema
from penstock.log.writer import LogWriter

pytestmark = pytest.mark.unit

ORDERS, EVENTS = StreamId("public", "orders"), StreamId("public", "events")


def table(stream: StreamId = ORDERS, key: tuple[str, ...] = ("id",)) -> TableSchema:
    names = ("id", "_note", "body")
    return TableSchema(stream, tuple(SourceColumn(name, 25, -1, "text", "text") for name in names), key=key)


def change(
    tx: int,
    op: str,
    new: tuple[str | None, ...] = (None, None, None),
    old: tuple[str | None, ...] | None = None,
    *,
    whole: bool = False,
    unsent: tuple[str, ...] = (),
    index: int = 0,
) -> dict[str, Any]:
    stored = ("id", "__note", "body")
    fields: dict[str, Any] = dict(zip(stored, new, strict=True))
    fields |= {"_tx": tx, "_op_index": index, "_op": op, "_xid": tx, "_commit_ts": tx, "_unchanged": unsent}
    fields |= {"_old": None if old is None else dict(zip(stored, old, strict=True))}
    return fields | {"_old_kind": "n" if old is None else "f" if whole else "k"}


def log_of(directory: Path, *steps: list[dict[str, Any]], schema: TableSchema | None = None) -> LogWriter:
    log = LogWriter(directory, system_id="7", timeline=1, epoch=Lsn(1), end=Lsn(100), last_seq=0)
    for number, changes in enumerate(steps):
        write(log, schema or table(), changes)
        assert log.seal(Lsn(100 * (number + 2))) is not None
    return log


def write(log: LogWriter, schema: TableSchema, changes: list[dict[str, Any]]) -> None:
    rows = pa.RecordBatch.from_pylist(changes, log_schema(schema, str(schema.stream)))
    counts: dict[str, int] = {}
    for each in changes:
        counts[each["_op"]] = counts.get(each["_op"], 0) + 1
    log.write(schema, schema.stream, rows, counts)


def told(found: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    return [(each["operation"], str(each["values"].get("id")), each["changed"]) for each in found["shown"]]


def test_deletes_changes_of_the_key_and_truncates_are_changes_of_a_row(tmp_path: Path) -> None:
    log_of(
        tmp_path,
        [
            change(110, "i", ("1", "a", "x")),
            change(120, "u", ("1", "b", "x")),
            change(130, "i", ("2", "a", "x")),
            change(140, "d", old=("1", None, None)),
        ],
        [change(210, "i", ("1", "a", "x")), change(220, "u", ("9", "a", "x"), ("1", None, None))],
        [change(310, "t"), change(320, "i", ("3", None, None))],
    )
    found = row_history.changes_of_key(tmp_path, ORDERS, "1")
    assert told(found) == [
        ("truncate", "None", []),
        ("update", "9", ["id"]),
        ("insert", "1", []),
        ("delete", "1", []),
        ("update", "1", ["_note"]),
        ("insert", "1", []),
    ]
    assert not found["is_cut"]
    assert found["shown"][3]["values"] == {"id": "1"}, "a delete shows what the source says was there"
    of_new_key = row_history.changes_of_key(tmp_path, ORDERS, "9")
    assert [each[0] for each in told(of_new_key)] == ["truncate", "update"]


def test_a_delete_shows_all_that_was_there_if_the_source_said_it(tmp_path: Path) -> None:
    log_of(tmp_path, [change(110, "d", old=("1", None, "x"), whole=True)])
    (deleted,) = row_history.changes_of_key(tmp_path, ORDERS, "1")["shown"]
    assert deleted["values"] == {"id": "1", "_note": None, "body": "x"}


def test_what_the_source_did_not_send_is_not_said_to_have_changed(tmp_path: Path) -> None:
    log_of(
        tmp_path,
        [
            change(110, "i", ("1", "a", "long")),
            change(120, "u", ("1", "b", None), unsent=("body",)),
            change(130, "u", ("1", "b", "long")),
            change(140, "u", ("1", "b", "other")),
        ],
    )
    found = row_history.changes_of_key(tmp_path, ORDERS, "1")
    assert [each[2] for each in told(found)] == [["body"], [], ["_note"], []]
    assert found["shown"][2]["values"]["body"] == row_history.UNSENT


def test_of_a_row_that_changes_often_the_newest_changes_are_shown_and_that_there_are_others(
    tmp_path: Path,
) -> None:
    limit = row_history.CHANGES_SHOWN
    count = 3 * limit
    log_of(tmp_path, [change(150, "u", ("1", str(n), None), index=n) for n in range(count)])
    found = row_history.changes_of_key(tmp_path, ORDERS, "1")
    notes = [int(each["values"]["_note"]) for each in found["shown"]]
    assert notes == list(range(count - 1, count - 1 - limit, -1))
    assert found["is_cut"]


def test_exactly_as_many_changes_as_are_shown_leave_nothing_out(tmp_path: Path) -> None:
    limit = row_history.CHANGES_SHOWN
    log_of(tmp_path, [change(150, "u", ("1", str(n), None), index=n) for n in range(limit)])
    found = row_history.changes_of_key(tmp_path, ORDERS, "1")
    assert (len(found["shown"]), found["is_cut"]) == (limit, False)


def test_a_key_of_several_columns_is_given_with_commas_and_long_values_are_cut(tmp_path: Path) -> None:
    long = "x" * (shown_values.CHARACTERS_MAX + 5)
    log_of(
        tmp_path,
        [change(110, "i", ("1", "a", long)), change(120, "d", old=("1", "a", None))],
        schema=table(key=("id", "_note")),
    )
    found = row_history.changes_of_key(tmp_path, ORDERS, "1, a")
    assert [each[0] for each in told(found)] == ["delete", "insert"]
    assert found["shown"][1]["values"]["body"].endswith("… (5 more characters)")
    assert row_history.changes_of_key(tmp_path, ORDERS, "1, b")["shown"] == []
    with pytest.raises(ConfigError, match="The key has 2 columns: id, _note"):
        row_history.changes_of_key(tmp_path, ORDERS, "1")


def test_the_newest_transactions_of_a_large_step_are_shown_with_all_that_they_did(tmp_path: Path) -> None:
    """The stream that is written first has rows of old transactions, and of the newest one."""
    limit = log_screen.TRANSACTIONS_SHOWN
    log = LogWriter(tmp_path, system_id="7", timeline=1, epoch=Lsn(1), end=Lsn(100), last_seq=0)
    many = 150_000
    write(log, table(EVENTS), [change(101, "i", ("1", None, None), index=n) for n in range(many)])
    write(log, table(EVENTS), [change(9999, "i", ("1", None, None), index=n) for n in range(3)])
    write(log, table(), [change(1000 + n, "u", ("1", None, None)) for n in range(limit)])
    write(log, table(), [change(9999, "d", old=("1", None, None), index=9)])
    assert log.seal(Lsn(10_000)) is not None
    found = log_screen.step(tmp_path, 1)
    assert len(found["shown"]) == limit
    assert found["is_cut"]
    assert found["shown"][0]["did"] == [
        {"stream": "public.events", "operation": "insert", "rows": 3},
        {"stream": "public.orders", "operation": "delete", "rows": 1},
    ]
    assert found["shown"][-1]["at"] == str(Lsn(1001)), "older ones are left out, and no newer one"


def test_a_step_that_is_small_is_shown_whole(tmp_path: Path) -> None:
    log_of(tmp_path, [change(110, "i", ("1", None, None)), change(120, "t")])
    found = log_screen.step(tmp_path, 1)
    assert [each["did"][0]["operation"] for each in found["shown"]] == ["truncate", "insert"]
    assert not found["is_cut"]


def versions_of(directory: Path, *written: tuple[str, TableSchema]) -> dict[str, Any]:
    """Of a log with a step for each leaf and schema."""
    log = LogWriter(directory, system_id="7", timeline=1, epoch=Lsn(1), end=Lsn(100), last_seq=0)
    for number, (leaf, schema) in enumerate(written, 1):
        row = change(100 * number + 1, "i", ("1", None, None))
        rows = pa.RecordBatch.from_pylist([row], log_schema(schema, leaf))
        log.write(schema, StreamId("public", leaf), rows, {"i": 1})
        assert log.seal(Lsn(100 * (number + 1))) is not None
    return log_screen.schemas(directory, ORDERS)


def wider(*more: str, oid: int = 7) -> TableSchema:
    added = tuple(SourceColumn(name, 25, -1, "text", "text") for name in more)
    return replace(table(), columns=(*table().columns, *added), relation_oid=oid)


def of_one(*schemas: TableSchema) -> list[tuple[str, TableSchema]]:
    return [("orders", schema) for schema in schemas]


def test_a_version_that_comes_back_is_told_again_and_the_next_is_described_against_it(tmp_path: Path) -> None:
    found = versions_of(tmp_path, *of_one(wider(), wider("b"), wider(), wider(), wider("c")))
    assert [(each["step"], each["changes"]) for each in found["versions"]] == [
        (5, ["c came"]),
        (3, ["b went"]),
        (2, ["b came"]),
        (1, []),
    ]
    assert not found["is_cut"]


def test_what_partitions_go_through_one_after_the_other_is_told_once(tmp_path: Path) -> None:
    steps = [("one", wider()), ("two", wider()), ("one", wider("b")), ("two", wider()), ("two", wider("b"))]
    steps += [("three", wider("b")), ("four", wider("b", oid=8)), ("one", wider())]
    found = versions_of(tmp_path, *steps)
    assert [(each["step"], each["changes"]) for each in found["versions"]] == [
        (8, ["b went"]),
        (7, ["it is of public.four, its columns are the same"]),
        (3, ["b came"]),
        (1, []),
    ]


def test_it_is_said_when_the_log_is_longer_than_what_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_screen, "SCHEMA_STEPS_MAX", 2)
    found = versions_of(tmp_path, *of_one(wider(), wider("b"), wider("b", "c")))
    assert [each["changes"] for each in found["versions"]] == [["c came"], []]
    assert found["is_cut"]
