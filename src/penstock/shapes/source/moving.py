"""`MoveIns`: rows that may come into a shape because a subquery's values did, read from the source.

They are read like a first answer, in a transaction whose snapshot tells which changes they already show, and
are marked as moved in. Whether they are in the shape is decided elsewhere, by the columns that come along.
Only the shape's own table is read. What was handed out of it before a restart must be visible by then
(`earlier_writers`): values that were held are asked for again, and nobody remembers what they must show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import pyarrow as pa
from psycopg import sql

from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.rendering.row_lines import Lines, RowLines
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.source.earlier_writers import EarlierWriters
from penstock.shapes.source.present import PresentTables
from penstock.shapes.source.problems import problem_of
from penstock.shapes.source.query_pool import QueryPool
from penstock.shapes.source.row_reader import consistent, read_blocks
from penstock.sources.postgres.connection import Connection


class MovedRows(NamedTuple):
    """Rows as lines without their own headers, and of each the columns that were asked for beside."""

    lines: Lines
    columns: dict[str, pa.StringArray]


class MoveIns:
    def __init__(self, pool: QueryPool, settings: ShapeSettings, earlier: EarlierWriters) -> None:
        self._pool = pool
        self._earlier = earlier
        self._tables = PresentTables()
        self._first_data_s = settings.snapshot_first_data_timeout.total_seconds()
        self._lock_s = settings.snapshot_lock_timeout.total_seconds()

    def read(
        self,
        definition: ShapeDefinition,
        condition: sql.Composable,
        columns: Sequence[str],
        on_point: Callable[[SnapshotPoint], None],
        on_rows: Callable[[MovedRows], None],
    ) -> Future[int]:
        """The rows that meet `condition`, which stands for the shape's own; done with how many there were.

        Both are told in the pool's thread: first the snapshot, then the rows. Fails with a `SnapshotProblem`.
        """

        def work(connection: Connection) -> int:
            count = 0
            try:
                self._earlier.wait(connection, definition.table, 0.0)
                with consistent(connection, [definition.card], self._lock_s) as (point, versions):
                    rows = RowLines(
                        self._tables.definition(connection, definition, versions),
                        headers=',"is_move_in":true',
                        conditions=[condition],
                        beside=columns,
                    )
                    on_point(point)
                    for block in read_blocks(connection, rows.query, rows.fields, self._first_data_s):
                        count += block.rows
                        on_rows(MovedRows(rows.render(block), rows.texts_beside(block)))
            except Exception as error:
                raise problem_of(error, definition.table) from error
            return count

        return self._pool.submit(work)
