"""`ShapeLogCollector`: one ordered pass over the changes of all tables, from the tail to the shapes' logs.

Of each fragment, in which rows of partitions are rows of their root, and of the partitions themselves as well
(`Partitions`, in `capture.transactions`): the tables that have shapes → `EventRouter` (which shapes, by old
and new row) → what a snapshot shows already is taken out → one rendering for all shapes that look alike
(`ConsumerRegistry`) → each shape's items, in one buffer → storage. Shapes whose condition has a subquery come
after the shapes they depend on (`DependencyLayers`). Readers see nothing of a transaction before all of it is
there (`delivery`).

The cost is that of the batch, and a few microseconds for each shape that is touched; shapes that are not
touched cost nothing.

One shape's trouble is its own. What a change says of a table (a truncate, an old row that did not come,
columns that are no longer what the shape knows) ends the shapes for which it is news. An error that routing
raises ends the shapes of that table, one of rendering those that look alike, one of storage that shape; the
pass goes on. What such a shape was to get of the transaction is not appended, so nobody reads half of it
(`BrokenShapes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock import failpoints
from penstock.capture.transactions import ChangeRows, TransactionFragment
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.shapes.engine.broken_shapes import BrokenShapes
from penstock.shapes.engine.consumer import Consumer, Doubt, RecentTransactions, RoutedRows, WaitingChanges
from penstock.shapes.engine.consumer_registry import ConsumerRegistry
from penstock.shapes.engine.delivery import Delivery
from penstock.shapes.engine.table_changes import truncates, without_old_row
from penstock.shapes.engine.table_versions import TableVersions
from penstock.shapes.rendering.renderer import Chosen, Renderer, View, distinct
from penstock.shapes.routing.router import EventRouter
from penstock.shapes.shape import Shape, SnapshotPoint
from penstock.shapes.source.sql import tables_read
from penstock.shapes.storage import LogItems, ShapeItems, ShapeStore
from penstock.shapes.subquery.normal_form import NormalForm

_BUFFERED_BYTES_MAX = 256 << 20
_PAIRS_MAX = 4 << 20  # of a row and a shape that are routed at once
_PORTION_BYTES = 2 << 20  # of changes that are rendered at once
_CHOSEN_BYTES_MAX = 8 << 20  # of items that are put together at once
_ITEM_BYTES = 64  # of an item, beside its JSON
Candidates = dict[int, list[RoutedRows]]


class DependencyLayers(Protocol):
    """Shapes whose condition has subqueries, in the order in which they depend on one another."""

    def add(self, consumer: Consumer) -> None: ...

    def remove(self, consumer: Consumer) -> None: ...

    def known(self, consumer: Consumer, point: SnapshotPoint, waiting: list[RoutedRows]) -> None:
        """What a new shape's snapshot shows, and what was kept for it that is not in there."""

    def process(self, fragment: TransactionFragment, rows: Mapping[int, list[RoutedRows]]) -> None:
        """`rows`: by slot, the changes that inner shapes got, and those that shapes with subqueries may get,
        by the rest of their condition. Appends with `deliver`."""

    def break_off(self, position: int) -> None:
        """What was not finished, from `position` on, comes again."""


class ShapeLogCollector:
    """Belongs to the engine's thread. `on_broken` is told of shapes that must go, after each fragment."""

    def __init__(
        self,
        store: ShapeStore,
        position: Lsn,
        on_broken: Callable[[Shape, str], None],
        on_new_version: Callable[[StreamId], None] = lambda _stream: None,
        buffered_bytes_max: int = _BUFFERED_BYTES_MAX,
    ) -> None:
        self._on_broken = on_broken
        self.layers: DependencyLayers | None = None
        self.changes_routed = 0
        self._router = EventRouter()
        self._slots = ConsumerRegistry()
        self._streams: dict[StreamId, dict[int, Consumer]] = {}
        self._filtered: dict[int, Consumer] = {}
        self._recent = RecentTransactions()
        self._waiting = WaitingChanges(buffered_bytes_max)
        self._candidates: Candidates = {}
        self.delivery = Delivery(store, self._slots, position)
        self._broken = BrokenShapes(self._slots, self.delivery)
        self._versions = TableVersions(self._slots, self._broken, on_new_version)

    # Shapes

    def add(self, shape: Shape) -> Consumer:
        """Have changes kept for a shape, until `known` says what its snapshot shows."""
        consumer = Consumer(shape, self.delivery.last_tx)
        consumer.begin_buffering()
        self._register(consumer)
        return consumer

    def resume(self, shape: Shape, point: SnapshotPoint | None) -> None:
        """Go on with a shape that was there before a restart; `point` as `make_ready` was told."""
        consumer = Consumer(shape, self.delivery.last_tx)
        passed = point is None or point.lsn <= self.delivery.position
        consumer.begin_streaming(None if passed else point)
        self._register(consumer)

    def _register(self, consumer: Consumer) -> None:
        shape = consumer.shape
        table, where = shape.definition.table, shape.definition.where
        condition = None if where is None else where.condition
        if condition is not None and consumer.needs_layers:
            plain = NormalForm.of(condition.expression).without_subqueries
            condition = None if plain is None else replace(condition, expression=plain, subqueries=())
        self._router.add(shape.slot, table, condition)
        self._slots.add(consumer)
        self._streams.setdefault(table, {})[shape.slot] = consumer
        self._recent.begin(table)
        self._versions.shape_added(shape.definition)
        if consumer.filter is not None:
            self._filtered[shape.slot] = consumer
        if consumer.needs_layers and consumer.state == "buffering":
            assert self.layers is not None
            self.layers.add(consumer)

    def remove(self, shape: Shape) -> None:
        """Nothing is appended to it any more, and nobody waits for it."""
        consumer = self._slots.consumers.get(shape.slot)
        if consumer is None or consumer.shape is not shape:
            return
        consumer.state = "terminating"
        self._waiting.release(consumer.buffer or ())
        self._router.remove(shape.slot)
        self._slots.remove(consumer)
        self._filtered.pop(shape.slot, None)
        self._broken.forget(shape)
        self.delivery.forget(shape)
        table = shape.definition.table
        del self._streams[table][shape.slot]
        if not self._streams[table]:
            del self._streams[table]
            self._versions.forget(table)
        if self.layers is not None:
            self.layers.remove(consumer)

    def consumer_of(self, shape: Shape) -> Consumer | None:
        consumer = self._slots.consumers.get(shape.slot)
        return consumer if consumer is not None and consumer.shape is shape else None

    def note(self, consumer: Consumer) -> None:
        """What it is may have changed."""
        if self._slots.consumers.get(consumer.shape.slot) is consumer:
            self._slots.note(consumer)

    def give_up(self, consumer: Consumer, reason: str, error: Exception | None = None) -> None:
        """Have a shape end that cannot go on."""
        self._broken.add([consumer], reason, error)

    def has_missed(self, table: StreamId, point: SnapshotPoint, up_to_tx: int) -> bool:
        """Whether a snapshot does not show one of the transactions that were handed out up to there."""
        return self._recent.missed(table, point, up_to_tx)

    def shapes_of(self, table: StreamId) -> list[Shape]:
        return [consumer.shape for consumer in self._streams.get(table, {}).values()]

    def shape_at(self, slot: int) -> Shape | None:
        consumer = self._slots.consumers.get(slot)
        return None if consumer is None else consumer.shape

    def refresh(self, shape: Shape) -> None:
        """Its definition has columns that came since. Rows of versions that it could read lack them still."""
        consumer = self._slots.consumers.get(shape.slot)
        if consumer is not None and consumer.shape is shape:
            self._slots.look_as(consumer, View.of(shape.definition))

    def shows_enough(self, shape: Shape, point: SnapshotPoint) -> bool:
        """Whether its snapshot shows every transaction that was handed out before the shape was added.

        In any thread: what it looks at was there when the shape was, and is replaced, never changed.
        """
        consumer = self._slots.consumers.get(shape.slot)
        if consumer is None or consumer.shape is not shape:
            return True
        tables = {card.stream for card in tables_read(shape.definition)}
        return not any(self.has_missed(table, point, consumer.since_tx) for table in tables)

    def known(self, shape: Shape, point: SnapshotPoint) -> bool:
        """Its snapshot shows that; what waited and is not in it is appended.

        False if the snapshot cannot be used: it does not show enough.
        """
        consumer = self._slots.consumers.get(shape.slot)
        if consumer is None or consumer.shape is not shape or consumer.state != "buffering":
            return True
        if not self.shows_enough(shape, point):
            return False
        self._waiting.release(consumer.buffer or ())
        waiting, doubts = consumer.begin_streaming(point)
        for doubt in doubts:
            self._broken.doubt(consumer, doubt)
        if shape not in self._broken:
            try:
                if consumer.needs_layers:
                    assert self.layers is not None
                    self.layers.known(consumer, point, waiting)
                else:
                    self._append_waiting(consumer, waiting)
            except Exception as error:
                self._broken.add([consumer], "error", error)
        if consumer.filter is not None and consumer.filter.is_passed(self.delivery.position):
            consumer.filter = None
        else:
            self._filtered[shape.slot] = consumer
        self._slots.note(consumer)
        self.end_broken()
        return True

    def _append_waiting(self, consumer: Consumer, waiting: list[RoutedRows]) -> None:
        """Transactions that were handed over, whole: once the shape outlives a crash, these do not come
        again. Then what there is of those of which more is to come."""
        position = self.delivery.position
        over = [part for each in waiting if (part := each.where(each.tx < position))]
        rest = [part for each in waiting if (part := each.where(each.tx >= position))]
        if over:
            self.delivery.append_late(self._broken.without(self._render_for(consumer, over)))
        if rest:
            self.delivery.append(self._broken.without(self._render_for(consumer, rest)), is_last=False)

    def _render_for(self, consumer: Consumer, waiting: list[RoutedRows]) -> list[Chosen]:
        slot = consumer.shape.slot
        return [
            part
            for each in waiting
            for part in self._render(each.changes, np.full(len(each), slot, np.int32), each)
        ]

    # Changes

    def begin_at(self, position: Lsn) -> None:
        """There is no shape, and nothing before `position` is to come; it may be another source's."""
        self.delivery.begin_at(position)
        self._recent = RecentTransactions()

    def break_off(self) -> None:
        """What was not finished comes again, from its first fragment: to those that keep it, too."""
        self.delivery.break_off()
        position = self.delivery.position
        if self.layers is not None:
            self.layers.break_off(int(position))
        for consumer in self._slots.consumers.values():
            if consumer.buffer:
                self._waiting.release(consumer.buffer)
                over = (each.where(each.tx < position) for each in consumer.buffer)
                consumer.buffer = [each for each in over if each]
                for each in consumer.buffer:
                    self._waiting.hold(each)

    def process(self, fragment: TransactionFragment) -> None:
        """Hand out one fragment. What was handed out before is not again."""
        if fragment.end <= self.delivery.position:
            return
        if fragment.partitions:
            fragment = self._with_partitions(fragment)
        self._candidates = {}
        chosen: list[Chosen] = []
        appended: list[ShapeItems] = []
        for changes in fragment.changes:
            for portion in self._portions(changes):
                chosen += self._concerning(portion)
                if sum(map(_bytes_of, chosen)) > _CHOSEN_BYTES_MAX:
                    appended.append(self.delivery.append(self._broken.without(chosen), is_last=False))
                    chosen = []
        appended.append(self.delivery.append(self._broken.without(chosen), is_last=fragment.is_last))
        if self.layers is not None:
            self.layers.process(fragment, self._candidates)
        self.delivery.finish(fragment, appended[-1])
        if fragment.is_last:
            self._pass(fragment.end)
        self.end_broken()

    def _with_partitions(self, fragment: TransactionFragment) -> TransactionFragment:
        """Changes of partitions that have or had shapes of their own are theirs as well."""
        own = [each for each in fragment.partitions if self._recent.knows(each.stream)]
        return replace(fragment, changes=[*fragment.changes, *own], partitions=[])

    def deliver(self, consumer: Consumer, items: LogItems) -> None:
        """Append items of a shape with subqueries: for `DependencyLayers`."""
        try:
            self.delivery.append_to(consumer, items)
        except Exception as error:
            self._broken.add([consumer], "error", error)

    def deliver_all(self, chosen: list[Chosen]) -> None:
        """The same for many, of each whole transactions that were rendered."""
        try:
            self.delivery.append_whole(chosen)
        except Exception as error:
            slots = np.unique(np.concatenate([part.slots for part in chosen])).tolist()
            self._broken.add([self._slots.consumers[slot] for slot in slots], "error", error)

    def _portions(self, changes: ChangeRows) -> Iterator[ChangeRows]:
        """Parts that are small enough even if each row concerns each shape of the table."""
        pairs_max = _PAIRS_MAX // max(1, len(self._streams.get(changes.stream, ())))
        size = changes.rows.get_total_buffer_size()
        if size > _PORTION_BYTES:  # it may be a slice of much more
            size = changes.rows.nbytes
        row_bytes = size // max(1, len(changes))
        rows_max = max(1, min(pairs_max, _PORTION_BYTES // max(1, row_bytes)))
        for start in range(0, len(changes), rows_max):
            yield (
                changes
                if len(changes) <= rows_max
                else changes.slice(start, min(start + rows_max, len(changes)))
            )

    def _concerning(self, changes: ChangeRows) -> list[Chosen]:
        self._recent.note(changes)
        consumers = self._streams.get(changes.stream)
        if consumers is None:
            return []
        try:
            self._check(changes, consumers)
            routed = self._router.route(changes)
            self._broken.add(
                [consumers[slot] for slot in routed.failed if slot in consumers], "condition failed"
            )
            self.changes_routed += len(routed.slot)
            slots, found = routed.slot, RoutedRows(changes, routed.row, routed.action)
            if self._slots.is_special[slots].any():
                kept = self._take_special(slots, found)
                slots, found = slots[kept], found.where(kept)
            return self._render(changes, slots, found)
        except Exception as error:
            self._broken.add(consumers.values(), "error", error)
            return []

    def _take_special(self, slots: npt.NDArray[np.int32], found: RoutedRows) -> npt.NDArray[np.bool_]:
        """Deal with the shapes that are not like others; which rows are left to be rendered for all."""
        kept = np.ones(len(slots), np.bool_)
        for slot in np.unique(slots[self._slots.is_special[slots]]).tolist():
            here = slice(*np.searchsorted(slots, (slot, slot + 1)))
            own = RoutedRows(found.changes, found.rows[here], found.actions[here])
            consumer = self._slots.consumers[slot]
            if consumer.buffer is not None:
                consumer.buffer.append(own)
                if not self._waiting.hold(own):
                    self._broken.add([consumer], "too much to keep")
                kept[here] = False
                continue
            if consumer.filter is not None:
                kept[here] = consumer.filter.keeps(own.changes.tx[own.rows], own.changes.xid[own.rows])
                own = own.where(kept[here])
            if len(own) and (consumer.needs_layers or consumer.feeds_layers):
                self._candidates.setdefault(slot, []).append(own)
            if consumer.needs_layers:
                kept[here] = False
        return kept

    def _render(self, changes: ChangeRows, slots: npt.NDArray[np.int32], found: RoutedRows) -> list[Chosen]:
        if not len(slots):
            return []
        renderer = Renderer(changes)
        chosen = []
        for view, those in self._slots.views(slots):
            try:
                failpoints.reach("shapes.rendering")
                rows, actions, positions = distinct(found.rows[those], found.actions[those])
                chosen.append(renderer.render(view, rows, actions).choose(slots[those], positions))
            except Exception as error:
                alike = np.unique(slots[those]).tolist()
                self._broken.add([self._slots.consumers[slot] for slot in alike], "error", error)
        return chosen

    def _pass(self, end: Lsn) -> None:
        """Nothing below `end` is to come: filters that end there are not needed any more."""
        for slot, consumer in list(self._filtered.items()):
            if consumer.filter is None or consumer.filter.is_passed(end):
                del self._filtered[slot]
                consumer.filter = None
                self._slots.note(consumer)

    # Shapes that cannot go on

    def _check(self, changes: ChangeRows, consumers: Mapping[int, Consumer]) -> None:
        for rows, reason in (truncates(changes), "truncate"), (without_old_row(changes), "no old row"):
            if len(rows):
                doubt = Doubt(changes, rows, reason)
                for consumer in consumers.values():
                    self._broken.doubt(consumer, doubt)
        self._versions.check(changes, consumers)

    def end_broken(self) -> None:
        """Tell of those that must go."""
        for shape, reason in self._broken.take():
            self._on_broken(shape, reason)


def _bytes_of(chosen: Chosen) -> int:
    """About what these items take when they are put together, for each shape its own."""
    rendered = chosen.rendered
    return len(chosen.items) * (_ITEM_BYTES + len(rendered.json) // max(1, len(rendered.tx)))
