"""`InitialSnapshots`: a new shape's first rows, from Postgres to its storage.

Nothing is missing between the snapshot and the changes after it, and nothing is there twice:

1. The shape is routed before this begins: the engine keeps every change of its table from then on.
2. The table is published with its old rows, and every transaction that had written to it before has ended
   (`publishing`): each change that commits later is in the log, whole.
3. What was handed out before the engine remembered it, of any table that is read, has become visible
   (`earlier_writers`).
4. Only then the snapshot is taken (`row_reader`), again if it does not show all that the engine remembers.
   Its xmin, xmax, running transactions and the log's position go to the engine, which leaves out of the
   changes exactly those that the snapshot shows.

The table is compared with the definition under the lock that the rows are read under: a shape is never
filled from another table, or other columns, than it was defined on.

Rows become readable as they are written. A crash before the end discards the shape.

Where many shapes of a table wait, some are read in one transaction: each was routed before it began, which is
all that the above asks for, and what they cost besides their rows is shared.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

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
from penstock.shapes.source.row_reader import Moment, consistent, read_lines
from penstock.shapes.source.sql import tables_read
from penstock.shapes.storage.snapshots import SnapshotWriter
from penstock.sources.postgres.connection import Connection

_TAKE_AGAIN_S = 0.01

RowHeaders = Callable[[Shape], sql.Composable | None]
OnChanged = Callable[[StreamId], None]


class _Wanted(NamedTuple):
    shape: Shape
    listener: SnapshotListener


class InitialSnapshots:
    """The engine's `SnapshotSource`. `on_changed` is told of tables that are not as their definition says;
    `row_headers` says which headers rows of a shape have besides."""

    def __init__(
        self,
        pools: Pools,
        publisher: TablePublisher,
        settings: ShapeSettings,
        earlier: EarlierWriters,
        on_changed: OnChanged = lambda _table: None,
        row_headers: RowHeaders = lambda _shape: None,
    ) -> None:
        self._pool = pools.snapshots
        self._publisher = publisher
        self._first_data_s = settings.snapshot_first_data_timeout.total_seconds()
        self._lock_s = settings.snapshot_lock_timeout.total_seconds()
        self._tables = PresentTables()
        self._earlier = earlier
        self._on_changed = on_changed
        self._row_headers = row_headers

    def start(self, shape: Shape, listener: SnapshotListener) -> None:
        """Have its table published, and a snapshot of it taken, soon; returns at once."""

        def published(outcome: Future[None]) -> None:
            if (error := outcome.exception()) is not None:
                ended(error)
            else:
                taken = self._pool.submit_together(self._take_all, _Wanted(shape, listener), _kind(shape))
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

    def _take_all(self, connection: Connection, wanted: Sequence[_Wanted]) -> Iterator[None]:
        """One after the other, as of one moment; but nobody waits behind one that is more than a block."""
        definition = wanted[0].shape.definition
        for card in tables_read(definition):
            self._earlier.wait(connection, card.stream, self._lock_s)
        with self._moment(connection, wanted) as moment:
            for shape, listener in wanted:
                is_small = self._take(connection, moment, shape, listener)
                yield
                if not is_small:
                    return

    @contextlib.contextmanager
    def _moment(self, connection: Connection, wanted: Sequence[_Wanted]) -> Iterator[Moment]:
        """A transaction that shows all that was handed out before these shapes were routed.

        A commit is in the log, and may be handed out, a moment before it is visible. The engine refuses a
        snapshot without it, so another is taken; but not for ever, if a commit waits for a standby.
        """
        deadline = time.monotonic() + self._lock_s
        while True:
            with consistent(connection, tables_read(wanted[0].shape.definition), self._lock_s) as moment:
                shows_enough = all(
                    listener.snapshot_shows_enough(shape, moment.point) for shape, listener in wanted
                )
                if shows_enough or time.monotonic() > deadline:
                    yield moment
                    return
            time.sleep(_TAKE_AGAIN_S)

    def _take(self, connection: Connection, moment: Moment, shape: Shape, listener: SnapshotListener) -> bool:
        """Whether it was a block at most."""
        definition = shape.definition
        _require_wanted(shape)
        if self._tables.definition(connection, definition, moment.versions).columns != definition.columns:
            raise schema_changed(definition.table)
        with contextlib.ExitStack() as undo:
            writer = shape.storage.make_new_snapshot()
            undo.callback(_leave_off, shape, writer)
            listener.snapshot_known(shape, moment.point)
            blocks = self._copy(connection, shape, writer, listener) if definition.log == "full" else 0
            writer.close(snapshot_end(moment.point))
            _require_wanted(shape)
            undo.pop_all()
        listener.snapshot_completed(shape)
        return blocks <= 1

    def _copy(
        self, connection: Connection, shape: Shape, writer: SnapshotWriter, listener: SnapshotListener
    ) -> int:
        """How many blocks there were. Of a snapshot that is one block it is told when it is complete, and no
        sooner: its readers would be woken twice within a millisecond, and be sent it in parts."""
        rows = RowLines(shape.definition, row_headers=self._row_headers(shape))
        blocks = 0
        for lines in read_lines(connection, rows, self._first_data_s):
            _require_wanted(shape)
            writer.write(lines.content, lines.ends)
            blocks += 1
            if blocks == 2:
                listener.snapshot_started(shape)
            elif blocks > 2:
                listener.snapshot_grown(shape)
        return blocks


def _kind(shape: Shape) -> Hashable:
    """Shapes of the same kind are read under the same lock, in one transaction if need be; None: alone."""
    definition = shape.definition
    return None if shape.has_subqueries else (definition.table, definition.oid)


def _leave_off(shape: Shape, writer: SnapshotWriter) -> None:
    writer.abort()
    if shape.state == "gone":  # its directory was removed, perhaps before the writer made it again
        shape.storage.cleanup()


def _require_wanted(shape: Shape) -> None:
    if shape.state == "gone":
        raise schema_changed(shape.definition.table)
