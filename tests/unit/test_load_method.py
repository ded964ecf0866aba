"""By which ranges the lake loads a table: what it cannot be cut by, it is not asked to be cut by."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.core.errors import SourceError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.lake.backfill import Backfill
from penstock.lake.lane_state import LaneSettings, LaneState, LaneStream
from penstock.ledger.state import SyncMode
from penstock.sources.chunk import ChunkMethod
from penstock.sources.postgres.chunks import plan_chunks
from penstock.sources.postgres.table_reading import PostgresReading
from penstock.sources.tables import SourceTable

STREAM = StreamId("public", "orders")


def table(key_type: str | None) -> SourceTable:
    columns = (SourceColumn("id", 20, -1, key_type or "int8", key_type or "bigint"),)
    schema = TableSchema(STREAM, columns, ("id",) if key_type else ())
    return SourceTable(stream=STREAM, oid=1, kind="table", schema=schema, leaves=(), primary_key=schema.key)


def method(setting: ChunkMethod, key_type: str | None, *, per_chunk: bool = False) -> str:
    nobody = cast(Any, None)
    settings = LaneSettings(nobody, PostgresReading(""), Lsn(1), setting, 1, 1, origin="o", timeline=1)
    lane = LaneState(settings, {}, nobody, nobody, nobody, nobody, nobody, nobody)
    mode: SyncMode = "full_refresh" if per_chunk else "cdc"
    return Backfill(lane)._method(LaneStream(table(key_type), mode, "upsert", {}, per_chunk=per_chunk))


@pytest.mark.parametrize("per_chunk", [False, True], ids=["in one go", "per chunk"])
def test_a_key_without_ranges_does_not_stop_a_load_by_key(*, per_chunk: bool) -> None:
    found = {of: method("key", of, per_chunk=per_chunk) for of in ("int8", "uuid", "text", None)}
    assert found == {"int8": "key", "uuid": "key", "text": "ctid", None: "ctid"}
    assert method("ctid", "int8") == "ctid"


@pytest.mark.parametrize("key_type", ["text", None])
def test_who_asks_for_ranges_that_are_not_there_is_told_of_the_setting(key_type: str | None) -> None:
    with pytest.raises(SourceError) as told:
        plan_chunks(cast(Any, None), table(key_type), "key")
    assert told.value.remedy is not None
    assert "`load.method: ctid`" in told.value.remedy
