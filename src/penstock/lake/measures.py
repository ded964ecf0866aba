"""What the lake lane of `penstock run` has done and how far its tables are, as samples.

Counted over the terms of a process: a counter never falls. What is true of a moment is said only during a
term: after it another instance may have moved the tables on. Called from the thread that takes turns, the one
that loads, and the one that sends the samples; each number is written by one of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from penstock import metrics
from penstock.core.stream import StreamId
from penstock.destinations.records import TableRecord
from penstock.lake.freshness import Freshness
from penstock.lake.lane import LakeLane
from penstock.log.reader import LogFile
from penstock.metrics import Sample

_OPERATIONS = {"i": "insert", "u": "update", "d": "delete", "t": "truncate"}
_LANE = {"lane": "lake"}
_logger = structlog.get_logger("penstock.lake")


@dataclass(frozen=True, slots=True)
class _Table:
    """What a table's newest commit comes to; `visible`: readers see it."""

    rows: int
    files: int
    dead_letters: int
    visible: bool


def _table(record: TableRecord) -> _Table:
    return _Table(record.rows, record.file_count, record.dead_letters.count, record.directory is not None)


class LaneMeasures:
    """Listens to a lane, as its `ProgressListener` and as its `RoundListener`."""

    def __init__(self, log: Path, note: Callable[[str], None]) -> None:
        self._say = note
        self._lane: LakeLane | None = None
        self._freshness = Freshness(log)
        self._applied: Counter[tuple[str, str]] = Counter()
        self._loaded: Counter[str] = Counter()
        self._tables: dict[str, _Table] = {}
        self._loading: dict[str, tuple[int, int | None]] = {}  # rows read, rows estimated
        self._rounds, self._round_seconds, self._times_anew = 0, 0.0, 0
        self._others: list[Callable[[], list[Sample]]] = []

    def also(self, samples: Callable[[], list[Sample]]) -> None:
        """Send these besides."""
        self._others.append(samples)

    def watch(self, lane: LakeLane) -> None:
        """From now on the numbers are this lane's."""
        lane.tell_of_rounds(self)
        self._freshness.open_log()  # it may be another one
        records = {str(stream): lane.record(stream) for stream in lane.streams}
        self._tables = {name: _table(record) for name, record in records.items() if record is not None}
        self._lane = lane

    def begun_anew(self) -> None:
        """A term has ended: until the next one nothing is known of how far the tables are."""
        self._times_anew += 1
        self._lane = None
        self._tables, self._loading = {}, {}
        self._freshness.forget()

    def send(self, to: Callable[[list[Sample]], None], ended: threading.Event, every_s: float = 1.0) -> None:
        """Until `ended`. Whatever fails is tried again; it may be that the log is just being set aside."""
        failing = ""
        while not ended.wait(every_s):
            try:
                to(self.samples())
                failing = ""
            except Exception as error:
                if (kind := type(error).__name__) != failing:
                    _logger.warning("no metrics of the lake lane", kind=kind)
                failing = kind

    # Rounds

    def committed(self, stream: StreamId, files: Sequence[LogFile], record: TableRecord) -> None:
        self._freshness.committed(stream, files)
        self._tables[str(stream)] = _table(record)
        for file in files:
            for operation, count in file.ops.items():
                self._applied[str(stream), _OPERATIONS[operation]] += count

    def round_done(self, seconds: float) -> None:
        self._rounds += 1
        self._round_seconds += seconds

    # Progress

    def stream_started(self, stream: str, phase: str, rows_estimated: int | None) -> None:
        if phase == "load":
            self._loading[stream] = (0, rows_estimated)

    def progressed(self, stream: str, phase: str, rows_total: int, bytes_total: int) -> None:
        if phase == "load":
            self._loading[stream] = (rows_total, self._loading.get(stream, (0, None))[1])

    def stream_finished(self, stream: str, phase: str, rows: int) -> None:
        if phase == "load":
            self._loaded[stream] += rows
            self._loading.pop(stream, None)

    def note(self, message: str) -> None:
        self._say(message)

    def samples(self) -> list[Sample]:
        """All of it, as of now."""
        found: list[Sample] = [
            (metrics.ROUNDS.name, {}, float(self._rounds)),
            (metrics.ROUND_SECONDS.name, {}, self._round_seconds),
            (metrics.ROUND_RETRIES.name, _LANE, float(self._times_anew)),
        ]
        for (stream, operation), count in list(self._applied.items()):
            labels = {"stream": stream, "operation": operation}
            found.append((metrics.ROWS_APPLIED.name, labels, float(count)))
        tables, loading = dict(self._tables), dict(self._loading)
        visible = {name: each for name, each in tables.items() if each.visible}
        for metric, values in (
            (metrics.ROWS_LOADED, dict(self._loaded)),
            (metrics.LOAD_ROWS, {name: read for name, (read, _) in loading.items()}),
            (metrics.LOAD_ROWS_ESTIMATED, {name: rows for name, (_, rows) in loading.items() if rows}),
            (metrics.TABLE_ROWS, {name: each.rows for name, each in visible.items()}),
            (metrics.TABLE_FILES, {name: each.files for name, each in visible.items()}),
            (metrics.DEAD_LETTERS, {name: each.dead_letters for name, each in tables.items()}),
            (metrics.FRESHNESS_SECONDS, self._freshness.of_newest_round()),
            (metrics.STREAM_LAG_SECONDS, self._lag()),
            (metrics.STREAM_LAG_BYTES, self._freshness.lag_bytes() if self._lane is not None else {}),
        ):
            found += [(metric.name, {"stream": str(name)}, float(value)) for name, value in values.items()]
        return [*found, *(sample for others in self._others for sample in others())]

    def _lag(self) -> dict[StreamId, float]:
        lane = self._lane
        return {} if lane is None else self._freshness.lag(lane.positions())
