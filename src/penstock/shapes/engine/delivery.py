"""`Delivery`: the way from rendered items to shapes' logs, and how far all of it is.

Items are appended fragment by fragment. What an item's transaction ends with is not known before its last
fragment: until then the newest item of each shape is held back, and no boundary moves, so readers see nothing
of it. At the last fragment all is handed over: each shape that got something enters the `FlushTracker`,
unless all of it is on disk already, and leaves it when storage says that it is. Positions are in transactions
there, (tx, ∞) being the whole of one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.capture.transactions import TransactionFragment
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.ledger.flush_tracker import FlushTracker
from penstock.shapes.engine.consumer import Consumer
from penstock.shapes.engine.consumer_registry import ConsumerRegistry
from penstock.shapes.engine.lsn_tracker import LsnTracker
from penstock.shapes.rendering.assembly import assemble
from penstock.shapes.rendering.renderer import Chosen
from penstock.shapes.shape import Shape
from penstock.shapes.storage import LogItems, ShapeItems, ShapeStore


class Delivery:
    """Belongs to the engine's thread. `touched`: shapes that readers see more of, since it was emptied."""

    def __init__(self, store: ShapeStore, slots: ConsumerRegistry, position: Lsn) -> None:
        self._store = store
        self._slots = slots
        self.touched: set[Shape] = set()
        self.begin_at(position)

    def begin_at(self, position: Lsn) -> None:
        """Nothing before `position` is to come."""
        self.position = position  # everything up to here was handed over
        self.tracker = FlushTracker(LogOffset(max(int(position) - 1, 0), math.inf))
        self.lsn = LsnTracker(position)
        self._unfinished = _Unfinished()

    @property
    def last_tx(self) -> int:
        """The newest transaction of which anything was appended."""
        return max(self.lsn.last_processed, self._unfinished.last_tx)

    def break_off(self) -> None:
        """What was not finished comes again, from its first fragment."""
        self._unfinished = _Unfinished()

    def forget(self, shape: Shape) -> None:
        """Nothing more is for this one."""
        self._unfinished.forget(shape.slot)
        self.tracker.remove(shape.handle)

    def append(self, chosen: list[Chosen], *, is_last: bool) -> ShapeItems:
        """Append what was rendered, and what was held back until something followed."""
        if self._unfinished.held is not None:
            chosen = [self._unfinished.held, *chosen]
        assembled = assemble(chosen, open=not is_last)
        self._unfinished.held = assembled.held
        self._unfinished.touched.update(self._write(assembled.items))
        return assembled.items

    def append_late(self, chosen: list[Chosen]) -> None:
        """Append what a new shape gets of transactions that were handed over before. Nothing waits for it to
        be on disk, since the shape is not kept over a restart before that."""
        self._write(assemble(chosen).items)

    def _write(self, items: ShapeItems) -> list[int]:
        slots: list[int] = items.slots.tolist()
        if slots:
            self._store.append(items)
            for slot in slots:
                self._seen(self._slots.consumers[slot].shape)
        return slots

    def settle(self) -> None:
        """What `append_to` was given since belongs to transactions that were handed over before. Nothing
        waits for it to be on disk: it comes again, or is asked for again, after a restart without it."""
        for slot, offset in self._unfinished.alone.items():
            self._slots.consumers[slot].sent(offset, self.tracker.last_seen_offset)
            self._unfinished.touched.discard(slot)
        self._unfinished.alone.clear()

    def append_to(self, consumer: Consumer, items: LogItems) -> None:
        """Append items that were made for one shape alone."""
        consumer.shape.storage.append_to_log(items)
        self._unfinished.touched.add(consumer.shape.slot)
        if items.boundary is not None:
            self._unfinished.alone[consumer.shape.slot] = items.boundary
        self._seen(consumer.shape)

    def append_whole(self, chosen: list[Chosen]) -> None:
        """Append whole transactions that were rendered for shapes with subqueries."""
        items = assemble(chosen).items
        lasts = items.item_ends - 1
        for slot, tx, op in zip(
            self._write(items), items.tx[lasts].tolist(), items.op[lasts].tolist(), strict=True
        ):
            self._unfinished.touched.add(slot)
            self._unfinished.alone[slot] = LogOffset(tx, op)

    def finish(self, fragment: TransactionFragment, items: ShapeItems) -> None:
        """A fragment is appended. With the last one, note who has to flush what: `items` are the last of all
        shapes that got anything, since one of each was held back until now."""
        self._unfinished.add(fragment)
        if not fragment.is_last:
            return
        unfinished, self._unfinished = self._unfinished, _Unfinished()
        if unfinished.touched:
            consumers, boundary = self._slots.consumers, LogOffset(unfinished.last_tx, math.inf)
            lasts = items.item_ends - 1
            own = zip(items.slots.tolist(), items.tx[lasts].tolist(), items.op[lasts].tolist(), strict=True)
            for slot, tx, op in own:
                consumers[slot].sent(LogOffset(tx, op), boundary)
            for slot, offset in unfinished.alone.items():
                consumers[slot].sent(offset, boundary)
            shapes = (consumers[slot].shape for slot in unfinished.touched)
            handles = [shape.handle for shape in shapes if not _is_on_disk(shape)]
            self.tracker.transactions(unfinished.first_tx, boundary, handles, time.monotonic())
            self.lsn.transaction(unfinished.last_tx)
        else:
            self.tracker.keepalive(int(fragment.end) - 1)
            self.lsn.nothing_up_to(fragment.end)
        self.position = max(self.position, fragment.end)

    def flushed(self, offsets: Mapping[int, LogOffset]) -> None:
        """Storage has these on disk, by slot."""
        now = time.monotonic()
        for slot, own in offsets.items():
            consumer = self._slots.consumers.get(slot)
            if consumer is not None:
                self.tracker.notify_flushed(consumer.shape.handle, consumer.flushed(own), now)
                if consumer.shape.last_offset != consumer.shape.storage.readable_offset:
                    self._seen(consumer.shape)  # what readers may see only once it is on disk

    def _seen(self, shape: Shape) -> None:
        shape.last_offset = shape.storage.readable_offset
        self.touched.add(shape)


def _is_on_disk(shape: Shape) -> bool:
    """All that it was given. It was before, if a crash came between that and the commit of the position: it
    is given the same again, storage drops it as seen, and says nothing of it."""
    return shape.storage.last_seen_txn_offset <= shape.storage.last_persisted_txn_offset


@dataclass(slots=True)
class _Unfinished:
    """What was appended and not yet handed over: of one fragment, or of all fragments of an item."""

    held: Chosen | None = None
    touched: set[int] = field(default_factory=set)
    alone: dict[int, LogOffset] = field(default_factory=dict)  # the last that `append_to` was given
    first_tx: int = 0
    last_tx: int = 0

    def add(self, fragment: TransactionFragment) -> None:
        if fragment.changes:
            self.first_tx = min(self.first_tx or fragment.first_tx, fragment.first_tx)
            self.last_tx = max(self.last_tx, fragment.last_tx)

    def forget(self, slot: int) -> None:
        self.touched.discard(slot)
        self.alone.pop(slot, None)
        held = self.held
        if held is not None and (held.slots == slot).any():
            self.held = held.where(held.slots != slot)
