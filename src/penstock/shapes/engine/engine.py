"""`Engine`: the one thread that changes shapes, and what others ask of it.

Whatever changes a shape happens here, in one order: it is made, its snapshot becomes known, transactions are
appended, it goes. Nothing here waits for a disk, the source or a client. Others ask (`submit`), and changes
wait for room (`hand_in`). After each turn, all that came is committed to storage at once and those who wait
for any of the shapes are woken at once.

Making a shape: it is registered for routing before its snapshot is asked for (`consumer` says why nothing is
lost in between); those inside it are made before it is (`nested_making`). It is kept over a restart from the
commit on that has both its whole snapshot and all that was kept for it meanwhile (`beginnings`). First rows
that come in one block are shown when that commit is durable, which is a millisecond or two after the last of
them: whoever has them has a handle that a crash does not take. A larger snapshot is shown as it is written,
`offset=now` is answered before there is one, and a must-refetch may name a shape that is still being made.
One that a crash finds then is gone, and its clients fetch anew, once: a handle is never given twice, so what
somebody was told is either still the same shape or none.

A shape that goes is found by nobody from then on; its readers are woken and see that it is gone, and storage
sees to it that no crash brings it back at a later position. What depends on it goes with it. Which have to
go for want of room or of readers, `eviction` says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import structlog

from penstock import logs
from penstock.capture.spec import Started
from penstock.capture.transactions import TransactionFragment
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.metrics import Sample
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.engine.beginnings import Beginnings
from penstock.shapes.engine.collector import ShapeLogCollector
from penstock.shapes.engine.eviction import Eviction, Limits
from penstock.shapes.engine.inbox import Inbox, Task
from penstock.shapes.engine.kept_shape import KeptShape
from penstock.shapes.engine.measures import ShapeMeasures
from penstock.shapes.engine.nested_making import NestedMaking
from penstock.shapes.engine.registry import ShapeRegistry, Stack, depth
from penstock.shapes.engine.subqueries import Subqueries
from penstock.shapes.shape import Shape, SnapshotPoint, SnapshotProblem, SnapshotSource
from penstock.shapes.source.problems import not_made
from penstock.shapes.source.publishing import TablePublisher
from penstock.shapes.storage import ShapeStore

TURN_S = 1.0
_WAITING_BYTES_MAX = 12 << 20
_logger = structlog.get_logger("penstock.shapes")
Result = TypeVar("Result")


class Engine:
    """`wake` is given the shapes that changed and that somebody waits for; it returns at once."""

    def __init__(
        self,
        directory: Path,
        wake: Callable[[list[Shape]], None],
        *,
        limits: Limits = Limits(),  # noqa: B008 - a value
        chunk_bytes: int = 10 << 20,
        subquery_transactions_max: int = 1000,
    ) -> None:
        self._wake_readers = wake
        self.measures = ShapeMeasures()
        self.registry = ShapeRegistry(directory)
        self._store = ShapeStore(
            directory,
            chunk_bytes=chunk_bytes,
            on_flushed=lambda end, offsets: self._later(lambda: self._flushed(offsets)),
            on_failed=lambda slot, error: self._later(lambda: self._storage_failed(slot, error)),
        )
        self._inbox = Inbox(_WAITING_BYTES_MAX)
        self.snapshots: SnapshotSource | None = None
        self.publisher: TablePublisher | None = None
        self.reconcile: Callable[[], None] = lambda: None  # all tables with what shapes know of them
        self.on_joined: Callable[[], None] = lambda: None
        self.on_new_version: Callable[[StreamId], None] = lambda _stream: None
        self.replayed = False
        self._head: Lsn | None = None
        self._committed: Lsn | None = None
        self._is_dirty = False
        self._turned_at = 0.0
        self._thread = threading.Thread(target=self._run, name="shapes-engine", daemon=True)
        self.failure: BaseException | None = None
        self.collector = ShapeLogCollector(
            self._store,
            Lsn(0),
            lambda shape, reason: self.drop(shape, reason, is_of_table=True),
            lambda stream: self.on_new_version(stream),  # noqa: PLW0108 - it is set later
        )
        stack_id = self.registry.stack.stack_id
        self.subqueries = Subqueries(self, self._store, stack_id, subquery_transactions_max)
        self.collector.layers = self.subqueries.layers
        delivery = self.collector.delivery
        self._nested = NestedMaking(self)
        self._beginnings = Beginnings(delivery, self.subqueries.layers, self.measures, self._note_change)
        self.eviction = Eviction(limits, self.registry, self._store, delivery, self.drop, self._later)
        self._recover()

    # Life

    def start(self) -> None:
        self._store.start()
        self._thread.start()

    def close(self) -> None:
        """Everything that was handed out is on disk when this returns, unless there is no room for it."""
        self._inbox.close()
        self._store.take_last()
        if self._thread.is_alive():
            self._thread.join()
        self._nested.close()
        self.subqueries.close()
        self.registry.save_reads(self.registry.all())
        self._store.close()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is done."""
        return self._inbox.closed

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Have it called in the engine's thread."""
        return self._inbox.submit(call)

    def _later(self, call: Callable[[], None]) -> None:
        self._inbox.submit(call).add_done_callback(_say_if_failed)

    def _run(self) -> None:
        tasks: list[Task] = []
        try:
            while tasks or not self._inbox.closed:
                for task in tasks:
                    task.run()
                self._end_turn()
                tasks = self._inbox.take(TURN_S)
            self._commit()
        except BaseException as error:
            self.failure = error
            logs.log_unexpected("the live lane's engine", error)
            self._inbox.close()
            for task in (*tasks, *self._inbox.take(0)):
                task.cancel()

    def _end_turn(self) -> None:
        now = time.monotonic()
        is_due = now - self._turned_at >= TURN_S
        if is_due:
            self._turned_at = now
            self.eviction.drop_stuck(now)
            self._beginnings.forget_points(self._store.position or 0)
        self.subqueries.advance()
        touched, self.collector.delivery.touched = self.collector.delivery.touched, set()
        waited_for = [shape for shape in touched if shape.waiting]
        if waited_for:
            self._wake_readers(waited_for)
        if self._is_dirty or is_due:
            self._commit()

    def _commit(self) -> None:
        position = self.collector.delivery.position
        if self._is_dirty or position != self._committed:
            self._beginnings.keep_held()
            self._store.commit(position)
            self._committed, self._is_dirty = position, False

    def _note_change(self) -> None:
        self._is_dirty = True

    def commit_now(self) -> None:
        """All that was handed out, and nothing else: no transaction is open."""
        self._is_dirty = True
        self._commit()

    # What there was

    def _recover(self) -> None:
        found = self._store.recover()
        self.collector.begin_at(self._store.position or Lsn(0))
        known: list[tuple[Shape, KeptShape]] = []
        for handle, found_shape in found.items():
            try:
                kept = KeptShape.parse(found_shape.definition_json, found_shape.facts)
            except Exception as error:  # whatever a version of ours has written: its clients fetch anew
                logs.log_unexpected("the live lane", error)
                continue
            slot = self.registry.new_slot()
            storage = self._store.open(handle, slot)
            known.append((Shape(handle, kept.definition, slot, storage, hidden=kept.hidden), kept))
        for shape, kept in sorted(known, key=lambda each: depth(each[0].definition)):  # inner ones first
            self._resume(shape, kept)
        for shape in self.registry.all():
            if shape.hidden and not self.registry.outer_of(shape):
                self.drop(shape, "not needed")
        self._store.discard_unopened()

    def _resume(self, shape: Shape, kept: KeptShape) -> None:
        shape.state, shape.snapshot_started = "ready", True
        shape.last_offset = shape.storage.readable_offset
        try:
            self.collector.resume(shape, kept.point)
            if kept.held is not None:
                self.subqueries.resume(shape, self.registry.existing, kept.held)
            self._beginnings.resume(shape, kept.point)
            self.registry.add(shape)
        except Exception as error:  # as above: nobody can route its changes any more
            logs.log_unexpected("the live lane", error)
            self.collector.remove(shape)
            self._clean(shape)

    # Changes: `ChangeHandler`

    @property
    def stack(self) -> Stack:
        return self.registry.stack

    @property
    def position(self) -> Lsn | None:
        """What capture may forget: everything up to there is on disk for every shape."""
        held, tracker = self._store.position, self.collector.delivery.tracker
        if held is None or tracker.is_level:
            return held
        return min(held, Lsn(tracker.flushed))

    def join(self) -> Started:
        assert self.publisher is not None, "given before changes are followed"
        self.reconcile()  # tables that went or changed meanwhile: their shapes are not joined
        joined = self.publisher.join(self.submit(self.registry.tables).result())

        def drop_refused() -> None:
            for table in joined.refused:
                for shape in self.collector.shapes_of(table):
                    self.drop(shape, "not published")

        self.submit(drop_refused).result()
        return joined.started

    def begin_term(self) -> Lsn | None:
        def begin() -> Lsn | None:
            self.collector.break_off()
            return self.collector.delivery.position or None

        return self.submit(begin).result()

    def start_over(self, position: Lsn, reason: str) -> None:
        def begin() -> None:
            for shape in self.registry.all():
                self.drop(shape, "source")
            self._store.begin_at(position)
            self.collector.begin_at(position)
            if self.snapshots is not None:
                self.snapshots.start_over()

        if reason:
            _logger.warning("all shapes are made anew", reason=reason)
        self.submit(begin).result()

    def read_from(self, started: Started, head: Lsn) -> None:
        self._store.place.hold(started.epoch)
        self.registry.read_from(started.system_id, started.timeline)
        if self._head is None:
            self._head = head
            self._later(self._note_replayed)

    def hand_in(self, fragment: TransactionFragment) -> bool:
        def work() -> None:
            self.collector.process(fragment)
            self._is_dirty = self._is_dirty or bool(fragment.changes)
            self.measures.handed_out(fragment)
            self._note_replayed()

        size = sum(changes.rows.get_total_buffer_size() for changes in fragment.changes)
        return self._inbox.put(work, size)

    def _note_replayed(self) -> None:
        if not self.replayed and self._head is not None:
            self.replayed = self.collector.delivery.position >= self._head

    def joined(self, started: Started, tables: Collection[StreamId] = ()) -> None:
        """Capture was joined. Shapes of tables that were not published until then may lack changes: they are
        gone for good when this returns, and capture may be told so."""
        del tables  # those that were asked for; what they missed is in `started`

        def look() -> None:
            for table in started.published:
                for shape in self.collector.shapes_of(table):
                    if shape.state == "ready":
                        self.drop(shape, "not published")

        self.submit(look).result()
        if started.published:
            self._store.wait_removed()
        self.on_joined()

    # Shapes

    def create(self, definition: ShapeDefinition, *, hidden: bool = False) -> Future[Shape]:
        """Have a shape made, or get the one there is. A `SnapshotProblem` if that fails."""
        if definition.has_subqueries:
            return self._nested.create(definition, hidden=hidden)
        return _or_again(self.submit(lambda: self.begin(definition, hidden=hidden)))

    def begin(self, definition: ShapeDefinition, *, hidden: bool) -> Shape:
        """In the engine's thread: the shape there is, or a new one whose snapshot will be taken."""
        existing = self.registry.existing(definition)
        if existing is not None:
            if existing.hidden and not hidden:
                self._show(existing)
            return existing
        assert self.snapshots is not None, "given before anybody asks for a shape"
        if definition.has_subqueries and not self.subqueries.layers.are_known(definition):
            raise not_made()  # an inner shape has gone meanwhile
        shape = self._new_shape(definition, hidden)
        self.eviction.make_room()
        self.registry.add(shape)
        self.measures.created += 1
        try:
            self.collector.add(shape)
            self._beginnings.begin(shape)
            self.snapshots.start(shape, self)
        except Exception as error:
            logs.log_unexpected("the live lane", error)
            self.drop(shape, "error")
            raise not_made() from error
        return shape

    def _new_shape(self, definition: ShapeDefinition, hidden: bool) -> Shape:
        """Nothing of it is on disk before its snapshot is."""
        handle, slot = self.registry.new_handle(definition), self.registry.new_slot()
        return Shape(handle, definition, slot, self._store.open(handle, slot), hidden=hidden)

    def drop(self, shape: Shape, reason: str, *, is_of_table: bool = False) -> None:
        """In the engine's thread: the shape is gone, and what depends on it.

        `is_of_table`: the reason is its table, which may have to be published again.
        """
        if not self.registry.remove(shape):
            return
        if is_of_table and self.publisher is not None:
            self.publisher.forget(shape.definition.table)
        shape.state = "gone"
        was_under_way = self._beginnings.forget(shape)
        self.collector.remove(shape)
        self.collector.delivery.touched.add(shape)
        if was_under_way and self.snapshots is not None:
            self.snapshots.cancel(shape)
        self._clean(shape)
        self.measures.dropped(reason)
        _logger.info("shape dropped", handle=shape.handle, table=str(shape.definition.table), reason=reason)
        for outer in self.registry.outer_of(shape):
            self.drop(outer, "dependency")
        for inner in self.registry.inner_of(shape):
            if inner.hidden and not self.registry.outer_of(inner):
                self.drop(inner, "not needed")

    def refresh(self, shape: Shape, definition: ShapeDefinition) -> None:
        """In the engine's thread: the same shape of a table that has changed in what does not affect it.

        That is kept over a restart: what becomes of a column that was added is seen only by who knows it.
        """
        if shape.state != "gone":
            shape.definition = definition
            self.collector.refresh(shape)
            self._beginnings.keep_again(shape)

    def _show(self, shape: Shape) -> None:
        """A client wants what was there for subqueries alone: that is its own from now on, restart or not."""
        shape.hidden = False
        self._beginnings.keep_again(shape)

    def _clean(self, shape: Shape) -> None:
        shape.storage.cleanup()
        self.registry.free_slot(shape.slot)

    # Storage

    def require_place(self) -> None:
        """`SourceBusyError` if the shapes are another instance's by now."""
        self._store.place.require()

    def samples(self, *, waiting: int) -> list[Sample]:
        """For the supervisor; `waiting`: clients that wait."""
        return self.measures.samples(
            shapes=len(self.registry),
            waiting=waiting,
            routed=self.collector.changes_routed,
            bytes_on_disk=self._store.bytes_on_disk,
        )

    def _flushed(self, offsets: Mapping[int, LogOffset]) -> None:
        self.collector.delivery.flushed(offsets)
        self._beginnings.show_kept()

    def _storage_failed(self, slot: int, error: OSError) -> None:
        shape = self.collector.shape_at(slot)
        if shape is not None and shape.storage.is_gone:  # its slot may be another one's by now
            _logger.error("shape cannot be written", handle=shape.handle, error=error.strerror)
            self.drop(shape, "storage")

    # Snapshots: `SnapshotListener`

    def snapshot_shows_enough(self, shape: Shape, point: SnapshotPoint) -> bool:
        return self.collector.shows_enough(shape, point)

    def snapshot_known(self, shape: Shape, point: SnapshotPoint) -> None:
        def known() -> None:
            if self.registry.find(shape.handle) is not shape:
                return
            self._beginnings.known(shape, point)
            if not self.collector.known(shape, point):
                self._give_up(shape, not_made())

        self._later(known)

    def snapshot_started(self, shape: Shape) -> None:
        self._later(lambda: self._beginnings.started(shape))

    def snapshot_grown(self, shape: Shape) -> None:
        if shape.waiting:
            self._wake_readers([shape])

    def snapshot_completed(self, shape: Shape) -> None:
        self._later(lambda: self._beginnings.completed(shape))

    def settled(self, shape: Shape) -> None:
        self._beginnings.settled(shape)

    def not_usable(self, shape: Shape) -> None:
        self._give_up(shape, not_made())

    def snapshot_failed(self, shape: Shape, problem: SnapshotProblem) -> None:
        self._later(lambda: self._give_up(shape, problem))

    def _give_up(self, shape: Shape, problem: SnapshotProblem) -> None:
        shape.error = problem
        self.drop(shape, "snapshot")


def _or_again(asked: Future[Shape]) -> Future[Shape]:
    """The same, but whoever waits for what an engine that ends does not do any more is told to come again."""
    made: Future[Shape] = Future()
    made.set_running_or_notify_cancel()

    def ended(outcome: Future[Shape]) -> None:
        if outcome.cancelled():
            made.set_exception(not_made())
        elif (error := outcome.exception()) is not None:
            made.set_exception(error)
        else:
            made.set_result(outcome.result())

    asked.add_done_callback(ended)
    return made


def _say_if_failed(future: Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logs.log_unexpected("the live lane", error)
