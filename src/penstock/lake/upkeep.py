"""When tables are looked after: by hand, or after a sync, each of them once in `maintenance.every`.

The times are kept in the state directory. They are no promise: without them a table is looked after a little
later. A table that is new there is looked at for the first time when `every` has passed, so that what was
just loaded is not written twice in one sync.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock import durable
from penstock.config import Config
from penstock.core.errors import PenstockError
from penstock.core.report import CompactedStream, CompactReport, ProgressListener
from penstock.core.stream import StreamId
from penstock.destinations.iceberg import IcebergDestination
from penstock.destinations.iceberg_health import Limits
from penstock.lake.destination import destination_of
from penstock.lake.maintenance import Maintenance

FORMAT_VERSION = 1
PARQUET_NEEDS_NONE = (
    "Parquet tables need no compaction: a commit writes the files it touches anew, and every sync removes "
    "the versions that no reader can still be reading."
)


@dataclass(frozen=True, slots=True)
class Times:
    """Since when a table was not looked at, and since when nobody looked for orphans; seconds since 1970."""

    looked_at: float
    orphans: float


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
    )


def compact(
    config: Config,
    spark: Callable[[], SparkSession],
    streams: Sequence[StreamId],
    listener: ProgressListener,
    *,
    dry_run: bool,
) -> CompactReport:
    """Do what is due to these tables now, or say what is. Whoever calls holds the lock of a sync."""
    begun = time.monotonic()
    destination = destination_of(config)
    if not isinstance(destination, IcebergDestination):
        return CompactReport([], [PARQUET_NEEDS_NONE], 0.0)
    maintenance = Maintenance(destination, limits_of(config), spark, listener)
    look = maintenance.look_at if dry_run else maintenance.compact
    timetable = Timetable(config.state / "maintenance.json")
    found: list[CompactedStream] = []
    for stream in streams:
        if (each := look(stream, by_hand=True)) is None:
            continue
        found.append(each)
        if not dry_run:
            timetable.write(timetable.read() | {str(stream): Times(time.time(), time.time())})
    return CompactReport(found, [], round(time.monotonic() - begun, 3))


def after_sync(
    config: Config,
    spark: Callable[[], SparkSession],
    streams: Sequence[StreamId],
    listener: ProgressListener,
    *,
    tables_max: int | None = None,
) -> None:
    """Do what is due by the timetable. What fails here is a note: the sync has done what it was to do.

    `tables_max`: to no more tables than that now, since others wait.
    """
    every = config.maintenance.every
    if every is None or config.destination.type != "iceberg":
        return
    timetable = Timetable(config.state / "maintenance.json")
    now = time.time()
    known = timetable.read()
    times = {str(stream): Times(now, now) for stream in streams} | known
    if times != known:
        with suppress(PenstockError):
            timetable.write(times)
    turns = [stream for stream in streams if now - times[str(stream)].looked_at >= every.total_seconds()]
    if not turns:
        return
    destination = destination_of(config)
    assert isinstance(destination, IcebergDestination)
    maintenance = Maintenance(destination, limits_of(config), spark, listener)
    for stream in turns[:tables_max]:
        before = times[str(stream)]
        try:
            done = maintenance.compact(stream, by_hand=False, orphans_s=now - before.orphans)
        except (PenstockError, PySparkException) as error:
            why = error.message if isinstance(error, PenstockError) else f"Spark says {type(error).__name__}."
            listener.note(f"{stream} was not looked after: {why} The table is as it was.")
            done = None
        looked = replace(before, looked_at=now)
        times[str(stream)] = replace(looked, orphans=now) if done and "orphans" in done.due else looked
        with suppress(PenstockError):  # then it is looked after again sooner
            timetable.write(times)
