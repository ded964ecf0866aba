"""`ShapeLane`: the live lane without its HTTP side. What is made of what, and in which thread it runs.

    engine          everything that changes shapes (`engine`)
    replication     follows capture's tail (`replication_client`)
    reporter        tells capture how far the lane is
    awaited         asks capture how far the source is, if a query's rows wait for that
    upkeep          shapes that nobody reads, compaction
    place           whether the shapes are still ours to write
    snapshots       a bounded pool that asks the source for rows (`pool`)
    reconciler      compares tables with what shapes know of them
    storage         the write loop (`storage`)

Shapes that were there before can be read as soon as it has started, whether capture leads or not.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path

import structlog

from penstock import logs
from penstock.capture.position_reporter import PositionReporter
from penstock.capture.remote import RemoteCapture
from penstock.core.errors import PenstockError
from penstock.core.position import Lsn
from penstock.shapes.engine.engine import Engine
from penstock.shapes.engine.eviction import Limits
from penstock.shapes.engine.replication_client import AwaitedPosition, ReplicationClient
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import Shape
from penstock.shapes.source.catalog import Catalog
from penstock.shapes.source.earlier_writers import EarlierWriters
from penstock.shapes.source.moving import MoveIns
from penstock.shapes.source.pool import Pools
from penstock.shapes.source.publishing import TablePublisher
from penstock.shapes.source.reconciler import SchemaReconciler, Verdict
from penstock.shapes.source.snapshot import InitialSnapshots

_UPKEEP_EVERY_S = 5.0
_LOOK_EVERY_S = 1.0
_SAVE_READS_TURNS = 12
_COMPACT_CHUNKS = 8
_STOP_WITHIN_S = 10.0
_logger = structlog.get_logger("penstock.shapes")


class ShapeLane:
    """`wake` is given shapes that changed; `on_state`, whether changes are followed, and why not;
    `on_failure`, that a thread has failed: the lane is of no use then."""

    def __init__(
        self,
        settings: ShapeSettings,
        capture: RemoteCapture,
        log_directory: Path,
        wake: Callable[[list[Shape]], None],
        on_state: Callable[[bool, str], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._on_failure = on_failure
        self.engine = Engine(
            settings.directory,
            wake,
            limits=Limits(
                settings.max_shapes,
                int(settings.max_disk_bytes),
                inf if settings.expire_after is None else settings.expire_after.total_seconds(),
                settings.stuck_after.total_seconds(),
            ),
            chunk_bytes=int(settings.chunk_bytes_threshold),
            subquery_transactions_max=settings.subquery_buffer_max_transactions,
        )
        self.pools = Pools.open(settings)
        self.catalog = Catalog(self.pools.admin.connection)
        for shape in self.engine.registry.all():  # they are compared with the source when a term begins
            self.catalog.put(shape.definition.card)
        self._publisher = TablePublisher(
            capture,
            self.pools.admin,
            self.engine.joined,
            manual=settings.publication_mode == "manual",
            wait_s=settings.snapshot_lock_timeout.total_seconds(),
        )
        self._reconciler = SchemaReconciler(
            self.pools.admin,
            self.catalog,
            self.engine.registry.all,
            self._reconciled,
            settings.schema_check_every.total_seconds(),
            settings.publication,
        )
        earlier = self._earlier = EarlierWriters()
        self.engine.snapshots = InitialSnapshots(
            self.pools,
            self._publisher,
            settings,
            earlier,
            self._reconciler.look_at,
            self.engine.subqueries.headers,
        )
        self.engine.subqueries.moves = MoveIns(self.pools.queries, settings, earlier)
        self._awaited = AwaitedPosition(capture, lambda: self.engine.collector.delivery.position)
        self.engine.subqueries.on_wait = self._awaited.want
        self.engine.publisher = self._publisher
        self.engine.reconcile = self._reconciler.reconcile
        self.engine.on_new_version = self._reconciler.look_at
        self._reporter = PositionReporter(capture, lambda: self.engine.position)
        self.engine.on_joined = self._reporter.joined
        self._client = ReplicationClient(
            capture, log_directory, settings.source_url, self.engine, on_state, self._reporter.followed
        )
        self._stop = threading.Event()
        works = {
            "replication": self._client.run,
            "reporter": self._reporter.run,
            "awaited": self._awaited.run,
            "upkeep": self._upkeep,
            "place": self._keep_place,
        }
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"shapes-{name}", daemon=True)
            for name, work in works.items()
        ]

    def start(self) -> None:
        kept = {shape.definition.table for shape in self.engine.registry.all() if shape.has_subqueries}
        if kept:  # if it fails, the first query looks
            self.pools.queries.submit(lambda connection: self._earlier.look(connection, kept))
        self.engine.start()
        self._reconciler.start()
        for thread in self._threads:
            thread.start()

    def want(self, position: Lsn) -> None:
        """Have all shapes come to a position soon, whether anything happens at the source or not."""
        self._awaited.want(position)

    def close(self) -> None:
        """Everything that was handed out is on disk, and capture knows it, if it can be told."""
        self._stop.set()
        self._reporter.wake()
        self._awaited.wake()
        self._reconciler.stop()
        self._publisher.close()
        self.engine.close()
        with contextlib.suppress(PenstockError):  # it hears of it after the next start
            self._reporter.report()
        self.pools.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_STOP_WITHIN_S)

    def _guarded(self, work: Callable[[threading.Event], None]) -> None:
        try:
            work(self._stop)
        except BaseException as error:
            if not self._stop.is_set():
                self._on_failure(self.engine.failure or error)

    def _keep_place(self, stop: threading.Event) -> None:
        while not stop.wait(_LOOK_EVERY_S):
            self.engine.require_place()

    def _upkeep(self, stop: threading.Event) -> None:
        engine, turns = self.engine, 0
        while not stop.wait(_UPKEEP_EVERY_S):
            turns += 1
            if engine.failure is not None:
                raise engine.failure
            engine.eviction.drop_unread()
            if turns % _SAVE_READS_TURNS == 0:
                engine.registry.save_reads(engine.registry.all())
                self._compact(stop)

    def _compact(self, stop: threading.Event) -> None:
        """One shape after the other; one that cannot be compacted stays as it is."""
        enough = _COMPACT_CHUNKS * int(self._settings.chunk_bytes_threshold)
        for shape in self.engine.registry.all():
            files = shape.storage.files
            if stop.is_set() or shape.has_subqueries or files.end - files.base < enough:
                continue
            try:
                shape.storage.compact()
            except Exception as error:
                logs.log_unexpected("compaction of a shape", error)

    def _reconciled(self, shape: Shape, verdict: Verdict) -> None:
        engine = self.engine
        if verdict.kind == "rotate":
            _logger.info("table has changed", table=str(shape.definition.table), reason=verdict.reason)
            engine.submit(lambda: engine.drop(shape, "schema", is_of_table=True))
        elif verdict.card is not None:
            definition = shape.definition.with_card(verdict.card)
            engine.submit(lambda: engine.refresh(shape, definition))
