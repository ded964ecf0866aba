"""Updates in the log of which a filter cannot be asked: found in their range, and left to the lane."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.errors import LogGoneError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.selection import Selection
from penstock.core.where import Condition
from penstock.log.reader import ChangeLog
from penstock.log.undecided import has_undecided
from penstock.log.writer import LogWriter
from penstock.streams.bulk import backlog
from tests.logged_rows import changes_of, schema_of

pytestmark = pytest.mark.unit


def _schema(family: str) -> TableSchema:
    schema = schema_of("shop.parts", {"id": "text", "v": "text", "n": "text"}, key=["id"])
    return replace(schema, columns=tuple(replace(column, family=family) for column in schema.columns))


def _log(directory: Path, schema: TableSchema) -> ChangeLog:
    """With updates that lack n (101), and v (103), in one step; and in another an insert and an update."""
    writer = LogWriter(directory, system_id="s", timeline=1, epoch=Lsn(1), end=Lsn(100))
    update: dict[str, Any] = {"_op": "u", "id": "1", "v": "a", "n": "1"}
    first = [update, {**update, "_unchanged": ["n"]}, update, {**update, "v": None, "_unchanged": ["v"]}]
    second = [{**update, "_op": "i", "_tx": 201}, {**update, "_tx": 202, "_unchanged": ["n"]}]
    for rows, end in ((first, 200), (second, 300)):
        changes = changes_of(schema, rows)
        operations: dict[str, int] = {}
        for row in rows:
            operations[str(row["_op"])] = operations.get(str(row["_op"]), 0) + 1
        writer.write(schema, schema.stream, changes.rows, operations)
        writer.seal(Lsn(end))
    return ChangeLog(directory)


def test_updates_that_lack_what_a_filter_reads_are_found_in_their_range(tmp_path: Path) -> None:
    schema = _schema("mysql")
    log = _log(tmp_path, schema)

    def found(where: str, after: int, to: int, read: TableSchema = schema) -> bool:
        files = log.files(schema.stream, Lsn(after), Lsn(to)).files
        return has_undecided(files, Lsn(after), Lsn(to), read, Condition.compile(where, schema.columns))

    assert found("v = 'a'", 100, 300)
    assert not found("v = 'a'", 100, 103)
    assert not found("v = 'a'", 104, 300)
    assert found("n = '1'", 104, 300)
    assert not found("id = '1'", 100, 300)
    assert not found("v = 'a'", 100, 300, _schema("")), "Postgres says by itself what it sends"
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(LogGoneError):
        found("v = 'a'", 100, 300)


def test_a_backlog_of_which_a_filter_cannot_be_asked_is_left_to_the_lane(tmp_path: Path) -> None:
    schema = _schema("mysql")
    _log(tmp_path, schema)
    settings: Any = SimpleNamespace(log_directory=tmp_path, section=SimpleNamespace(spark_bytes_min=0))

    def ends(where: str, after: int) -> list[Lsn]:
        selection = Selection((), Condition.compile(where, schema.columns))
        followed: Any = SimpleNamespace(selection=selection, table=SimpleNamespace(schema=schema))
        return backlog(settings, {schema.stream: followed}, Lsn(after))

    assert ends("v = 'a'", 100) == []
    assert ends("v = 'a'", 200) == [Lsn(300)]
    assert ends("id = '1'", 100) == [Lsn(200), Lsn(300)]


def test_a_backlog_of_streams_without_a_filter_is_not_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = _schema("mysql")
    _log(tmp_path, schema)
    settings: Any = SimpleNamespace(log_directory=tmp_path, section=SimpleNamespace(spark_bytes_min=0))
    table = SimpleNamespace(schema=schema)
    whole: Any = SimpleNamespace(selection=Selection(), table=table)
    by_key = Condition.compile("id = '1'", schema.columns)
    of_postgres: Any = SimpleNamespace(
        selection=Selection((), by_key), table=SimpleNamespace(schema=_schema(""))
    )
    monkeypatch.setattr(ChangeLog, "files", lambda *_: pytest.fail("looked through"))
    for stream in (whole, of_postgres):
        assert backlog(settings, {schema.stream: stream}, Lsn(100)) == [Lsn(200), Lsn(300)]
