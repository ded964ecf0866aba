"""A table is pinned with what the state knows of that very table, however loads replace it meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.destinations.base import DestinationTable
from penstock.destinations.records import Marker, TableRecord
from penstock.ledger import two_phase
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord, LoadRecords
from penstock.ledger.state import Chunk, StateDocument
from penstock.verify.view import NotComparableError, Pin

pytestmark = pytest.mark.unit

ORDERS = StreamId("public", "orders")
SCHEMA = TableSchema(ORDERS, (SourceColumn("id", 20, -1, "bigint", "bigint"),), key=("id",))


class Table:
    """One look after the other; the last is how it stays."""

    def __init__(self, looks: Sequence[TableRecord]) -> None:
        self._looks = list(looks)

    def record(self) -> TableRecord:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]


def record(generation: str, to: int) -> TableRecord:
    marker = Marker(generation, Lsn(1), None, Lsn(to), ())
    return TableRecord(1, "swap", "2026-01-01T00:00:00Z", Lsn(1), "upsert", SCHEMA, marker=marker)


def state(generation: str, to: int) -> StateDocument:
    planned = two_phase.plan_load(
        StateDocument.new("p"),
        ORDERS,
        sync_mode="cdc",
        load_id="l",
        generation=generation,
        chunks=[Chunk(None, None)],
    )
    return two_phase.load_done(planned, ORDERS, Lsn(to))


def load_of(generation: str, directory: Path) -> LoadRecords:
    loads = LoadRecords(directory)
    points = (LoadPoint(Lsn(100), "a"), LoadPoint(Lsn(200), "b"))
    chunks = (LoadChunk(str(ORDERS), None, None, 0, 1),)
    loads.save(LoadRecord("l", generation, ORDERS, "ctid", None, SCHEMA, {}, points, chunks))
    return loads


def pin(looks: Sequence[TableRecord], document: StateDocument, loads: LoadRecords) -> Pin:
    return Pin.of(ORDERS, cast(DestinationTable, Table(looks)), lambda: document, loads)


def test_a_table_that_was_replaced_between_two_looks_is_looked_at_again(tmp_path: Path) -> None:
    loads = load_of("new", tmp_path)
    found = pin([record("old", 50), record("new", 200)], state("new", 200), loads)
    assert found.record.marker is not None
    assert found.record.marker.generation == "new"
    assert found.position == 200
    assert found.load is not None


def test_a_load_that_has_just_begun_says_nothing_of_the_table_there_is(tmp_path: Path) -> None:
    found = pin([record("old", 50)], state("old", 50), load_of("new", tmp_path))
    assert found.load is None


def test_a_table_that_stays_of_another_load_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(NotComparableError, match="another load"):
        pin([record("old", 50)], state("new", 200), load_of("new", tmp_path))
