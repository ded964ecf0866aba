"""What a streaming query asks of the log for each batch: what is new to it, however long the log is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.core.errors import LogGoneError, StateError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.lake.data_source import LogStreamReader, Request
from penstock.lake.log_range import END, Place, batch_end
from penstock.lake.log_rows import LogShape
from penstock.log.manifest import SCHEMA_DIRECTORY, FileEntry, Manifest, TableEntry, manifest_path
from penstock.log.reader import ChangeLog

STREAM = StreamId("public", "items")
ID = SourceColumn("id", 20, -1, "int8", "bigint", 1)
OLD = TableSchema(STREAM, (ID,), ("id",))
NEW = replace(OLD, columns=(ID, SourceColumn("v", 25, -1, "text", "text", 2)))


def write_steps(directory: Path, schemas: Sequence[TableSchema | None], *, first: int = 1) -> None:
    """A step per schema, each with one transaction of 10 bytes of the stream, or with nothing of it."""
    (directory / SCHEMA_DIRECTORY).mkdir(parents=True, exist_ok=True)
    for number, schema in enumerate(schemas, start=first):
        start = 100 * number
        tables: tuple[TableEntry, ...] = ()
        if schema is not None:
            (directory / SCHEMA_DIRECTORY / f"{schema.id}.json").write_text(json.dumps(schema.to_json()))
            file = FileEntry("f", schema.id, str(STREAM), 3, 10, {"i": 3}, start + 50, start + 50)
            tables = (TableEntry(STREAM, (file,)),)
        manifest = Manifest(number, "1", 1, Lsn(1), Lsn(start), Lsn(start + 100), "", 1, 0, 0, tables)
        manifest_path(directory, number).write_text(json.dumps(manifest.to_json()))


class Asked(ChangeLog):
    """Counts how often it looks at a manifest, whether it has it in memory or not."""

    looked = 0

    def _manifest(self, seq: int) -> Manifest:
        self.looked += 1
        return super()._manifest(seq)


def query(directory: Path, schema: TableSchema) -> tuple[LogStreamReader, Asked]:
    struct = from_arrow_schema(LogShape(schema, True).arrow_schema(), prefer_timestamp_ntz=True)
    struct["_tx"].metadata = {"penstock.schema_id": schema.id}
    reader = LogStreamReader(Request(directory, STREAM, None, END, True, 25), struct)
    log = Asked(directory)
    reader._log = log
    return reader, log


def offset(place: int) -> dict[str, str]:
    return {"place": str(Place(place))}


def test_a_batch_costs_what_is_new_in_it_and_not_the_whole_log(tmp_path: Path) -> None:
    write_steps(tmp_path, [OLD] * 1000)
    reader, log = query(tmp_path, OLD)
    reader.partitions(offset(100), offset(50_000))  # as it is begun: it has not seen any of it
    log.looked = 0
    end = reader.latestOffset()
    assert end == offset(50_200), "the bytes of two steps"
    assert reader.partitions(offset(50_000), end)
    assert log.looked < 300, "whoever looks at all of them looks at 1,000 of them twice"
    assert batch_end(log, STREAM, Place(100), END, 0) == Place(100_100), "no limit: all of it"


def test_a_batch_ends_where_it_did_wherever_it_begins(tmp_path: Path) -> None:
    write_steps(tmp_path, [OLD, None, OLD, None, OLD, OLD])
    log = ChangeLog(tmp_path)
    ends = {
        first: batch_end(log, STREAM, first, END, 25)
        for first in (Place(0), Place(100), Place(199, 5), Place(200), Place(200, 1), Place(700))
    }
    assert ends == {
        Place(0): Place(500),
        Place(100): Place(500),
        Place(199, 5): Place(500),
        Place(200): Place(600),
        Place(200, 1): Place(600),
        Place(700): Place(700),
    }


def test_newer_columns_are_noticed_in_whichever_batch_they_come(tmp_path: Path) -> None:
    write_steps(tmp_path, [OLD, OLD, None, OLD])
    reader, _ = query(tmp_path, OLD)
    for start, end in ((100, 200), (200, 300), (300, 400), (400, 500)):
        reader.partitions(offset(start), offset(end))
    write_steps(tmp_path, [OLD, NEW], first=5)
    reader.partitions(offset(500), offset(600))
    for _ in range(2):  # once more: what was refused is not known as accepted
        with pytest.raises(StateError, match="columns of this stream have changed"):
            reader.partitions(offset(600), offset(700))
    reader.partitions(offset(100), offset(300))  # a batch that is given again
    write_steps(tmp_path, [OLD], first=7)
    of_new, _ = query(tmp_path, NEW)
    of_new.partitions(offset(600), offset(700))
    with pytest.raises(StateError, match="columns of this stream have changed"):
        of_new.partitions(offset(700), offset(800))


def test_batches_from_before_the_query_was_made_are_read_with_its_columns(tmp_path: Path) -> None:
    write_steps(tmp_path, [OLD, OLD, NEW, NEW])
    reader, _ = query(tmp_path, NEW)
    for start in (100, 200, 300, 400):
        reader.partitions(offset(start), offset(start + 100))
    write_steps(tmp_path, [OLD], first=5)
    with pytest.raises(StateError, match="columns of this stream have changed"):
        reader.partitions(offset(500), offset(600))


def test_a_range_that_the_log_no_longer_has_is_told_wherever_the_log_begins(tmp_path: Path) -> None:
    write_steps(tmp_path, [OLD] * 3, first=5)
    log = ChangeLog(tmp_path)
    for after, to in ((300, 400), (300, 500), (300, 600), (300, 9000)):
        with pytest.raises(LogGoneError):
            log.files(STREAM, Lsn(after), Lsn(to))
    assert [
        len(log.files(STREAM, Lsn(after), Lsn(to)).files)
        for after, to in ((500, 600), (0, 700), (550, 551), (800, 900))
    ] == [1, 2, 1, 0]
