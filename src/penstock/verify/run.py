"""`penstock verify`: pins tables and source, takes both to one position, compares them, says what differs.

The order of the steps is what rules out false alarms (see `penstock.verify`): tables are pinned, then the
snapshot is taken, then the log is sealed up to its point and applied to the pinned tables.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow.parquet as pq

from penstock.capture.spec import ExportedSnapshot
from penstock.config import Config
from penstock.core.errors import ConfigError, LogGoneError, SourceError
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.stream import StreamId
from penstock.core.verify_report import NotCompared, VerifiedStream, VerifyReport
from penstock.lake.apply import StreamWork
from penstock.lake.destination import destination_of
from penstock.lake.lane_state import LaneStream
from penstock.lake.light import Stages
from penstock.lake.spark_starter import SparkStarter
from penstock.ledger.load_record import LoadRecords
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore
from penstock.log.reader import ChangeLog
from penstock.resolution import resolve_from_source
from penstock.sources.open import open_source
from penstock.turns import fingerprints
from penstock.verify.comparison import Comparison, Cut, are_light, compare_with_source
from penstock.verify.history import compare_with_log, plan_history
from penstock.verify.opened import Opened
from penstock.verify.outcome import Digests, Drilled, Telling, digest_all, look_into, verdict
from penstock.verify.view import (
    NotComparableError,
    Pin,
    View,
    applied,
    has_columns,
    only_added,
    pinned,
    plan_view,
    taken_on,
)

#: Of a table that the source rewrites while it is read, or alters around the snapshot, and of one whose
#: changes are taken from the log, which is not held back for us: a later view of the table needs later ones.
TRIES_MAX = 3
SHARES_PER_CORE = 2
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`streams`: none means all. `limit`: how many differences of a stream are told one by one."""

    streams: tuple[StreamId, ...] = ()
    sample: float = 1.0
    limit: int = 20
    show_values: bool = False
    at: Lsn | None = None  # the version of each table that is compared; None: the newest


class Verification:
    """One run over a pipeline that is open."""

    def __init__(
        self,
        config: Config,
        opened: Opened,
        spark: SparkStarter,
        listener: ProgressListener,
        options: VerifyOptions,
    ) -> None:
        self._config = config
        self._opened = opened
        self._spark = spark
        self._listener = listener
        self._options = options
        source = open_source(config.source)
        self._reading = source.reading(source.identity().version)
        self._destination = destination_of(config)
        self._log = ChangeLog(config.state / "log")
        self._stages = Stages(spark)
        #: What differs, with the position at which it does.
        self.found: dict[StreamId, tuple[Lsn, Drilled]] = {}
        self._without_log: dict[StreamId, str] = {}  # why those could not be compared when last tried

    def run(self) -> VerifyReport:
        began, began_at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        results: dict[StreamId, VerifiedStream] = {}
        wanted = self._wanted()
        left = dict(wanted)
        for _ in range(TRIES_MAX):
            results |= self._compare(left)
            left = {name: each for name, each in left.items() if name not in results}
            if not left:
                break
        rewritten = "the source rewrote or altered its table again and again while it was read"
        results |= {
            stream: _not_compared(stream, self._without_log.get(stream, rewritten)) for stream in left
        }
        return VerifyReport(
            tuple(results[stream] for stream in wanted),
            began_at,
            round(time.monotonic() - began, 3),
            self._options.sample,
            self._options.show_values,
            None if self._options.at is None else str(self._options.at),
        )

    def _wanted(self) -> dict[StreamId, LaneStream]:
        streams = {stream.info.stream: stream for stream in resolve_from_source(self._config)}
        for name in self._options.streams:
            if name not in streams:
                raise ConfigError(
                    "This stream is not part of the pipeline.",
                    stream=str(name),
                    remedy="Run `penstock status` to see the streams there are.",
                )
        return {name: streams[name] for name in self._options.streams or streams}

    def _compare(self, streams: Mapping[StreamId, LaneStream]) -> dict[StreamId, VerifiedStream]:
        """What there is to say of these streams; nothing of those that are to be tried again."""
        results: dict[StreamId, VerifiedStream] = {}
        states: dict[StreamId, Pin] = {}
        histories: dict[StreamId, Pin] = {}
        for stream, configured in streams.items():
            try:
                pin = self._pin(stream, configured)
                (states if configured.write == "upsert" else histories)[stream] = pin
            except NotComparableError as error:
                results[stream] = _not_compared(stream, str(error), _why(configured))
        self._without_log.clear()
        if histories:
            with self._log_may_go(histories):
                results |= self._compare_histories(streams, histories)
        if states:
            with self._log_may_go(states):
                results |= self._compare_states(states)
        return results

    @contextmanager
    def _log_may_go(self, streams: Iterable[StreamId]) -> Iterator[None]:
        try:
            yield
        except LogGoneError as error:
            for stream in streams:
                self._try_again(stream, error)

    def _try_again(self, stream: StreamId, error: LogGoneError) -> None:
        """With another view of the table; if this was the last time, that is why."""
        reason = f"{error.message[:1].lower()}{error.message[1:].rstrip('.')}"
        self._without_log[stream] = f"{reason}; compare it again after a sync, or raise `log.retention`"

    def _compare_states(self, pins: Mapping[StreamId, Pin]) -> dict[StreamId, VerifiedStream]:
        """Upsert tables, with the source's rows."""
        results: dict[StreamId, VerifiedStream] = {}
        works: dict[StreamId, StreamWork | None] = {}
        with self._snapshot(pins) as (snapshot, settled):
            self._require_reached(snapshot.consistent_point)
            self._read_log_to(snapshot.consistent_point)
            for stream, configured in settled.items():
                try:
                    position = snapshot.consistent_point
                    works[stream] = plan_view(configured, pins[stream], self._log, position)
                except NotComparableError as error:
                    results[stream] = _not_compared(stream, str(error))
                except LogGoneError as error:
                    self._try_again(stream, error)
            with applied(self._spark, works) as outcomes:
                at_position = {}
                for stream, work in works.items():
                    pin = pins[stream]
                    if work is None:
                        view = pinned(settled[stream], pin)
                    else:
                        view = taken_on(pin, work, outcomes[stream])
                    at_position[stream] = replace(view, at=snapshot.consistent_point)
                return results | self._compare_views(settled, at_position, snapshot)

    def _compare_histories(
        self, streams: Mapping[StreamId, LaneStream], pins: Mapping[StreamId, Pin]
    ) -> dict[StreamId, VerifiedStream]:
        """Append tables, with the log's changes."""
        results: dict[StreamId, VerifiedStream] = {}
        works: dict[StreamId, StreamWork | None] = {}
        for stream, pin in pins.items():
            try:
                works[stream] = plan_history(streams[stream], pin, self._log)
            except NotComparableError as error:
                results[stream] = _not_compared(stream, str(error))
            except LogGoneError as error:
                self._try_again(stream, error)
        with applied(self._spark, works) as outcomes:
            expected = {
                stream: only_added(pins[stream], work, outcomes[stream])
                for stream, work in works.items()
                if work is not None
            }
            held = {stream: pinned(streams[stream], pins[stream]) for stream in expected}
            light = are_light([*expected.values(), *held.values()])
            shares = 1 if light else SHARES_PER_CORE * self._stages.cores
            comparisons = {}
            for stream, view in expected.items():
                work = works[stream]
                assert work is not None
                comparisons[stream] = compare_with_log(
                    streams[stream], view, work, held[stream].files, shares
                )
            found = self._carry_out(comparisons, expected, light=light)
        for stream, work in works.items():
            start = pins[stream].position if work is None else work.after
            told = found.get(stream) or VerifiedStream(str(stream), "equal")
            results[stream] = replace(
                told,
                against="change log",
                compared_from=str(start),
                position=str(pins[stream].position),
                table_position=str(pins[stream].position),
            )
        return results

    def _pin(self, stream: StreamId, configured: LaneStream) -> Pin:
        if not configured.reads_log:
            raise NotComparableError(f"it is `{configured.mode}`: its table is at no position of the log")
        if configured.mode == "strict_cdc" and configured.write == "upsert":
            raise NotComparableError("it is `strict_cdc`: rows from before it joined are not in its table")
        if stream in self._opened.waiting:
            raise NotComparableError("it is to be loaded; run `penstock sync` first")
        loads = LoadRecords(self._config.state / "load")
        pin = Pin.of(stream, self._destination.table(stream), self._document, loads, self._options.at)
        if not has_columns(configured, pin, pq.read_schema):
            raise NotComparableError("its table was written with other settings; run `penstock sync` first")
        return pin

    def _document(self) -> StateDocument:
        return StateStore(self._config.state).load() or StateDocument.new()

    @contextmanager
    def _snapshot(
        self, pins: Mapping[StreamId, Pin]
    ) -> Iterator[tuple[ExportedSnapshot, dict[StreamId, LaneStream]]]:
        """A snapshot, and those of the streams around which the catalog stood still."""
        before = fingerprints(resolve_from_source(self._config))
        snapshot = self._opened.snapshots.snapshot()
        try:
            streams = resolve_from_source(self._config, at_replica=True)
            after = fingerprints(streams)
            yield (
                snapshot,
                {
                    each.info.stream: each
                    for each in streams
                    if each.info.stream in pins and after[each.info.stream] == before.get(each.info.stream)
                },
            )
        finally:
            self._opened.snapshots.release_snapshot()

    def _require_reached(self, position: Lsn) -> None:
        at = self._options.at
        if at is not None and at > position:
            raise ConfigError(
                f"The source is at {position}, and not yet at {at}.",
                remedy="Name a position that the tables have reached; `penstock status` shows it.",
            )

    def _read_log_to(self, position: Lsn) -> None:
        self._opened.log.read_to(position)
        while (end := self._opened.log.reached(_LOOK_EVERY_S)) is None:
            pass
        if end < position:
            raise SourceError(f"The log was sealed to {end}, and not to {position}.", remedy="Try again.")

    def _compare_views(
        self,
        streams: Mapping[StreamId, LaneStream],
        at_position: Mapping[StreamId, View],
        snapshot: ExportedSnapshot,
    ) -> dict[StreamId, VerifiedStream]:
        results: dict[StreamId, VerifiedStream] = {}
        comparisons: dict[StreamId, Comparison] = {}
        light = are_light(at_position.values(), sum(streams[name].info.bytes for name in at_position))
        shares = 1 if light else SHARES_PER_CORE * self._stages.cores
        with self._reading.session() as session:
            for stream, view in at_position.items():
                info = streams[stream].info
                rows = self._config.loading.rows_per_chunk
                cut = Cut.of(session, self._reading, info, rows, self._options.sample)
                try:
                    comparisons[stream] = compare_with_source(
                        info, view, self._reading, cut, snapshot.name, shares
                    )
                except NotComparableError as error:
                    results[stream] = _not_compared(stream, str(error))
        for stream, told in self._carry_out(comparisons, at_position, light=light).items():
            results[stream] = replace(
                told,
                position=str(snapshot.consistent_point),
                table_position=str(at_position[stream].pin.position),
            )
        return results

    def _carry_out(
        self, comparisons: Mapping[StreamId, Comparison], views: Mapping[StreamId, View], *, light: bool
    ) -> dict[StreamId, VerifiedStream]:
        """What came of each; nothing of those that the source rewrote meanwhile."""
        for stream in comparisons:
            self._listener.stream_started(str(stream), "verify", None)
        began = time.monotonic()
        digests = digest_all(self._stages, list(comparisons.values()), light=light)
        took = time.monotonic() - began
        results = {}
        for (stream, comparison), found in zip(comparisons.items(), digests, strict=True):
            if found is None:
                continue
            told = self._tell(stream, comparison, found, views[stream], light=light)
            if told is not None:
                results[stream] = replace(told, seconds=round(told.seconds + took, 3))
        return results

    def _tell(
        self, stream: StreamId, comparison: Comparison, digests: Digests, view: View, *, light: bool
    ) -> VerifiedStream | None:
        told, differing = verdict(comparison, digests)
        began = time.monotonic()
        if differing.size:
            telling = Telling(
                self._options.limit,
                view.letters,
                view.pin.table.new_staging_directory(),
                self._options.show_values,
            )
            drilled = look_into(self._stages, comparison, digests, told, differing, telling, light=light)
            if drilled is None:
                return None
            if view.at is not None:
                self.found[stream] = view.at, drilled
            told = drilled.stream
        self._listener.stream_finished(str(stream), "verify", told.source_rows)
        return replace(told, seconds=time.monotonic() - began)


def _why(configured: LaneStream) -> NotCompared:
    is_followed = configured.mode == "cdc" or (configured.reads_log and configured.write == "append")
    return "for now" if is_followed else "by its mode"


def _not_compared(stream: StreamId, reason: str, why: NotCompared = "for now") -> VerifiedStream:
    return VerifiedStream(str(stream), "not compared", reason, why)
