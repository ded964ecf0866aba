"""`StreamTerm`: one term of a stream lane, from what the target holds to whatever ends it.

Orders of people are carried out (`orders`); it is checked that what comes now goes on from what the target
holds (`starting_point`); loads are begun or gone on with (`loading`); then changes are followed, and between
whole transactions what loads have ready is handed over. A term ends, and the next one begins, when somebody
orders something, or when tables have come (`table_watch`).

Why nothing is lost, doubled or out of order: changes are followed from the position that the target holds,
each item of the tail is whole transactions, and they are handed over in its order. A batch that is not the
last of its item is part of no standing. What capture is told (`Held`) is what the target was seen to hold,
the least over streams that load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace

from penstock import failpoints
from penstock.capture.position_reporter import PositionReporter
from penstock.capture.remote import RemoteCapture
from penstock.capture.spec import Started
from penstock.capture.tail_reader import TailReader
from penstock.capture.transactions import ChangeRows, TransactionFragment
from penstock.channel import State
from penstock.core.errors import CaptureAwayError, PenstockError
from penstock.core.position import Lsn
from penstock.core.stream import MESSAGES, StreamId
from penstock.streams import rewinds
from penstock.streams.bulk import BulkEncoder, backlog
from penstock.streams.conversion import Conversion
from penstock.streams.events import Batch
from penstock.streams.followed import FollowedStream
from penstock.streams.lane_measures import StreamMeasures
from penstock.streams.loading import Loads
from penstock.streams.notices import Boundaries
from penstock.streams.orders import OrderBook
from penstock.streams.publisher import Publisher, Standing, StoppedError
from penstock.streams.settings import StreamSettings
from penstock.streams.starting_point import Beginning, Ordered, StartingPoint, flushed, gap_told
from penstock.streams.table_watch import TableWatch
from penstock.streams.tail_feed import TailFeed
from penstock.streams.trouble import TroubleWatch
from penstock.streams.undecided import Undecided

_LOOK_EVERY_S = 0.5  # at orders
_LOADING_WAIT_S = 0.01
_LOAD_BATCHES_MAX = 8  # between two fragments of the tail


class Held:
    """What capture may forget, as far as this lane goes: None while that is not known."""

    def __init__(self) -> None:
        self.standing: Callable[[], Standing] | None = None

    def position(self) -> Lsn | None:
        standing = self.standing
        return None if standing is None else flushed(standing())


@dataclass(frozen=True, slots=True)
class LaneTools:
    """What a lane has over all its terms."""

    settings: StreamSettings
    capture: RemoteCapture
    orders: OrderBook
    measures: StreamMeasures
    held: Held
    reporter: PositionReporter
    on_state: Callable[[State, str], None]
    note: Callable[[str], None]
    bulk: BulkEncoder | None = None


class StreamTerm:
    def __init__(
        self,
        tools: LaneTools,
        publisher: Publisher,
        streams: Mapping[StreamId, FollowedStream],
        started: Started,
        ordered: Ordered,
    ) -> None:
        self._tools = tools
        self._publisher = publisher
        self._streams = streams
        self._started = started
        self._beginning = Beginning(tools.settings, streams, started, tools.note)
        self._watch = TableWatch(
            tools.settings, tools.capture, started.epoch, streams, tools.reporter.joined, tools.note
        )
        self._ordered = ordered
        self._orders = ordered.orders
        self._looked_at = 0.0
        self._state: tuple[State, str] = "starting", ""
        self._gaps_told: list[StreamId] | None = None
        told = tools.settings.section.transactions
        self._boundaries = None if told is None else Boundaries(told)

    @property
    def settings(self) -> StreamSettings:
        """With the streams that the next term is to begin with."""
        return self._watch.settings

    def run(self, standing: Standing | None, stop: threading.Event) -> None:
        """Until the end is asked for, somebody orders something, or tables came; else an error."""
        tools = self._tools
        try:
            if self._orders.is_paused:
                self._stand_still(standing, stop)
            else:
                self._send(standing, stop)
        finally:
            self._watch.close()
            tools.reporter.report()
            tools.held.standing = None
            tools.measures.watch(None)

    def _send(self, standing: Standing | None, stop: threading.Event) -> None:
        tools, settings = self._tools, self._tools.settings
        start = self._beginning.point(standing, self._ordered)
        self._note_rewind(standing, start)
        # What was published just now and is new to the lane: its rows are read later, no change is missing.
        tools.capture.heard([each for each in self._started.published if each not in start.missed])
        conversion = Conversion.of_source(settings, self._streams)
        with ExitStack() as opened:
            selections = {name: stream.selection for name, stream in self._streams.items()}
            loads = Loads(
                tools.capture,
                settings.log_directory,
                settings.loading,
                selections,
                conversion.events,
                lambda: self._publisher.standing.loads,
                conversion.undecided,
                tools.measures.read_anew,
            )
            opened.callback(loads.close)
            opened.enter_context(
                TroubleWatch(
                    lambda: self._publisher.trouble, self._tell, self._must_look_up, self._publisher.stop
                )
            )
            after = self._begin(loads, start, stop)
            tools.measures.watch(self._publisher)
            self._tell_capture(lambda: self._publisher.standing)
            self._tell_gaps(loads)
            after = self._send_backlog(loads, after, stop)
            read = frozenset({*self._streams, MESSAGES})
            reader = TailReader(tools.capture, settings.log_directory, read)
            feed = opened.enter_context(TailFeed(reader, after))
            if self._follow(feed, loads, conversion, after, stop):
                with suppress(StoppedError):
                    self._publisher.drain(settings.drain_s)

    def _stand_still(self, standing: Standing | None, stop: threading.Event) -> None:
        """While it is paused: capture knows what the target holds, and nothing is sent."""
        tools, orders = self._tools, self._orders
        if standing is not None and not self._beginning.why_not_on(standing):
            # Positions of another server would mean nothing to capture.
            self._tell_capture(lambda: standing)
        tools.on_state("running", orders.pause_told)
        tools.measures.is_paused = True
        try:
            while not stop.wait(_LOOK_EVERY_S) and tools.orders.read().serial == orders.serial:
                if tools.capture.hello().epoch != self._started.epoch:
                    raise CaptureAwayError("Capture has begun another term.", remedy="None needed.")
        finally:
            tools.measures.is_paused = False

    def _tell_capture(self, standing: Callable[[], Standing]) -> None:
        tools = self._tools
        tools.held.standing = standing
        tools.reporter.followed(self._started.epoch)
        tools.reporter.joined()

    # Before anything is sent

    def _note_rewind(self, held: Standing | None, start: StartingPoint) -> None:
        if held is not None and start.standing is not None and start.standing.position < held.position:
            rewinds.note(self._tools.settings.directory, start.standing.position, held.position)

    def _begin(self, loads: Loads, start: StartingPoint, stop: threading.Event) -> Lsn:
        """Where changes are followed from, written down at the target."""
        tools, started, standing = self._tools, self._started, start.standing
        loaded = [name for name, stream in self._streams.items() if stream.is_loaded]
        others = [name for name, stream in self._streams.items() if not stream.is_loaded]
        position = None if standing is None else standing.position
        if position is None and not loaded:
            position = tools.capture.progress().position
        held = {} if standing is None else standing.loads
        after = loads.begin(loaded, held, position, stop, without_rows=others)
        self._publisher.begin(
            Standing(
                after,
                started.epoch,
                started.system_id,
                started.timeline,
                loads.state,
                orders=self._orders.mark,
            )
        )
        if self._orders.is_open:
            failpoints.reach("streams.ordered")
            self._orders = tools.orders.carried_out(self._orders)
        failpoints.reach("streams.begun")
        if start.missed:
            tools.capture.heard(start.missed)
        return after

    # What comes

    def _follow(
        self, feed: TailFeed, loads: Loads, conversion: Conversion, end: Lsn, stop: threading.Event
    ) -> bool:
        """Whether it ends with whole transactions."""
        is_whole, undecided = True, Undecided(conversion.undecided)
        while not stop.is_set() and not (is_whole and self._is_over(loads, end)):
            fragment = feed.next(_LOADING_WAIT_S if loads.is_active else _LOOK_EVERY_S)
            if fragment is not None and (fragment.changes or fragment.end != end or not fragment.is_last):
                self._hand_over(undecided.noted(fragment), loads, conversion)
                end, is_whole = fragment.end, fragment.is_last
            if is_whole and loads.is_active:
                is_whole = self._load(loads, end, stop)
            self._tell_gaps(loads)
            self._tools.measures.loading = sum(map(loads.is_loading, self._streams)) - len(loads.gaps)
        return is_whole

    def _send_backlog(self, loads: Loads, after: Lsn, stop: threading.Event) -> Lsn:
        """What waits in the log, if others encode it; where changes are followed from then.

        Not while streams load: what is left out of changes then is known here alone.
        """
        tools = self._tools
        if tools.bulk is None or not loads.is_level:
            return after
        while ends := backlog(tools.settings, self._streams, after):
            with closing(tools.bulk.encoded(tools.settings, self._streams, after, ends)) as batches:
                for batch in batches:
                    self._publish(self._with_boundaries(batch))
                    if batch.is_last:
                        after = batch.end
                        if stop.is_set() or self._has_new_orders():
                            return after
        return after

    def _hand_over(self, fragment: TransactionFragment, loads: Loads, conversion: Conversion) -> None:
        untold = fragment.untold
        found = (loads.keep(each, untold.get(each.stream, ())) for each in fragment.changes)
        kept = [changes for changes in found if changes is not None]
        made = [events for changes in kept for events in conversion.events(changes) if len(events)]
        # That they stand still is at the target with what was told before, or neither is.
        has_stopped = bool(untold) and fragment.is_last and loads.stop(untold, fragment.end)
        state = loads.state if has_stopped else None
        self._publish(self._with_boundaries(Batch(fragment.end, made, fragment.is_last, state)), kept)

    def _tell_gaps(self, loads: Loads) -> None:
        gaps = loads.gaps
        if gaps != self._gaps_told:
            self._gaps_told = gaps
            self._tools.measures.gaps = len(gaps)
            self._state = "running", gap_told(self._tools.settings.lane, gaps)
            trouble = self._publisher.trouble
            self._tell("" if trouble is None else trouble.told(time.time()))

    def _with_boundaries(self, batch: Batch) -> Batch:
        if self._boundaries is None:
            return batch
        for events in batch.events:
            self._boundaries.count(events)
        told = self._boundaries.take() if batch.is_last else []
        return replace(batch, events=[*batch.events, *told])

    def _publish(self, batch: Batch, changes: Sequence[ChangeRows] = ()) -> None:
        self._publisher.publish(batch)
        if batch.events:
            failpoints.reach("streams.handed_over")
        self._tools.measures.handed_over(batch, changes)

    def _load(self, loads: Loads, end: Lsn, stop: threading.Event) -> bool:
        """Hand over what is ready; whether that ends with whole batches."""
        is_whole = True
        for _ in range(_LOAD_BATCHES_MAX):
            batch = loads.next_batch(end)
            while not stop.is_set() and not (batch is None and is_whole):
                if batch is not None:
                    self._publish(batch)
                    is_whole = batch.is_last
                    if is_whole:
                        break
                batch = loads.next_batch(end, _LOOK_EVERY_S)
            if batch is None:
                break
        return is_whole

    def _is_over(self, loads: Loads, end: Lsn) -> bool:
        """Whether another term is to begin: by order, or because tables came and everything is sent."""
        if not loads.is_active:
            self._watch.look()
        due_at = self._watch.due_at
        return self._has_new_orders() or (due_at is not None and end >= due_at)

    def _has_new_orders(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_S:
            return False
        self._looked_at = now
        return self._are_orders_others()

    def _tell(self, trouble: str = "") -> None:
        state, reason = self._state
        self._tools.on_state(state, "; ".join(filter(None, (trouble, reason))))

    def _must_look_up(self) -> bool:
        """Orders that cannot be read are told of by the next term."""
        try:
            return self._are_orders_others()
        except PenstockError:
            return True

    def _are_orders_others(self) -> bool:
        return self._tools.orders.read().serial != self._orders.serial
