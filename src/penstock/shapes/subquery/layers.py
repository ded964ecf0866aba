"""`DependencyLayers`: shapes with subqueries, in the order in which they depend on one another.

A fragment's changes are dealt with transaction by transaction where inner sets change, and in one go where
they do not. In each transaction every shape's own changes come first, judged by what was before it. Then the
sets change: those of inner shapes without subqueries, then, layer by layer, those of shapes that have some.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from penstock.capture.transactions import TransactionFragment
from penstock.core.offset import LogOffset
from penstock.core.stream import StreamId
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.engine.consumer import Consumer, RoutedRows, WaitingChanges
from penstock.shapes.rendering.renderer import Chosen
from penstock.shapes.shape import Shape, SnapshotPoint
from penstock.shapes.subquery.held_state import HeldState
from penstock.shapes.subquery.host import LayersHost
from penstock.shapes.subquery.item import Cursor, Item, ids
from penstock.shapes.subquery.materializer import (
    Materializer,
    RowSet,
    TooManyRowsError,
    below,
    read_values,
)
from penstock.shapes.subquery.members import Members
from penstock.shapes.subquery.moves import Flight, TooMuchError, begin_flight, splice, trigger_at
from penstock.shapes.subquery.outer import Flip, OuterShape, log_items
from penstock.shapes.subquery.starting import Starting
from penstock.shapes.subquery.texts import TextsOf
from penstock.shapes.subquery.values import Counts
from penstock.shapes.subquery.watch import Cut, NoCut, Watches

_WAITING_BYTES_MAX = 256 << 20
_SET_BYTES_MAX = 1 << 30
_TOGETHER_BYTES_MAX = 8 << 20  # of items of several shapes that are put together at once


class DependencyLayers:
    """Belongs to the engine's thread."""

    def __init__(self, host: LayersHost, stack_id: str, transactions_max: int) -> None:
        self._host = host
        self._stack_id = stack_id
        self._transactions_max = transactions_max
        self._members = Members(host.note)
        self._outers = self._members.outers
        self._starting: dict[int, Starting] = {}
        self._waiting = WaitingChanges(_WAITING_BYTES_MAX)  # rows of those
        self._flights: dict[int, Flight] = {}
        self._holding: set[int] = set()  # with values that are held and not asked for
        self.is_open = False  # more is to come of what was handed in
        self._item = Item()
        self._dirty: set[int] = set()
        self._texts = TextsOf()
        self._watches = Watches(self._outers)

    @property
    def is_used(self) -> bool:
        return self._members.has_any

    # Shapes

    def require(self, consumer: Consumer, columns: tuple[str, ...]) -> Future[None]:
        """Have an inner shape's values known; done when they are, cancelled if it goes."""
        return self._members.require(consumer, columns).loaded

    def restore_values(self, consumer: Consumer, columns: tuple[str, ...], position: int) -> None:
        """The same for one that was there before a restart, at once."""
        made = self._members.require(consumer, columns)
        if made.state == "waiting":
            storage = consumer.shape.storage
            up_to = min(storage.last_seen_txn_offset, below(position))
            self._members.unread.remove(made)
            made.become_ready(read_values(storage, consumer.shape.definition, columns, made.form, up_to))

    def are_known(self, definition: ShapeDefinition) -> bool:
        """Whether the values of all its subqueries are."""
        return self._members.are_ready(definition)

    def add(self, consumer: Consumer, kept: HeldState | None = None) -> None:
        """A shape with subqueries, whose values are known. With `kept` it was there before a restart."""
        outer = self._members.add(consumer, self.salt(consumer.shape))
        if kept is None:
            self._starting[outer.slot] = Starting(outer.streams, self._host.last_tx)
        else:
            outer.held, outer.trigger, outer.nulls = kept.held, kept.trigger, kept.nulls
            outer.note_held(self._host.last_tx)
            self._note_held(outer)

    def _note_held(self, outer: OuterShape) -> None:
        if outer.has_held and outer.slot not in self._flights:
            self._holding.add(outer.slot)
        else:
            self._holding.discard(outer.slot)

    def salt(self, shape: Shape) -> str:
        """What hashes of its values are made with."""
        return self._stack_id + shape.handle

    def remove(self, consumer: Consumer) -> None:
        slot = consumer.shape.slot
        starting = self._starting.pop(slot, None)
        if starting is not None:
            self._waiting.release(starting.rows)
        self._flights.pop(slot, None)
        self._dirty.discard(slot)
        self._holding.discard(slot)
        self._item.rows.pop(slot, None)
        self._watches.forget(slot)
        self._members.remove(slot)

    # Changes

    def known(self, consumer: Consumer, point: SnapshotPoint, waiting: list[RoutedRows]) -> None:
        """What a new shape's snapshot shows, and what was kept for it that is not in there."""
        starting = self._starting[consumer.shape.slot]
        starting.point = point
        starting.rows = waiting + starting.rows
        self._hold(consumer, waiting)

    def _hold(self, consumer: Consumer, rows: Iterable[RoutedRows]) -> None:
        """They are among the rows of one that is starting."""
        had_room = [self._waiting.hold(each) for each in rows]
        if not all(had_room):
            self._host.give_up(consumer, "too much to keep")

    def process(self, fragment: TransactionFragment, rows: Mapping[int, list[RoutedRows]]) -> None:
        """`rows`: by slot, the changes of inner shapes, and of the tables of shapes with subqueries."""
        self.is_open = not fragment.is_last
        for starting in self._starting.values():
            for changes in fragment.changes:
                starting.note(changes)
        self._watches.note(fragment.changes)
        if not self.is_used:
            return
        self._item.note(fragment.changes)
        for slot, found in rows.items():
            if slot in self._outers:
                self._item.hold(slot, found)
            else:
                for made in self._members.of_slot(slot):
                    self._item.count(made, found)
        self._bound(self._item)
        if fragment.is_last:
            item, self._item = self._item, Item()
            self._run(item)

    def _bound(self, item: Item) -> None:
        """Those of which more comes at once than is kept cannot go on."""
        if item.bytes > _WAITING_BYTES_MAX:
            for slot in item.rows:
                self._give_up(self._outers[slot], "too much to keep")
            item.rows, item.bytes = {}, 0
        if item.counts_bytes > _WAITING_BYTES_MAX:
            for made in {made for made, *_ in item.counts}:
                if made in self._members.of_slot(made.shape.slot):
                    self._host.give_up(self._members.consumers[made.shape.slot], "too much to keep")
            item.counts, item.counts_bytes = [], 0

    def break_off(self, position: int) -> None:
        """What was not finished comes again: to those that wait, too."""
        self._item, self.is_open = Item(), False
        for starting in self._starting.values():
            self._waiting.release(starting.rows)
            over = (each.where(each.tx < position) for each in starting.rows)
            starting.rows = [each for each in over if len(each)]
            for each in starting.rows:
                self._waiting.hold(each)

    def _run(self, item: Item) -> None:
        sets, xids = item.sets_changed()
        waiting: dict[int, Cursor] = {}
        cuts = set(sets)
        for slot, found in item.rows.items():
            outer = self._outers[slot]
            if slot in self._starting:
                self._starting[slot].rows += found
                self._hold(outer.consumer, found)
                continue
            if slot in self._flights:
                self._remember(outer, found)
            waiting[slot] = Cursor(found)
            if outer.sinks:
                for routed in found:
                    xids.update(ids(routed))
                    cuts.update(ids(routed))
        for tx in sorted(cuts):
            concerned = []
            for slot, cursor in waiting.items():
                if cursor.next_tx <= tx:
                    outer = self._outers[slot]
                    self._change(outer, cursor.up_to(tx))
                    concerned.append(outer)
            self._turn(tx, xids[tx], sets.get(tx, {}).items(), concerned, partial(item.last_op, tx))
        chosen: list[Chosen] = []
        size = 0
        for slot, cursor in waiting.items():
            outer = self._outers[slot]
            self._change(outer, cursor.rest())
            size += outer.chosen_bytes
            chosen += outer.take_chosen()
            if size > _TOGETHER_BYTES_MAX:
                self._host.deliver_all(chosen)
                chosen, size = [], 0
        if chosen:
            self._host.deliver_all(chosen)
        self._texts = TextsOf()

    def _remember(self, outer: OuterShape, found: Iterable[RoutedRows]) -> None:
        try:
            for routed in found:
                self._flights[outer.slot].remember(routed)
        except TooMuchError:
            self._give_up(outer, "too much to keep")

    def _change(self, outer: OuterShape, found: Iterable[RoutedRows]) -> None:
        try:
            for routed in found:
                outer.change(routed, self._texts(routed.changes))
        except Exception as error:
            self._give_up(outer, "condition failed", error)

    @contextlib.contextmanager
    def _alone(self, outer: OuterShape) -> Iterator[None]:
        """What goes wrong ends this shape, and no other."""
        try:
            yield
        except Exception as error:
            self._give_up(outer, "error", error)

    def _turn(
        self,
        tx: int,
        xid: int,
        changed: Iterable[tuple[Materializer, Counts]],
        concerned: Iterable[OuterShape],
        last_op: Callable[[Collection[StreamId]], int],
    ) -> None:
        """Sets change at the end of a transaction, and with them what depends on them, layer by layer."""
        queue = {outer.slot: outer for outer in concerned if outer.sinks}
        order = [(outer.depth, slot) for slot, outer in queue.items()]
        heapq.heapify(order)

        def apply(made: Materializer, counts: Counts) -> None:
            flips = made.values.flips(counts)
            for outer, subquery in made.dependents if flips else ():
                if outer.slot not in queue:
                    queue[outer.slot] = outer
                    heapq.heappush(order, (outer.depth, outer.slot))
                outer.note_before(subquery, flips)
            made.values.apply(counts)
            self._require_room(made)

        for made, counts in changed:
            apply(made, counts)
        while order:
            _, slot = heapq.heappop(order)
            outer = queue[slot]
            flips = outer.take_flips(tx, xid)
            if slot in self._starting:
                self._starting[slot].keep(flips)
                self._starting[slot].has_turned |= outer.has_turned
                continue
            with self._alone(outer):
                self._tell(outer, flips, trigger_at(tx, last_op(outer.streams)), tx)
            for sink in outer.sinks:
                if counts := sink.take():
                    apply(sink, counts)

    def _require_room(self, made: Materializer) -> None:
        if made.values.bytes > _SET_BYTES_MAX:
            self._host.give_up(self._members.consumers[made.shape.slot], "too many values")

    def _tell(self, outer: OuterShape, flips: Sequence[Flip], trigger: LogOffset, tx: int) -> None:
        if not flips and not outer.has_turned:
            return
        if outer.has_turned:
            outer.has_turned, outer.trigger = False, max(outer.trigger, trigger)
        patterns = outer.turn(flips, trigger)
        self._watches.held(outer, flips)
        outer.note_held(tx)
        self._note_held(outer)
        self._dirty.add(outer.slot)
        if patterns:
            self._flush(outer, event_follows=True)
            events = outer.events("move-out", patterns, {flip.xid for flip in flips})
            self._host.deliver(outer.consumer, log_items(outer.next_offset(trigger), events))

    def _flush(self, outer: OuterShape, *, event_follows: bool = False) -> None:
        items = outer.flush(event_follows=event_follows)
        if items is not None:
            self._host.deliver(outer.consumer, items)

    def _give_up(self, outer: OuterShape, reason: str, error: Exception | None = None) -> None:
        self._host.give_up(outer.consumer, reason, error)

    # What waits

    def advance(self, position: int) -> None:
        """Everything up to `position` was handed out, in whole: go on with what waited for that."""
        for slot, starting in list(self._starting.items()):
            if self._starting.get(slot) is not starting:
                continue  # it went with another one
            if starting.is_too_much:
                self._give_up(self._outers[slot], "too much to keep")
            elif starting.is_passed(position):
                with self._alone(self._outers[slot]):
                    self._settle(self._outers[slot], starting)
        for made in [each for each in self._members.unread if self._can_be_read(each)]:
            self._members.unread.remove(made)
            if made.state == "waiting":
                self._begin_reading(made)
        holding, self._holding = self._holding, set()
        for slot in holding:
            outer = self._outers[slot]
            with self._alone(outer):
                flight = self._flights[slot] = begin_flight(outer, self._host.last_tx, self._transactions_max)
                self._host.ask(outer, flight)

    def wanted(self) -> int:
        """The position that is waited for; 0 if none is."""
        points = [each.point for each in self._starting.values()]
        points += [each.point for each in self._flights.values()]
        return max((point.lsn for point in points if point is not None), default=0)

    def _can_be_read(self, made: Materializer) -> bool:
        consumer, slot = self._members.consumers[made.shape.slot], made.shape.slot
        is_exact = slot not in self._starting if slot in self._outers else consumer.filter is None
        return is_exact and consumer.state == "streaming" and made.shape.storage.snapshot_state == "complete"

    def _begin_reading(self, made: Materializer) -> None:
        up_to, shape = made.begin_reading(), made.shape

        def done(found: Counts | RowSet) -> None:
            if made in self._members.of_slot(shape.slot):
                try:
                    made.become_ready(found)
                except TooManyRowsError as error:
                    failed(error)
                self._require_room(made)

        def failed(error: Exception) -> None:
            consumer = self._members.consumers.get(shape.slot)
            if consumer is not None and consumer.shape is shape:
                if isinstance(error, TooManyRowsError):
                    self._host.give_up(consumer, "too many values")
                else:
                    self._host.give_up(consumer, "error", error)

        self._host.read(
            lambda: read_values(shape.storage, shape.definition, made.columns, made.form, up_to), done, failed
        )

    def _settle(self, outer: OuterShape, starting: Starting) -> None:
        """Its snapshot shows a first part of what was handed out: what follows that is news."""
        del self._starting[outer.slot]
        self._waiting.release(starting.rows)
        cut = starting.cut()
        if cut is None or starting.has_turned or not self._were_quiet(outer, cut):
            self._host.not_usable(outer.shape)
            return
        flips = [flip for flip in starting.flips if flip.tx > cut]
        outer.overrides = {(flip.subquery, flip.value): flip.before for flip in reversed(flips)}
        cursor, own = Cursor(starting.rows), Item()
        own.note([each.changes for each in starting.rows])
        by_tx: dict[int, list[Flip]] = {}
        for flip in flips:
            by_tx.setdefault(flip.tx, []).append(flip)
        for tx, here in sorted(by_tx.items()):
            self._change(outer, cursor.up_to(tx))
            outer.overrides.update({(flip.subquery, flip.value): flip.after for flip in here})
            self._tell(outer, here, trigger_at(tx, own.last_op(tx, outer.streams)), tx)
        self._change(outer, cursor.rest())
        outer.overrides, self._texts = {}, TextsOf()
        self._flush(outer)
        self._dirty.add(outer.slot)
        self._host.settled(outer.shape)

    def _were_quiet(self, outer: OuterShape, cut: int) -> bool:
        """Whether the inner shapes were exact there: nothing was held."""
        inner = (self._outers.get(made.shape.slot) for made in outer.materializers)
        return all(each is None or (each.was_quiet_at(cut) and self._were_quiet(each, cut)) for each in inner)

    # Rows that come in

    def due(self, position: int) -> list[OuterShape]:
        """Those whose rows are there and can be spliced in."""
        return [
            self._outers[slot]
            for slot, flight in self._flights.items()
            if flight.is_complete
            and flight.point is not None
            and flight.point.lsn <= position
            and self._splice_tx(self._outers[slot]) + 1 < position
        ]

    def _splice_tx(self, outer: OuterShape) -> int:
        """Where it is told: behind what it or a shape that depends on it has told, and, with a place left
        between, which is where those resume who were sent that as events (correctness 45)."""
        concerned, last = [outer], int(outer.trigger.tx)
        while concerned:
            each = concerned.pop()
            last = max(last, int(each.shape.storage.last_seen_offset.tx))
            concerned += [other for sink in each.sinks for other, _ in sink.dependents]
        return last + 2

    def splice(self, outer: OuterShape) -> int:
        """Right after a commit, and in one with what is told of it (`held`). As which transaction; 0: as
        none, nothing is left to be told."""
        flight, tx = self._flights.pop(outer.slot), self._splice_tx(outer)
        try:
            items = splice(outer, flight, LogOffset(tx, 0))
        except Exception as error:
            self._give_up(outer, "error", error)
            return 0
        # Who depends on it is told as of `tx`, which may lie behind the last transaction: up to there a
        # snapshot of the source and this shape need not agree.
        outer.note_held(max(tx, self._host.last_tx))
        self._watches.spliced(outer, tx, max(tx, self._host.last_tx))
        self._note_held(outer)
        self._dirty.add(outer.slot)
        if items is None:
            return 0
        self._host.deliver(outer.consumer, items)
        changed = [(sink, counts) for sink in outer.sinks if (counts := sink.take())]
        if changed:
            self._turn(tx, 0, changed, (), lambda _streams: 0)
        return tx

    def failed(self, outer: OuterShape, flight: Flight) -> None:
        """The rows did not come: they are asked for again with the next `advance`."""
        if self._flights.get(outer.slot) is flight:
            del self._flights[outer.slot]
            self._note_held(outer)

    def has_flight(self, outer: OuterShape, flight: Flight) -> bool:
        return self._flights.get(outer.slot) is flight

    # What a comparison asks

    def watch(self, shape: Shape, after: str | None) -> str | None:
        """Have noted what happens to it; None while it is not known what its snapshot lacks."""
        outer = None if shape.slot in self._starting else self._outers.get(shape.slot)
        if outer is None or outer.shape is not shape:
            return None
        return self._watches.begin(outer, self._host.last_tx, after)

    def cut(self, watch: str, point: SnapshotPoint, position: int) -> Cut | NoCut:
        """How the shape can be held against a snapshot, once that was handed out; the watch ends."""
        if self.is_open or position < point.lsn:
            return "behind"
        return self._watches.end(watch, point, position)

    # What is kept over a crash

    def held(self, shape: Shape) -> HeldState:
        """What to keep with a shape in the next commit."""
        outer = self._outers[shape.slot]
        return HeldState(outer.trigger, outer.held, outer.nulls)

    def note_dirty(self, shape: Shape) -> None:
        """It is to be kept with the next commit."""
        self._dirty.add(shape.slot)

    def take_dirty(self) -> list[Shape]:
        """Those of which something else is held than was kept."""
        dirty = [self._outers[slot].shape for slot in self._dirty if slot not in self._starting]
        self._dirty = {slot for slot in self._dirty if slot in self._starting}
        return dirty
