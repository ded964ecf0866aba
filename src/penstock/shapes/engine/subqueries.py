"""`Subqueries`: what the engine does for shapes with subqueries, beside handing them changes.

Queries run in their pool's threads and tell the engine what came; the values of inner shapes are read in a
thread of their own. Everything else happens in the engine's thread (`subquery` says what, and why it is
right).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from psycopg import sql

from penstock import logs
from penstock.core.position import Lsn
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.engine.collector import ShapeLogCollector
from penstock.shapes.engine.consumer import Consumer
from penstock.shapes.rendering.renderer import Chosen
from penstock.shapes.shape import Shape, SnapshotPoint, SnapshotProblem
from penstock.shapes.source.moving import MovedRows, MoveIns
from penstock.shapes.source.problems import schema_changed
from penstock.shapes.storage import LogItems, ShapeStore
from penstock.shapes.subquery.candidates import condition_of
from penstock.shapes.subquery.held_state import HeldState
from penstock.shapes.subquery.layers import DependencyLayers
from penstock.shapes.subquery.members import form_of
from penstock.shapes.subquery.moves import BYTES_MAX, Flight
from penstock.shapes.subquery.outer import OuterShape
from penstock.shapes.subquery.tags import header_sql
from penstock.shapes.subquery.watch import Cut, NoCut

_READERS = 2
_RETRY_S = 0.5
_T = TypeVar("_T")


class SubqueryEngine(Protocol):
    """What is asked of the engine."""

    collector: ShapeLogCollector

    def submit(self, call: Callable[[], _T]) -> Future[_T]: ...

    def commit_now(self) -> None:
        """Commit all that was handed out."""

    def not_usable(self, shape: Shape) -> None: ...

    def settled(self, shape: Shape) -> None: ...


class Subqueries:
    """`DependencyLayers`' host. `on_wait` is told of a position that is waited for."""

    def __init__(
        self, engine: SubqueryEngine, store: ShapeStore, stack_id: str, transactions_max: int
    ) -> None:
        self._engine = engine
        self._store = store
        self._stack_id = stack_id
        self.layers = DependencyLayers(self, stack_id, transactions_max)
        self.moves: MoveIns | None = None
        self.on_wait: Callable[[Lsn], None] = lambda _position: None
        self._failed: list[tuple[float, OuterShape, Flight]] = []
        self._readers = ThreadPoolExecutor(_READERS, "shapes-values")

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)

    def headers(self, shape: Shape) -> sql.Composable | None:
        """An expression for what rows of a first answer are tagged with; any thread."""
        form = form_of(shape.definition)
        return None if form is None else header_sql(shape.definition, form, self.layers.salt(shape))

    # Shapes

    def require(self, inner: Shape, columns: tuple[str, ...]) -> Future[None]:
        """Have an inner shape's values known; cancelled if it goes."""
        consumer = self._engine.collector.consumer_of(inner)
        if consumer is None:
            gone: Future[None] = Future()
            gone.cancel()
            return gone
        return self.layers.require(consumer, columns)

    def resume(
        self, shape: Shape, inner_of: Callable[[ShapeDefinition], Shape | None], kept: HeldState
    ) -> None:
        """Go on with a shape that was there before a restart. An error if it cannot be."""
        collector = self._engine.collector
        assert shape.definition.where is not None
        for atom in shape.definition.where.subqueries:
            inner = inner_of(atom.definition)
            consumer = None if inner is None else collector.consumer_of(inner)
            if consumer is None:
                raise LookupError("an inner shape is not there")
            self.layers.restore_values(consumer, atom.columns, int(collector.delivery.position))
        own = collector.consumer_of(shape)
        assert own is not None
        self.layers.add(own, kept)

    # A comparison

    def cut(self, watch: str, point: SnapshotPoint) -> Cut | NoCut:
        found = self.layers.cut(watch, point, int(self._engine.collector.delivery.position))
        if found == "behind":
            self.on_wait(Lsn(point.lsn))
        return found

    # Turns

    def advance(self) -> None:
        """At the end of a turn: go on with what waited for the changes that came."""
        collector = self._engine.collector
        delivery = collector.delivery
        if self.layers.is_open or not self.layers.is_used:
            return
        self._retry()
        position = int(delivery.position)
        self.layers.advance(position)
        delivery.settle()
        while due := self.layers.due(position):
            for outer in due:
                self._engine.commit_now()
                with self._store.together():
                    delivery.lsn.transaction(self.layers.splice(outer))
                    delivery.settle()
                    self._engine.commit_now()
            collector.end_broken()
            self.layers.advance(position)
            delivery.settle()
        collector.end_broken()
        wanted = self.layers.wanted()
        if wanted > position:
            self.on_wait(Lsn(wanted))

    def _retry(self) -> None:
        now = time.monotonic()
        for at, outer, flight in self._failed:
            if at <= now:
                self.layers.failed(outer, flight)
        self._failed = [each for each in self._failed if each[0] > now]

    # LayersHost

    @property
    def last_tx(self) -> int:
        return self._engine.collector.delivery.last_tx

    def deliver(self, consumer: Consumer, items: LogItems) -> None:
        self._engine.collector.deliver(consumer, items)

    def deliver_all(self, chosen: list[Chosen]) -> None:
        self._engine.collector.deliver_all(chosen)

    def give_up(self, consumer: Consumer, reason: str, error: Exception | None = None) -> None:
        self._engine.collector.give_up(consumer, reason, error)

    def not_usable(self, shape: Shape) -> None:
        self._engine.not_usable(shape)

    def settled(self, shape: Shape) -> None:
        self._engine.settled(shape)

    def note(self, consumer: Consumer) -> None:
        self._engine.collector.note(consumer)

    def read(
        self, job: Callable[[], _T], then: Callable[[_T], None], failed: Callable[[Exception], None]
    ) -> None:
        def done(outcome: Future[_T]) -> None:
            if outcome.cancelled():
                return
            error = outcome.exception()
            if error is None:
                found = outcome.result()
                self._engine.submit(lambda: then(found))
            elif isinstance(error, Exception):
                problem = error
                self._engine.submit(lambda: failed(problem))

        self._readers.submit(job).add_done_callback(done)

    def ask(self, outer: OuterShape, flight: Flight) -> None:
        assert self.moves is not None, "given before there are shapes"
        definition = outer.shape.definition
        answer: list[MovedRows] = []
        held = 0

        def point(found: SnapshotPoint) -> None:
            self._engine.submit(lambda: self._point(outer, flight, found))

        def rows(moved: MovedRows) -> None:
            nonlocal held
            held += len(moved.lines.content) + sum(each.nbytes for each in moved.columns.values())
            if held > BYTES_MAX or outer.shape.state == "gone":
                raise schema_changed(definition.table)
            answer.append(moved)

        def done(outcome: Future[int]) -> None:
            if not outcome.cancelled():
                error = outcome.exception()
                self._engine.submit(lambda: self._answered(outer, flight, answer, error))

        # An inner shape names its columns, and so does one of a client's that is also somebody's inner shape;
        # whoever has it as a subquery selects some of them.
        selected = definition.columns if definition.selected_explicitly else ()
        columns = sorted({*outer.columns, *selected})
        asked = condition_of(definition, outer.form, flight.values, flight.whole)
        self.moves.read(definition, asked, columns, point, rows).add_done_callback(done)

    def _point(self, outer: OuterShape, flight: Flight, point: SnapshotPoint) -> None:
        if not self.layers.has_flight(outer, flight):
            return
        table = outer.shape.definition.table
        if self._engine.collector.has_missed(table, point, flight.since_tx):
            self._failed.append((time.monotonic() + _RETRY_S, outer, flight))
        else:
            flight.point = point

    def _answered(
        self, outer: OuterShape, flight: Flight, answer: list[MovedRows], error: BaseException | None
    ) -> None:
        if not self.layers.has_flight(outer, flight):
            return
        if error is None:
            flight.answer, flight.is_complete = answer, True
        elif isinstance(error, SnapshotProblem) and error.status != 409:
            self._failed.append((time.monotonic() + _RETRY_S, outer, flight))
        else:
            if not isinstance(error, SnapshotProblem):
                logs.log_unexpected("the live lane", error)
            self._engine.collector.give_up(outer.consumer, "rows cannot be read")
