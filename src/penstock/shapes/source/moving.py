"""`MoveIns`: the rows that came into a shape because a subquery's values did, read from the source.

They are read like a first answer, in a transaction whose snapshot tells which changes they already show, and
are marked as moved in. They come in blocks of lines with their keys; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from psycopg import sql

from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.rendering.row_lines import Lines, RowLines
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import SnapshotPoint
from penstock.shapes.source.pool import QueryPool
from penstock.shapes.source.present import PresentTables
from penstock.shapes.source.problems import problem_of
from penstock.shapes.source.row_reader import consistent, read_lines
from penstock.shapes.source.sql import tables_read
from penstock.sources.postgres.connection import Connection


class MoveIns:
    def __init__(self, pool: QueryPool, settings: ShapeSettings) -> None:
        self._pool = pool
        self._tables = PresentTables()
        self._first_data_s = settings.snapshot_first_data_timeout.total_seconds()
        self._lock_s = settings.snapshot_lock_timeout.total_seconds()

    def read(
        self,
        definition: ShapeDefinition,
        condition: sql.Composable,
        row_headers: sql.Composable | None,
        on_point: Callable[[SnapshotPoint], None],
        on_rows: Callable[[Lines], None],
    ) -> Future[int]:
        """The rows that meet `condition`, which stands for the shape's own; done with how many there were.

        `row_headers` is an expression for the headers of each row, such as `,"tags":["…"]`. Both are told in
        the pool's thread: first the snapshot, then the rows. Fails with a `SnapshotProblem`.
        """

        def work(connection: Connection) -> int:
            count = 0
            try:
                with consistent(connection, tables_read(definition), self._lock_s) as point:
                    rows = RowLines(
                        self._tables.definition(connection, definition),
                        headers=',"is_move_in":true',
                        row_headers=row_headers,
                        conditions=[condition],
                    )
                    on_point(point)
                    for lines in read_lines(connection, rows, self._first_data_s):
                        count += len(lines.ends)
                        on_rows(lines)
            except Exception as error:
                raise problem_of(error, definition.table) from error
            return count

        return self._pool.submit(work)
