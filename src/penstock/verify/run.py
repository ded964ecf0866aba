"""`penstock verify`: pins tables and source, takes both to one position, compares them, says what differs.

The order of the steps is what rules out false alarms (see `penstock.verify`): tables are pinned, then the
snapshot is taken, then the log is sealed up to its point and applied to the pinned tables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow.parquet as pq

from penstock.config import Config
from penstock.core.errors import (
    ConfigError,
    LogGoneError,
    NoSnapshotError,
    PenstockError,
    SnapshotLostError,
    SourceError,
    TableChangedError,
)
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
from penstock.sources.base import HeldTable
from penstock.sources.open import open_source
from penstock.sources.pace import share
from penstock.turns import fingerprints
from penstock.verify.canonical import Secret
from penstock.verify.comparison import Comparison, Cut, Under, are_light, compare_with_source, is_light
from penstock.verify.history import (
    NOTHING_TO_COMPARE,
    History,
    NothingYetError,
    compare_with_log,
    plan_history,
)
from penstock.verify.moved import Keys, moved_keys
from penstock.verify.opened import Opened, log_read_to
from penstock.verify.outcome import Digests, Drilled, Telling, Unreadable, digest_all, look_into, verdict
from penstock.verify.view import (
    NotComparableError,
    Pin,
    UnreadableTablesError,
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
SESSIONS_MAX = 8  # that hold a snapshot in this process
_GONE = "its table is gone at the source"


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`streams`: none means all. `limit`: how many differences of a stream are told one by one. `still_s`: so
    long the log may stand still before it has what the source shows."""

    streams: tuple[StreamId, ...] = ()
    sample: float = 1.0
    limit: int = 20
    show_values: bool = False
    at: Lsn | None = None  # the version of each table that is compared; None: the newest
    secret: Secret | None = None  # by which rows have their buckets; None: another one for each comparison
    still_s: float = 600.0


@dataclass(frozen=True, slots=True)
class SourceState:
    """The rows of a stream's table at a position of the log."""

    position: Lsn
    under: Under


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
        self._source = open_source(config.source)
        self._reading = self._source.reading(self._source.identity().version)
        self._destination = destination_of(config)
        self._log = ChangeLog(config.state / "log")
        self._stages = Stages(spark)
        #: What differs, with the position at which it does.
        self.found: dict[StreamId, tuple[Lsn, Drilled]] = {}
        self._again: dict[StreamId, str] = {}  # why those could not be compared when last tried
        #: Tables with a file that cannot be read, of which that was found when the log was to be applied.
        self._unreadable: dict[StreamId, str] = {}
        self._unread_once: set[StreamId] = set()  # by a digest, which is tried once more

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
        reasons = self._again | self._unreadable
        results |= {stream: _not_compared(stream, reasons.get(stream, rewritten)) for stream in left}
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
        self._again.clear()
        histories = {name: each for name, each in streams.items() if each.write != "upsert"}
        states = {name: each for name, each in streams.items() if name not in histories}
        if pins := self._pinned(histories, results):
            with self._log_may_go(pins):
                results |= self._compare_histories(streams, pins)
        for group in self._groups(states):
            if pins := self._pinned(group, results):
                with self._log_may_go(pins):
                    results |= self._compare_states(pins)
        return results

    def _pinned(
        self, streams: Mapping[StreamId, LaneStream], results: dict[StreamId, VerifiedStream]
    ) -> dict[StreamId, Pin]:
        """Right before they are compared: files that nobody needs any more are kept for `readers.grace`."""
        pins: dict[StreamId, Pin] = {}
        for stream, configured in streams.items():
            if stream in self._unreadable:
                results[stream] = _not_compared(stream, self._unreadable[stream])
                continue
            try:
                pins[stream] = self._pin(stream, configured)
            except NotComparableError as error:
                results[stream] = _not_compared(stream, str(error), _why(configured))
        return pins

    def _groups(self, streams: Mapping[StreamId, LaneStream]) -> Iterator[Mapping[StreamId, LaneStream]]:
        """Tables that are compared at once: all of them, where a snapshot is of all and lasts. Elsewhere
        those that are quickly read, no more than there may be sessions, and each of the others alone."""
        if not (self._reading.finds_place or self._source.snapshot_age_max_s is not None):
            yield streams
            return
        together: dict[StreamId, LaneStream] = {}
        for stream, configured in streams.items():
            info = configured.info
            if not is_light(1, info.estimated_rows, info.bytes):
                yield {stream: configured}
                continue
            together[stream] = configured
            if len(together) == self._sessions:
                yield together
                together = {}
        if together:
            yield together

    @property
    def _sessions(self) -> int:
        """That read from the source at once, where this process holds them."""
        return min(SESSIONS_MAX, self._config.loading.parallel or os.cpu_count() or 1)

    @contextmanager
    def _log_may_go(self, streams: Iterable[StreamId]) -> Iterator[None]:
        """And snapshots may, and the source's tables; tables of ours may have files that nobody can read,
        without which the others are tried again."""
        try:
            yield
        except UnreadableTablesError as error:
            self._unreadable |= error.reasons
        except (LogGoneError, SnapshotLostError, TableChangedError) as error:
            for stream in streams:
                self._try_again(stream, error)

    def _try_again(self, stream: StreamId, error: PenstockError) -> None:
        """With another view of the table; if this was the last time, that is why."""
        if isinstance(error, LogGoneError):
            remedy = "compare it again after a sync, or raise `log.retention`"
        else:
            remedy = _as_clause(error.remedy)
        self._again[stream] = f"{_as_clause(error.message)}; {remedy}"

    def _compare_states(self, pins: Mapping[StreamId, Pin]) -> dict[StreamId, VerifiedStream]:
        """Upsert tables, with the source's rows."""
        results: dict[StreamId, VerifiedStream] = {}
        works: dict[StreamId, StreamWork | None] = {}
        opened = self._held_tables if self._reading.finds_place else self._snapshot
        with opened(pins, results) as (sources, settled):
            if not sources:
                return results
            self._require_reached(min(each.position for each in sources.values()))
            self._read_log_to(max(each.position for each in sources.values()))
            for stream, source in sources.items():
                try:
                    works[stream] = plan_view(settled[stream], pins[stream], self._log, source.position)
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
                    at_position[stream] = replace(view, at=sources[stream].position)
                return results | self._compare_views(settled, at_position, sources)

    def _compare_histories(
        self, streams: Mapping[StreamId, LaneStream], pins: Mapping[StreamId, Pin]
    ) -> dict[StreamId, VerifiedStream]:
        """Append tables, with the log's changes."""
        results: dict[StreamId, VerifiedStream] = {}
        histories: dict[StreamId, History] = {}
        for stream, pin in pins.items():
            try:
                histories[stream] = plan_history(streams[stream], pin, self._log)
            except NothingYetError as error:
                results[stream] = _not_compared(stream, str(error), "nothing yet")
            except NotComparableError as error:
                results[stream] = _not_compared(stream, str(error))
            except LogGoneError as error:
                self._try_again(stream, error)
        with applied(self._spark, {stream: each.work for stream, each in histories.items()}) as outcomes:
            held = {stream: pinned(streams[stream], pins[stream]) for stream in histories}
            expected = {
                stream: replace(held[stream], files=(), letters=())
                if each.work is None
                else only_added(pins[stream], each.work, outcomes[stream])
                for stream, each in histories.items()
            }
            light = are_light([*expected.values(), *held.values()])
            shares = 1 if light else SHARES_PER_CORE * self._stages.cores
            comparisons = {
                stream: compare_with_log(streams[stream], expected[stream], each, held[stream].files, shares)
                for stream, each in histories.items()
            }
            found = self._carry_out(comparisons, expected, light=light)
        for stream, compared in found.items():
            is_empty = compared.verdict == "equal" and not compared.source_rows and held[stream].files
            results[stream] = replace(
                _not_compared(stream, NOTHING_TO_COMPARE, "nothing yet") if is_empty else compared,
                against="change log",
                compared_from=str(histories[stream].start),
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
        self, pins: Mapping[StreamId, Pin], results: dict[StreamId, VerifiedStream]
    ) -> Iterator[tuple[dict[StreamId, SourceState], dict[StreamId, LaneStream]]]:
        """A snapshot of all, and those of the streams around which the catalog stood still."""
        before = fingerprints(self._there(pins, results).values())
        snapshot = self._opened.snapshots.snapshot()
        try:
            settled = self._settled(pins, before, results)
            state = SourceState(snapshot.consistent_point, Under(self._reading, snapshot.name))
            yield dict.fromkeys(settled, state), settled
        finally:
            self._opened.snapshots.release_snapshot()

    @contextmanager
    def _held_tables(
        self, pins: Mapping[StreamId, Pin], results: dict[StreamId, VerifiedStream]
    ) -> Iterator[tuple[dict[StreamId, SourceState], dict[StreamId, LaneStream]]]:
        """The same where snapshots cannot be shared: of each table one of its own, at its own position.

        What a position is, is known from one that was noted before: places are counted from there.
        """
        now = self._there(pins, results)
        before = fingerprints(now.values())
        noted = self._opened.snapshots.snapshot()
        held: dict[StreamId, HeldTable] = {}
        with ExitStack() as tables:
            for stream, configured in now.items():
                try:
                    info = configured.info
                    readers = -(-max(1, info.estimated_rows) // self._config.loading.rows_per_chunk)
                    readers = min(readers, max(1, self._sessions // len(pins)))
                    held[stream] = tables.enter_context(self._reading.held(info, readers))
                except NoSnapshotError as error:
                    reason = f"{_as_clause(error.message)}; {_as_clause(error.remedy)}"
                    results[stream] = _not_compared(stream, reason)
            settled = self._settled(held, before, results)
            sources = {}
            for stream in settled:
                position = noted.position_of(held[stream].place)
                if position is None:
                    self._again[stream] = "another server answers than the one whose log is read; try again"
                else:
                    sources[stream] = SourceState(position, Under(self._reading, held=held[stream]))
            yield sources, settled

    def _there(
        self, streams: Iterable[StreamId], results: dict[StreamId, VerifiedStream]
    ) -> dict[StreamId, LaneStream]:
        """Those whose tables are still at the source: others are compared, and their turn may come late."""
        now = {each.info.stream: each for each in resolve_from_source(self._config, some_may_be_gone=True)}
        results.update({stream: _not_compared(stream, _GONE) for stream in streams if stream not in now})
        return {stream: now[stream] for stream in streams if stream in now}

    def _settled(
        self,
        streams: Iterable[StreamId],
        before: Mapping[StreamId, object],
        results: dict[StreamId, VerifiedStream],
    ) -> dict[StreamId, LaneStream]:
        """Those whose columns are still what they were, of which one moment can be read."""
        wanted = set(streams)
        now = [
            each
            for each in resolve_from_source(self._config, at_replica=True, some_may_be_gone=True)
            if each.info.stream in wanted
        ]
        after = fingerprints(now)
        settled = {
            each.info.stream: each for each in now if after[each.info.stream] == before.get(each.info.stream)
        }
        for stream, configured in list(settled.items()):
            if not (self._reading.finds_place or self._reading.shows_one_moment(configured.info)):
                reason = f"the source shows no one moment of a {configured.info.kind}; compare the others"
                results[stream] = _not_compared(stream, reason, "by its mode")
                del settled[stream]
        return settled

    def _rate(self, sources: Iterable[SourceState], *, light: bool) -> float | None:
        """`load.rows_per_second`, for one of the shares that are read at a time."""
        limit = self._config.loading.rows_per_second
        if limit is None:
            return None
        held = sum(each.under.held.readers for each in sources if each.under.held is not None)
        return share(limit, held or (os.cpu_count() or 1 if light else self._stages.cores))

    def _require_reached(self, position: Lsn) -> None:
        at = self._options.at
        if at is not None and at > position:
            raise ConfigError(
                f"The source is at {position}, and not yet at {at}.",
                remedy="Name a position that the tables have reached; `penstock status` shows it.",
            )

    def _read_log_to(self, position: Lsn) -> None:
        target = position
        if self._source.log_may_be_ahead:
            # A cluster time is passed when there is a later one, which nobody else may make for a while.
            target = max(position, self._opened.log.note_target())
        end = log_read_to(self._opened.log, target, self._options.still_s)
        if end < position:
            raise SourceError(f"The log was sealed to {end}, and not to {position}.", remedy="Try again.")

    def _compare_views(
        self,
        streams: Mapping[StreamId, LaneStream],
        at_position: Mapping[StreamId, View],
        sources: Mapping[StreamId, SourceState],
    ) -> dict[StreamId, VerifiedStream]:
        results: dict[StreamId, VerifiedStream] = {}
        comparisons: dict[StreamId, Comparison] = {}
        light = are_light(at_position.values(), sum(streams[name].info.bytes for name in at_position))
        shares = 1 if light else SHARES_PER_CORE * self._stages.cores
        rate = self._rate(sources.values(), light=light)
        with self._reading.session() as session:
            for stream, view in at_position.items():
                info = streams[stream].info
                rows = self._config.loading.rows_per_chunk
                cut = Cut.of(session, self._reading, info, rows, self._options.sample)
                try:
                    under = replace(sources[stream].under, rows_per_second=rate)
                    comparisons[stream] = compare_with_source(
                        info, view, under, cut, shares, secret=self._options.secret
                    )
                except NotComparableError as error:
                    results[stream] = _not_compared(stream, str(error))
        for stream, told in self._carry_out(comparisons, at_position, light=light).items():
            results[stream] = replace(
                told,
                position=str(sources[stream].position),
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
        results: dict[StreamId, VerifiedStream] = {}
        for (stream, comparison), found in zip(comparisons.items(), digests, strict=True):
            if found is None:
                continue
            if isinstance(found, Unreadable):
                if stream in self._unread_once:
                    results[stream] = _not_compared(stream, found.reason)
                else:  # rounds may have taken the file away: a newer view of the table does not need it
                    self._unread_once.add(stream)
                    self._again[stream] = found.reason
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
            moved = None
            if self._source.log_may_be_ahead and view.at is not None:
                self._again[stream] = "its rows change faster than they are compared; try again"
                moved = self._moved(stream, comparison, view.at)
                if moved is None:
                    return None
            telling = Telling(
                self._options.limit,
                view.letters,
                view.pin.table.new_staging_directory(),
                self._options.show_values,
                moved,
            )
            drilled = look_into(self._stages, comparison, digests, told, differing, telling, light=light)
            if drilled is None:
                return None
            if view.at is not None:
                self.found[stream] = view.at, drilled
            told = drilled.stream
        self._listener.stream_finished(str(stream), "verify", told.source_rows)
        return replace(told, seconds=time.monotonic() - began)

    def _moved(self, stream: StreamId, comparison: Comparison, at: Lsn) -> Keys | None:
        """Keys that changed since; None: nobody knows which."""
        now = self._opened.snapshots.snapshot().consistent_point
        self._opened.snapshots.release_snapshot()
        self._read_log_to(now)
        schema, secret = comparison.target.schema, comparison.hashing.secret
        return moved_keys(self._log, stream, schema, at, now, secret)


def _as_clause(sentence: str) -> str:
    return f"{sentence[:1].lower()}{sentence[1:].rstrip('.')}"


def _why(configured: LaneStream) -> NotCompared:
    is_followed = configured.mode == "cdc" or (configured.reads_log and configured.write == "append")
    return "for now" if is_followed else "by its mode"


def _not_compared(stream: StreamId, reason: str, why: NotCompared = "for now") -> VerifiedStream:
    return VerifiedStream(str(stream), "not compared", reason, why)
