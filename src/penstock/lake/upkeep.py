"""When tables are looked after: by hand, after a sync, or beside a run; each once in `maintenance.every`.

The times are kept in the state directory. They are no promise: without them a table is looked after a little
later. A table that is new there is looked at for the first time when `every` has passed, so that what was
just loaded is not written twice in one sync.

It needs no lock of the rounds: one whose files were merged under it looks its rows up again, and a rewrite
whose files a round has touched is dropped (`maintenance`). Only where rewrites lose again and again rounds
wait, for one short pass over data files (`Upkeep`). One at a time looks after the tables of a state directory
(`LOCK`): two would merge the same files, and drop what one of them did.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock import durable, logs
from penstock.config import Config
from penstock.core.errors import PenstockError
from penstock.core.report import CompactedStream, CompactReport, ProgressListener
from penstock.core.stream import StreamId
from penstock.destinations.iceberg import IcebergDestination
from penstock.destinations.iceberg_health import Limits
from penstock.destinations.parquet import ParquetDestination
from penstock.file_lock import lock_file
from penstock.lake.destination import destination_of
from penstock.lake.maintenance import PASS_BYTES, Alone, GaveWayError, Maintenance

FORMAT_VERSION = 1
LOCK = "maintenance.lock"
#: A rewrite that lost to rounds so many times in a row is made between two of them, and is a short one.
LOST_MAX = 3
SHORT_PASS_BYTES = 256 * 1024**2
#: How long it waits for the end of a round, while others wait for `LOCK`: a turn that loads takes hours.
ALONE_WAIT_S = 30.0
_LOOK_EVERY_S = 0.2
#: Between two tables, so that who waits for `LOCK` has it before the next.
PAUSE_S = 2 * _LOOK_EVERY_S
PARQUET_NEEDS_NONE = (
    "Parquet tables need no compaction: a commit writes the files it touches anew and merges small ones, and "
    "every sync removes the versions that no reader can still be reading."
)


@dataclass(frozen=True, slots=True)
class Times:
    """Since when a table was not looked at, and since when nobody looked for orphans; seconds since 1970."""

    looked_at: float
    orphans: float

    def after(self, now: float, *, is_done: bool, has_swept: bool) -> Times:
        """What was not done, since another writer came first or the end did, stays due."""
        return Times(now if is_done else self.looked_at, now if has_swept else self.orphans)


class Timetable:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Times]:
        """Empty if it is not there or cannot be read: it is no more than a help."""
        try:
            document = json.loads(self._path.read_bytes())
            if document["format_version"] > FORMAT_VERSION:
                return {}
            return {stream: Times(**times) for stream, times in document["streams"].items()}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def write(self, times: Mapping[str, Times]) -> None:
        streams = {
            stream: {"looked_at": each.looked_at, "orphans": each.orphans}
            for stream, each in sorted(times.items())
        }
        content = {"format_version": FORMAT_VERSION, "streams": streams}
        durable.replace(self._path, durable.to_json_bytes(content))


def limits_of(config: Config) -> Limits:
    settings = config.maintenance
    age_max = max(settings.snapshot_age_max, config.readers.grace)
    return Limits(
        target_file_bytes=int(settings.target_file_bytes),
        small_file_ratio=settings.small_file_ratio,
        delete_ratio=settings.delete_ratio,
        snapshot_age_max_s=age_max.total_seconds(),
        snapshots_min=settings.snapshots_min,
        orphan_age_s=settings.orphan_age.total_seconds(),
        snapshots_max=settings.snapshots_max,
        readers_grace_s=config.readers.grace.total_seconds(),
    )


@contextmanager
def looking_after(state: Path) -> Iterator[bool]:
    """Whether nobody else looks after the tables; nobody else will until the block ends."""
    state.mkdir(parents=True, exist_ok=True)
    descriptor = lock_file(state / LOCK)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def held(lock: threading.Lock, is_wanted: Callable[[], bool], otherwise: type[Exception]) -> Iterator[None]:
    """Hold a lock that others hold for long; `otherwise` is raised if it is no longer wanted meanwhile."""
    while not lock.acquire(timeout=_LOOK_EVERY_S):
        if not is_wanted():
            raise otherwise
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _when_nobody_looks_after(state: Path, listener: ProgressListener) -> Iterator[None]:
    is_told = False
    while True:
        with looking_after(state) as alone:
            if alone:
                yield
                return
        if not is_told:
            listener.note("Waiting: another process is looking after these tables.")
            is_told = True
        time.sleep(_LOOK_EVERY_S)


def compact(
    config: Config,
    spark: Callable[[], SparkSession],
    streams: Sequence[StreamId],
    listener: ProgressListener,
    *,
    dry_run: bool,
) -> CompactReport:
    """Do what is due to these tables now, or say what is, whoever syncs them meanwhile."""
    begun = time.monotonic()
    destination = destination_of(config)
    if not isinstance(destination, IcebergDestination):
        return CompactReport([], [PARQUET_NEEDS_NONE], 0.0)
    maintenance = Maintenance(destination, limits_of(config), spark, listener)
    look = maintenance.look_at if dry_run else maintenance.compact
    timetable = Timetable(config.state / "maintenance.json")
    found: list[CompactedStream] = []
    with nullcontext() if dry_run else _when_nobody_looks_after(config.state, listener):
        for stream in streams:
            now = time.time()
            if (each := look(stream, by_hand=True)) is None:
                continue
            found.append(each)
            if not dry_run:
                times = timetable.read()
                before = times.get(str(stream), Times(now, now))
                after = before.after(now, is_done=not maintenance.gave_way, has_swept=maintenance.has_swept)
                timetable.write(times | {str(stream): after})
    return CompactReport(found, [], round(time.monotonic() - begun, 3))


def after_sync(
    config: Config,
    spark: Callable[[], SparkSession],
    streams: Sequence[StreamId],
    listener: ProgressListener,
) -> None:
    """Do what is due by the timetable. What fails here is a note: the sync has done what it was to do."""
    if not _is_by_schedule(config):
        return
    with looking_after(config.state) as alone:
        if alone:
            schedule = _Schedule(config, spark, listener, cache(lambda: destination_of(config)))
            for stream in schedule.due(streams):
                schedule.look_after(stream)


class Upkeep:
    """Looks after tables beside the rounds of a run, in a thread of its own, one table at a time.

    A rewrite that loses to a round is tried again soon with a quarter of the bytes, which take a quarter of
    the time. Where rounds touch the same files all the time even that would lose for ever: so after
    `LOST_MAX` times `rounds`, which each of them holds, is held for one pass of `SHORT_PASS_BYTES`; if a
    round goes on for long, the pass gives way too, and is tried again.
    When `leads` says no more, or the end has come, no other table is begun, nor a step that removes anything.
    """

    def __init__(
        self,
        config: Config,
        spark: Callable[[], SparkSession],
        listener: ProgressListener,
        rounds: threading.Lock,
        leads: Callable[[], bool],
    ) -> None:
        self._config = config
        self._spark = spark
        self._listener = listener
        self._rounds = rounds
        self._leads = leads
        #: One for all turns: a catalog that was opened stays open until the process ends.
        self._destination = cache(lambda: destination_of(config))
        self._lost: dict[StreamId, int] = {}
        self._turns: dict[StreamId, int] = {}  # the last one that each had
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def begin(self, streams: Sequence[StreamId]) -> None:
        """Look after those that are due, each once, unless some are being looked after. Returns at once."""
        if not _is_by_schedule(self._config) or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(
            target=self._turn, args=(list(streams),), name="lake-upkeep", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Spark is about to go. What is under way fails, as in a crash, and nobody needs to hear of it."""
        self._ended.set()

    def _turn(self, streams: Sequence[StreamId]) -> None:
        left = list(streams)
        try:
            while self._goes_on() and (stream := self._look_after_next(left)) is not None:
                left.remove(stream)  # those that stay due do not keep others waiting
                self._ended.wait(PAUSE_S if left else 0)
        except Exception as error:  # of Java's side, or a defect: neither is a reason to end the rounds
            if not self._ended.is_set():
                logs.log_unexpected("looking after tables", error)

    def _look_after_next(self, streams: Sequence[StreamId]) -> StreamId | None:
        """Which one it was; None if none is due, or somebody else looks after them."""
        with looking_after(self._config.state) as alone:
            if not alone:
                return None
            schedule = _Schedule(self._config, self._spark, self._listener, self._destination)
            due = schedule.due(streams)
            if not due:
                return None
            stream = min(due, key=lambda each: self._turns.get(each, 0))
            self._look_after(schedule, stream)
            return stream

    def _look_after(self, schedule: _Schedule, stream: StreamId) -> None:
        self._turns[stream] = max(self._turns.values(), default=0) + 1
        lost = self._lost.get(stream, 0)
        pass_bytes = max(PASS_BYTES >> 2 * lost, SHORT_PASS_BYTES)
        is_alone = lost >= LOST_MAX
        won = schedule.look_after(
            stream,
            stays_due=True,
            pass_bytes=pass_bytes,
            alone=self._between_rounds if is_alone else nullcontext,
            goes_on=self._goes_on,
        )
        if not is_alone:
            self._lost[stream] = max(lost - 1, 0) if won else lost + 1
        else:  # the next one is beside rounds again, whoever was first, and also if a round went on for long
            self._lost[stream] = LOST_MAX - 1

    @contextmanager
    def _between_rounds(self) -> Iterator[None]:
        until = time.monotonic() + ALONE_WAIT_S

        def waits() -> bool:
            return time.monotonic() < until and self._goes_on()

        with held(self._rounds, waits, GaveWayError):
            yield

    def _goes_on(self) -> bool:
        return self._leads() and not self._ended.is_set()


class _Schedule:
    """What is due by the timetable. Whoever has one is the only one that looks after the tables."""

    def __init__(
        self,
        config: Config,
        spark: Callable[[], SparkSession],
        listener: ProgressListener,
        destination: Callable[[], ParquetDestination | IcebergDestination],
    ) -> None:
        self._config = config
        self._spark = spark
        self._listener = listener
        self._destination = destination
        self._timetable = Timetable(config.state / "maintenance.json")
        self._times: dict[str, Times] = {}
        self._now = time.time()

    def due(self, streams: Sequence[StreamId]) -> list[StreamId]:
        every = self._config.maintenance.every
        assert every is not None
        known = self._timetable.read()
        self._times = {str(stream): Times(self._now, self._now) for stream in streams} | known
        if self._times != known:
            self._write()
        every_s = every.total_seconds()
        due = [stream for stream in streams if self._now - self._times[str(stream)].looked_at >= every_s]
        return sorted(due, key=lambda stream: self._times[str(stream)].looked_at)

    def look_after(
        self,
        stream: StreamId,
        *,
        stays_due: bool = False,
        pass_bytes: int = PASS_BYTES,
        alone: Alone = nullcontext,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> bool:
        """False if another writer was first.

        `stays_due`: then it is due again at once; so it is after less than a whole pass that did some good.
        """
        before = self._times[str(stream)]
        destination = self._destination()  # not before: it may have Java started
        assert isinstance(destination, IcebergDestination)
        destination.forget(stream)
        maintenance = Maintenance(destination, limits_of(self._config), self._spark, self._listener)
        try:
            done = maintenance.compact(
                stream,
                by_hand=False,
                orphans_s=self._now - before.orphans,
                pass_bytes=pass_bytes,
                alone=alone,
                goes_on=goes_on,
            )
        except (PenstockError, PySparkException) as error:
            why = error.message if isinstance(error, PenstockError) else f"Spark says {type(error).__name__}."
            self._listener.note(f"{stream} was not looked after: {why} The table is as it was.")
            done = None
        lost = maintenance.gave_way and done is not None  # what failed may fail again
        is_part = pass_bytes < PASS_BYTES and done is not None and _has_fewer_files(done)
        is_done = not (stays_due and (lost or is_part))
        after = before.after(self._now, is_done=is_done, has_swept=maintenance.has_swept)
        if after != before:
            self._times[str(stream)] = after
            self._write()
        return not lost

    def _write(self) -> None:
        with suppress(PenstockError):  # then it is looked after again sooner
            self._timetable.write(self._times)


def _has_fewer_files(done: CompactedStream) -> bool:
    before, after = done.before, done.after
    return (
        after is not None and after.data_files + after.delete_files < before.data_files + before.delete_files
    )


def _is_by_schedule(config: Config) -> bool:
    return config.maintenance.every is not None and config.destination.type == "iceberg"
