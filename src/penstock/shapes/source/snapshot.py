"""`InitialSnapshots`: a new shape's first rows, from Postgres to its storage.

Nothing is missing between the snapshot and the changes after it, and nothing is there twice:

1. The shape is routed before this begins: the engine keeps every change of its table from then on.
2. The table is published with its old rows, and every transaction that had written to it before has ended
   (`publishing`): each change that commits later is in the log, whole.
3. What was handed out before the engine remembered it has become visible (`earlier_writers`).
4. Only then the snapshot is taken (`row_reader`), and its xmin, xmax, running transactions and the log's
   position go to the engine, which leaves out of the changes exactly those that the snapshot shows.

The table is compared with the definition under the lock that the rows are read under: a shape is never
filled from another table, or other columns, than it was defined on.

Rows become readable as they are written. A crash before the end discards the shape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future

from psycopg import sql

from penstock.core.stream import StreamId
from penstock.shapes.rendering.row_lines import RowLines, snapshot_end
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import Shape, SnapshotListener
from penstock.shapes.source.earlier_writers import EarlierWriters
from penstock.shapes.source.pool import Pools
from penstock.shapes.source.present import PresentTables
from penstock.shapes.source.problems import problem_of, schema_changed
from penstock.shapes.source.publishing import TablePublisher
from penstock.shapes.source.row_reader import consistent, read_lines
from penstock.shapes.source.sql import tables_read
from penstock.shapes.storage.snapshots import SnapshotWriter
from penstock.sources.postgres.connection import Connection

RowHeaders = Callable[[Shape], sql.Composable | None]
OnChanged = Callable[[StreamId], None]


class InitialSnapshots:
    """The engine's `SnapshotSource`. `on_changed` is told of tables that are not as their definition says;
    `row_headers` says which headers rows of a shape have besides."""

    def __init__(
        self,
        pools: Pools,
        publisher: TablePublisher,
        settings: ShapeSettings,
        on_changed: OnChanged = lambda _table: None,
        row_headers: RowHeaders = lambda _shape: None,
    ) -> None:
        self._pool = pools.snapshots
        self._publisher = publisher
        self._first_data_s = settings.snapshot_first_data_timeout.total_seconds()
        self._lock_s = settings.snapshot_lock_timeout.total_seconds()
        self._tables = PresentTables()
        self._earlier = EarlierWriters(self._lock_s)
        self._on_changed = on_changed
        self._row_headers = row_headers

    def start(self, shape: Shape, listener: SnapshotListener) -> None:
        """Have its table published, and a snapshot of it taken, soon; returns at once."""

        def published(outcome: Future[None]) -> None:
            if (error := outcome.exception()) is not None:
                ended(error)
            else:
                taken = self._pool.submit(lambda connection: self._take(connection, shape, listener))
                taken.add_done_callback(lambda future: ended(future.exception()))

        def ended(error: BaseException | None) -> None:
            if error is None:
                return
            table = shape.definition.table
            problem = problem_of(error, table)
            if problem.status == 409 and shape.state != "gone":
                self._on_changed(table)
            listener.snapshot_failed(shape, problem)

        self._publisher.ensure(shape.definition.table, shape.definition.oid).add_done_callback(published)

    def start_over(self) -> None:
        """The engine knows nothing any more of what was handed out before."""
        self._earlier.start_over()

    def cancel(self, shape: Shape) -> None:
        """Nothing to do: a shape that is gone is noticed with the next block of its rows."""

    def close(self) -> None:
        """Nothing more is begun. What is under way ends with its connection (`Pools.close`)."""
        self._publisher.close()

    def _take(self, connection: Connection, shape: Shape, listener: SnapshotListener) -> None:
        definition = shape.definition
        _require_wanted(shape)
        self._earlier.wait(connection, definition.table)
        with contextlib.ExitStack() as undo:
            with consistent(connection, tables_read(definition), self._lock_s) as point:
                if self._tables.definition(connection, definition).columns != definition.columns:
                    raise schema_changed(definition.table)
                listener.snapshot_known(shape, point)
                writer = shape.storage.make_new_snapshot()
                undo.callback(_leave_off, shape, writer)
                if definition.log == "full":
                    self._copy(connection, shape, writer, listener)
            writer.close(snapshot_end(point))
            _require_wanted(shape)
            undo.pop_all()
        listener.snapshot_completed(shape)

    def _copy(
        self, connection: Connection, shape: Shape, writer: SnapshotWriter, listener: SnapshotListener
    ) -> None:
        rows = RowLines(shape.definition, row_headers=self._row_headers(shape))
        tell = listener.snapshot_started
        for lines in read_lines(connection, rows, self._first_data_s):
            _require_wanted(shape)
            writer.write(lines.content, lines.ends)
            tell(shape)
            tell = listener.snapshot_grown


def _leave_off(shape: Shape, writer: SnapshotWriter) -> None:
    writer.abort()
    if shape.state == "gone":  # its directory was removed, perhaps before the writer made it again
        shape.storage.cleanup()


def _require_wanted(shape: Shape) -> None:
    if shape.state == "gone":
        raise schema_changed(shape.definition.table)
