"""A shape with subqueries against its SELECT: one look after the other, until every row is judged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson
import psycopg
from psycopg import sql

from penstock.core.offset import LogOffset
from penstock.shapes.comparison.held import Found
from penstock.shapes.comparison.pending import rows_to_judge
from penstock.shapes.comparison.reading import ServedShape
from penstock.shapes.comparison.tagged import TaggedSides
from penstock.shapes.comparison.visible import reached_at
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.source.earlier_writers import EarlierWriters
from penstock.shapes.source.present import PresentTables, Versions, versions_of
from penstock.shapes.source.problems import problem_of, schema_changed
from penstock.shapes.source.row_reader import consistent, read_lines
from penstock.shapes.source.sql import tables_read
from penstock.shapes.subquery.watch import Cut
from penstock.sources.postgres.connection import Connection, connect

_SNAPSHOTS_MAX = 50
_SNAPSHOT_PAUSE_S, _SNAPSHOT_PAUSE_MAX_S = 0.01, 0.5
_LOOKS_MAX = 10
_PAUSE_S, _PAUSE_MAX_S = 0.05, 5.0
_OP_MAX = 1 << 60


def ranges(cut: Cut) -> Iterator[tuple[LogOffset, LogOffset]]:
    """Of the shape's log, what it had as of the cut: behind the one, and up to the other."""
    after, last = LogOffset.LAST_BEFORE_REAL, min(cut.offset, LogOffset(cut.tx, _OP_MAX))
    for late in sorted(cut.late):
        yield after, min(last, LogOffset(late - 1, _OP_MAX))
        after = LogOffset(late, _OP_MAX)
    yield after, last


class NoCutError(Exception):
    """No snapshot showed a first part of what the log has, and nothing of the rest."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long is waited: for the service, for a lock and for who is committing, for the first row."""

    behind_s: float
    lock_s: float
    first_data_s: float


class Judged(NamedTuple):
    """What came of it. Rows are counted at the last look; `open`: those that were pending at each."""

    lsn: int
    offset: LogOffset
    source_rows: int
    shape_rows: int
    found: Found
    open: int = 0
    looks: int = 1


class ComparisonAtCuts:
    def __init__(
        self, url: str, served: ServedShape, definition: ShapeDefinition, tables: PresentTables, waits: Waits
    ) -> None:
        self._url = url
        self._served = served
        self._definition = definition
        self._tables = tables
        self._waits = waits

    def compare(self, path: Path, limit: int, *, show_values: bool) -> Judged:
        """Rows of both sides are in a file there meanwhile."""
        with closing(TaggedSides(path, self._definition, limit)) as sides:
            lsn, offset = self._look(sides, show_values=show_values)
            looks = 1
            while sides.open and looks < _LOOKS_MAX:
                time.sleep(min(_PAUSE_MAX_S, _PAUSE_S * 2**looks))
                lsn, offset = self._look(sides, show_values=show_values)
                looks += 1
            return Judged(lsn, offset, *sides.counted(), sides.found, sides.open, looks)

    def _look(self, sides: TaggedSides, *, show_values: bool) -> tuple[int, LogOffset]:
        """As of which position of the source, and up to where of the shape."""
        sides.begin()
        lsn, cut = self._read_source(sides)
        for items in self._served.first_rows():
            sides.put_first_rows(items)
        for after, until in ranges(cut):
            for items in self._served.changes_between(after, until, self._waits.behind_s):
                sides.take(items)
        sides.judge(show_values=show_values)
        return lsn, min(cut.offset, LogOffset(cut.tx, 0))

    def _read_source(self, sides: TaggedSides) -> tuple[int, Cut]:
        """Rows as of a cut; a `SnapshotProblem` if they cannot be read, or are of another table by now."""
        table = self._definition.table
        try:
            with closing(connect(self._url, application_name="penstock verify")) as connection:
                for number in range(1, _SNAPSHOTS_MAX):
                    found = self._read_once(connection, sides)
                    if found is not None:
                        return found
                    time.sleep(min(_SNAPSHOT_PAUSE_MAX_S, _SNAPSHOT_PAUSE_S * number))
        except psycopg.Error as error:
            raise problem_of(error, table) from error
        raise NoCutError

    def _read_once(self, connection: Connection, sides: TaggedSides) -> tuple[int, Cut] | None:
        """None: the snapshot is of no use."""
        definition, waits = self._definition, self._waits
        cards = tables_read(definition)
        watch = self._served.watch()
        earlier = EarlierWriters()
        for card in cards:
            earlier.wait(connection, card.stream, waits.lock_s)
        watch = self._served.watch(after=watch)
        with consistent(connection, cards, waits.lock_s) as moment:
            self._require(connection, definition, moment.versions)
            point = moment.point
            asked = SnapshotPoint(point.xmin, point.xmax, point.xip, reached_at(point.lsn))
            cut = self._served.cut(watch, asked, waits.behind_s)
            if not isinstance(cut, Cut):
                return None
            for lines in read_lines(connection, rows_to_judge(definition, cut.unsettled), waits.first_data_s):
                sides.put_rows(orjson.loads(b"[" + b",".join(lines.content.splitlines()) + b"]"))
        return point.lsn, cut

    def _require(
        self, connection: Connection, definition: ShapeDefinition, versions: Versions | None
    ) -> None:
        """That all the tables are those that the shape was made of."""
        if self._tables.definition(connection, definition, versions).columns != definition.columns:
            raise schema_changed(definition.table)
        for atom in definition.where.subqueries if definition.where is not None else ():
            query = sql.SQL("SELECT {}").format(versions_of(atom.definition.table))
            row = connection.execute(query).fetchone()
            self._require(connection, atom.definition, tuple(row[0]) if row and row[0] else None)
