"""The lake lane as a process of `penstock run`: keeps the tables true to the log for as long as it lives.

It works for one term of capture's at a time. A term begins when capture leads: the lane sets a state aside
that another instance has left behind, joins capture, has every table refuse older leaders, settles what was
left open, and then takes turns (`turns`): when `lanes.lake.every` has passed and something has changed, or
sooner, when `lanes.lake.max_bytes` of the log wait. Where nothing changes, nothing is asked of Spark, and the
position moves seldom. Between turns it looks for tables that came or changed, after its own
tables, and for orders of people (`ledger/orders.py`): streams that are to stand still, go on or be loaded
again. Iceberg tables are kept in order beside all that (`lake/upkeep.py`): no turn waits for it, but for a
short pass over a table that turns leave no other moment for.

A term ends with an error, and how it goes on is all that an error decides:

- capture is away, or leads a new term: wait for it, then begin anew, at once the first time and after a pause
  where one term after the other ends soon; the Spark session stays;
- the source cannot be reached, or tables there are not as they should be: the same, after a pause;
- files of a table were merged under each lookup of a round's rows: the same;
- the destination, Spark or the disk failed, or somebody else committed: the same, a few times in a row; then
  the process ends, so that the supervisor starts it with nothing left of what may be broken in it;
- anything that needs a person, and defects: the process ends at once.

Nothing of this can lose or double a row: a term begins by asking the tables where they are.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Literal

import structlog

from penstock import logs
from penstock.capture.remote import RemoteCapture
from penstock.capture.spec import LAKE_LANE, Started
from penstock.channel import Channel
from penstock.config import Config
from penstock.core.backoff import pause_s
from penstock.core.errors import (
    CaptureAwayError,
    ConfigError,
    PenstockError,
    PositionGoneError,
    SourceError,
    StaleLookupError,
    told_of,
)
from penstock.core.position import Lsn
from penstock.lake.destination import destination_of
from penstock.lake.lane import LakeLane
from penstock.lake.lane_state import LaneStream
from penstock.lake.measures import LaneMeasures
from penstock.lake.superseded import leaders, set_aside
from penstock.lake.upkeep import Upkeep, held
from penstock.lake.warmth import kept_warm, opened_beside
from penstock.ledger import orders
from penstock.locking import only_leader
from penstock.resolution import resolve_from_source
from penstock.sources.open import open_source
from penstock.turns import LeftOffError, Turns, reload_published, spark_starter
from penstock.verify.always import Verifying
from penstock.verify.differences import comparer_of

POLL_S = 0.2
LOOK_EVERY_S = 60.0  # for tables that came or changed at the source
MOVE_EVERY_S = 30.0  # the position, where nothing changes
SWEEP_EVERY_S = 300.0
UPKEEP_EVERY_S = 60.0
FAILURES_MAX = 5
BACKOFF_S = (1.0, 60.0)
#: Capture's next term may be there at once: the first pause is next to none. To join one costs the source
#: questions and the tables a commit, so that those that end soon are joined more and more seldom.
AWAY_BACKOFF_S = (0.2, 10.0)

Work = Literal["turn", "move", "look"]
_logger = structlog.get_logger("penstock.lake")


class LakeProcess:
    def __init__(self, channel: Channel, config: Config, capture: RemoteCapture) -> None:
        self._channel = channel
        self._config = config
        self._capture = capture
        self._stop = channel.stop_asked
        self._source = open_source(config.source)
        self._spark = spark_starter(config)
        self._measures = LaneMeasures(config.state / "log", channel.note)
        self._turning = threading.Lock()  # held by each turn
        self._upkeep = Upkeep(config, self._spark, self._measures, self._turning, lambda: self._is_in_turns)
        self._failures = self._aways = 0
        self._said = ""
        self._rows_seen = -1
        self._took_turn_at = self._moved_at = 0.0
        self._is_in_turns = self._has_loaded = False

    def run(self, *, warm: bool) -> None:
        """Until the end is asked for; an error if the process must end before."""
        ended = threading.Event()
        self._compare_again_and_again()
        sending = (self._channel.metrics, ended)
        threading.Thread(target=self._measures.send, args=sending, name="lake-metrics", daemon=True).start()
        with self._spark:
            try:
                while not self._stop.is_set():
                    self._next_term(warm=warm)
            finally:
                self._upkeep.end()
        ended.set()
        self._channel.state("stopping")

    def _compare_again_and_again(self) -> None:
        """Tables with their source, beside everything else, if the pipeline file says so."""
        if self._config.verify.every is None:
            return
        where = self._channel.spec["capture"]
        verifying = Verifying(
            self._config,
            where,
            self._spark,
            is_ready=lambda: self._is_in_turns,
            has_loaded=lambda: self._has_loaded,
            note=self._channel.note,
        )
        self._measures.also(verifying.samples)
        threading.Thread(target=verifying.run, args=(self._stop,), name="lake-verify", daemon=True).start()

    # A term

    def _next_term(self, *, warm: bool) -> None:
        began = time.monotonic()
        try:
            self._term(warm=warm)
        except (ConfigError, PositionGoneError):
            raise
        except PenstockError as error:
            if time.monotonic() - began > AWAY_BACKOFF_S[1]:
                self._aways = 0
            self._begin_anew_after(error)

    def _term(self, *, warm: bool) -> None:
        standing = _Standing(self._channel, is_warming=warm)
        with (
            kept_warm(self._spark, standing.warmed) if warm else nullcontext(),
            opened_beside(self._open_table) if self._config.destination.type == "iceberg" else nullcontext(),
        ):
            leads = self._capture.wait_until_leading(self._stop, standing.away)
        if not leads:
            return
        self._channel.state("starting")
        with only_leader(self._config.state, self._waits):
            streams = self._resolve()
            self._set_aside_if_superseded(streams)
            turns = Turns(
                self._config,
                self._measures,
                self._spark,
                self._capture,
                round_every_s=self._config.lanes.lake.every.total_seconds(),
                target=self._received,
                stop=self._stop,
                comparer=comparer_of(self._config, self._spark, self._measures),
            )
            lane = turns.open(streams, lambda: self._join(streams), fence=True)
            self._spark.begin()  # it is needed before long, but takes both cores from who takes over
            self._capture.heard()
            self._measures.watch(lane)
            self._channel.state("running")
            self._is_in_turns = True
            try:
                with suppress(LeftOffError):
                    self._take_turns(turns, lane)
            finally:
                self._is_in_turns = False
            turns.acknowledge(lane)

    def _waits(self) -> bool:
        """While somebody else has the state: whether to give up."""
        if not self._capture.hello().leading:
            raise CaptureAwayError("Capture no longer leads.", remedy="None needed: another instance does.")
        holder = "a command, or an instance that was replaced,"
        self._channel.state("waiting", f"{holder} holds this pipeline's state")
        return self._stop.wait(POLL_S)

    def _open_table(self) -> None:
        for stream in self._resolve()[:1]:
            destination_of(self._config).table(stream.info.stream).record()

    def _set_aside_if_superseded(self, streams: Sequence[LaneStream]) -> None:
        """Before capture opens the log; if it has, for want of a lane, it is to start over."""
        term = self._capture.hello().epoch
        names = [stream.info.stream for stream in streams]
        led = leaders(self._config.state, destination_of(self._config), names, self._source.name)
        if term is not None and led.precede(term) and not led.left_state_behind:
            return
        hello = self._capture.hello()
        if term is None or not hello.leading or hello.epoch != term:
            raise CaptureAwayError("Capture has begun another term.", remedy="None needed: it is joined.")
        if not led.precede(term):
            # MySQL's are of a clock, and can be later than that; others are places in the source's own log.
            if self._config.source.type != "mysql" and not led.left_state_behind:
                return  # what is wrong with the source, capture says as this lane joins
            self._capture.start_over(led.newest)
            raise SourceError(
                f"This term's epoch, {term}, is not later than that of the last leader, {led.newest}.",
                remedy="None needed if the source's clock was set back: capture begins another term. If it "
                "goes on, the source is not the one that the tables were written from, or is an older copy.",
            )
        if hello.reading:
            self._capture.start_over()
            raise CaptureAwayError(
                "Capture reads into a log that is to be set aside.", remedy="None needed: it starts over."
            )
        place = set_aside(self._config.state)
        self._channel.note(
            "Another instance has led since this one did, with a state of its own: ours is made anew "
            f"from the tables and the slot; what it was is in {place}."
        )

    def _resolve(self) -> list[LaneStream]:
        streams = resolve_from_source(self._config)
        if not any(stream.reads_log for stream in streams):
            raise ConfigError(
                "`penstock run` follows changes, and no stream of this pipeline does.",
                remedy="Have a scheduler run `penstock sync`, or give a stream `mode: cdc`.",
            )
        return streams

    def _join(self, streams: Sequence[LaneStream]) -> Started:
        followed = [stream for stream in streams if stream.reads_log]
        return self._capture.join(
            [stream.info.stream for stream in followed],
            {stream.info.stream for stream in followed if stream.full_identity},
        )

    def _received(self) -> Lsn:
        """What capture has received: a turn seals and applies that, and does not wait for more."""
        progress = self._capture.progress()
        self._rows_seen = progress.rows
        return progress.position

    def _take_turns(self, turns: Turns, lane: LakeLane) -> None:
        look, refresh = _Every(LOOK_EVERY_S), _Every(self._config.lanes.lake.refresh_every.total_seconds())
        sweep, upkeep = _Every(SWEEP_EVERY_S), _Every(UPKEEP_EVERY_S)
        work: Work | None = "turn"
        accepts = True  # what somebody accepted by resuming a stream
        while work is not None:
            accepts = self._take_orders(lane) or accepts
            self._carry_out(work, turns, lane)
            self._failures = 0
            if not lane.streams_to_load():
                self._has_loaded = True
                if accepts:
                    lane.carried_out()
                    accepts = False
            if look.is_due():
                self._look_again(turns, lane)
            if refresh.is_due():
                lane.refresh()
            if sweep.is_due():
                lane.sweep(self._config.readers.grace.total_seconds())
            if upkeep.is_due() and not self._stop.is_set():
                self._upkeep.begin(list(lane.streams))
            work = self._next(lane, (look, refresh, sweep, upkeep))

    def _take_orders(self, lane: LakeLane) -> bool:
        """Do what people want of streams; whether there was something. No round is open here."""
        found = orders.taken(self._config.state)
        for path, order in found:
            if order.stream not in lane.streams:  # a table that is there, and not looked at yet
                lane.ledger.write(orders.applied(lane.ledger.document, [order]))
            elif order.action == "pause":
                lane.pause(order.stream, order.reason)
            elif order.action == "resume":
                lane.resume(order.stream)
                self._channel.note(f"{order.stream} goes on.")
            elif order.action == "rewind":
                assert order.to is not None
                lane.rewind(order.stream, order.to)
            else:
                lane.resync(order.stream)
            orders.carried_out([path])
        return bool(found)

    def _carry_out(self, work: Work, turns: Turns, lane: LakeLane) -> None:
        if work == "turn":
            self._took_turn_at = self._moved_at = time.monotonic()
            with self._in_turn():
                turns.take(lane, follows=True)
        elif work == "move":
            self._moved_at = time.monotonic()
            if (end := lane.waiting().end) is not None:
                with self._in_turn():
                    lane.follow(end)
                turns.acknowledge(lane)

    def _in_turn(self) -> AbstractContextManager[None]:
        """A short pass over a table that is under way is waited for, unless the end is asked for."""
        return held(self._turning, lambda: not self._stop.is_set(), LeftOffError)

    def _next(self, lane: LakeLane, others: Sequence[_Every]) -> Work | None:
        """Wait until there is something to do; None if the end is asked for."""
        settings = self._config.lanes.lake
        every_s = settings.every.total_seconds()
        is_to_read = bool(lane.streams_to_load() or lane.streams_to_advance())
        while not self._stop.wait(POLL_S):
            if orders.any_wait(self._config.state):
                return "turn"
            progress, waiting = self._capture.progress(), lane.waiting()
            if waiting.bytes + progress.unsealed_bytes >= settings.max_bytes:
                return "turn"
            has_come = progress.unsealed_bytes > 0 or progress.rows != self._rows_seen
            if time.monotonic() - self._took_turn_at >= every_s and (
                waiting.has_changes or has_come or is_to_read
            ):
                return "turn"
            if time.monotonic() - self._moved_at >= MOVE_EVERY_S and waiting.end is not None:
                return "move"
            if any(each.is_near() for each in others):
                return "look"
        return None

    def _look_again(self, turns: Turns, lane: LakeLane) -> None:
        """Tables that came, and what became of those there are. What is wrong with one of them is a note."""
        try:
            streams = self._resolve()
            known = {name: _captured_as(stream) for name, stream in lane.streams.items()}
            if any(
                known.get(stream.info.stream) != _captured_as(stream) or not self._is_published(stream)
                for stream in streams
            ):
                started = self._join(streams)
                names = {stream.info.stream for stream in streams}
                # A table that came since is not published: it waits for the next look.
                turns.look_again(lane, [stream for stream in turns.resolve() if stream.info.stream in names])
                reload_published(lane, started)
                self._capture.heard()
            else:
                turns.look_again(lane, streams)
            turns.reconcile_partitions(lane)
        except CaptureAwayError:
            raise
        except (SourceError, ConfigError) as error:
            if error.message != self._said:
                self._said = error.message
                self._channel.note(f"Could not look for tables that came or changed. {error}")

    def _is_published(self, stream: LaneStream) -> bool:
        return not stream.reads_log or self._source.is_captured(stream.info)

    # How it goes on

    def _begin_anew_after(self, error: PenstockError) -> None:
        self._measures.begun_anew()
        if self._stop.is_set():
            return
        if isinstance(error, CaptureAwayError):
            self._stop.wait(pause_s(self._aways, *AWAY_BACKOFF_S))
            self._aways += 1
            return
        if self._spark.has_died():
            raise error
        # Somebody compacts a table by hand, again and again: nothing is broken that a new process would mend.
        if not isinstance(error, StaleLookupError):
            self._failures += 1
        if not isinstance(error, SourceError | StaleLookupError) and self._failures >= FAILURES_MAX:
            raise error
        _logger.warning("the lake lane begins anew", code=error.code, reason=error.message)
        self._channel.state("reconnecting", str(error))
        self._stop.wait(pause_s(self._failures, *BACKOFF_S))


class _Standing:
    """What is said while capture does not lead: who is to be warm has not started until it is."""

    def __init__(self, channel: Channel, *, is_warming: bool) -> None:
        self._channel = channel
        self._is_warming = is_warming
        self._away = ""
        self._saying = threading.Lock()
        self._say()

    def warmed(self) -> None:
        self._is_warming = False
        self._say()

    def away(self, reason: str) -> None:
        self._away = reason
        self._say()

    def _say(self) -> None:
        with self._saying:
            if self._is_warming:
                self._channel.state("starting", self._away or "Spark is being made ready")
            else:
                self._channel.state("waiting", self._away)


class _Every:
    """Something that is due again and again."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def is_near(self) -> bool:
        return time.monotonic() >= self._at

    def is_due(self) -> bool:
        """Whether it is; then it is due again when its time has passed."""
        if not self.is_near():
            return False
        self._at = time.monotonic() + self._seconds
        return True


def _captured_as(stream: LaneStream) -> object:
    """What capture must be told again if it changes."""
    # A table that was dropped and made again is another one to the publication.
    return (
        stream.full_identity,
        stream.info.oid,
        tuple((leaf.oid, leaf.stream) for leaf in stream.info.leaves),
    )


def main() -> int:
    channel = Channel()
    logs.configure("json")
    try:
        config = Config.load(channel.spec["config"])
        where = channel.spec["capture"]
        with RemoteCapture(
            where["address"], LAKE_LANE, where.get("token"), where.get("certificate")
        ) as capture:
            LakeProcess(channel, config, capture).run(warm=channel.spec.get("warm", False))
    except Exception as error:
        logs.log_unexpected("the lake lane", error)
        channel.failed(told_of("the lake lane", error).to_json())
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Threads of py4j and of gRPC may still be waiting for somebody; nothing of theirs is needed any more.
    os._exit(status)
