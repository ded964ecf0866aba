"""What the lane asks of whoever compares its tables with their source, and what it is told.

The lane writes what differs (`by_difference`); finding it is above the lane (`penstock.verify`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.core.stream import StreamId
from penstock.destinations.base import DestinationTable
from penstock.destinations.records import DataFile, TableRecord
from penstock.lake.repair import Repair
from penstock.lake.target import Target
from penstock.sources.tables import SourceTable


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table and what it is to hold; `target` has its columns, under the table's own ids for them."""

    info: SourceTable
    table: DestinationTable
    record: TableRecord
    target: Target


@dataclass(frozen=True, slots=True)
class Differing:
    """What a table differs from its source in, and the rows of the source that it cannot hold."""

    repair: Repair | None  # None: nothing is to be written
    rows: int  # that differ
    rows_compared: int  # of the source
    letters: tuple[DataFile, ...] = ()


@dataclass(frozen=True, slots=True)
class BetterLoaded:
    reason: str  # for people


class Comparer(Protocol):
    def compare(
        self, tables: Mapping[StreamId, HeldTable], snapshot: str
    ) -> Iterator[tuple[StreamId, Differing | BetterLoaded | None]]:
        """What came of each, one after the other; None of one that the source rewrote while it was read."""
        ...
