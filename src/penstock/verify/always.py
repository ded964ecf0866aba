"""Comparisons that are made again and again while `penstock run` is at work (`verify` in the pipeline file).

A thread of the lake process, with a connection of its own to capture: turns go on meanwhile, in the same
Spark session. A comparison that fails is a note and a number, and is tried again when the next one is due; it
never ends the lane. When the next is due is known from the newest such result in the state directory, so
that restarts neither put it off for ever nor bring it on, and so are the differences that were found: a
restart does not make them forgotten. The first comparison of all waits for the first load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from penstock import metrics
from penstock.config import Config
from penstock.core.errors import PenstockError
from penstock.core.verify_report import VerifiedStream
from penstock.lake.spark_starter import SparkStarter
from penstock.metrics import Sample
from penstock.verify import reports
from penstock.verify.opened import beside
from penstock.verify.run import Verification, VerifyOptions

_LOOK_EVERY_S = 1.0
_logger = structlog.get_logger("penstock.verify")


class Verifying:
    """`is_ready`: whether the lane is in its turns, so that there is something to compare. `has_loaded`:
    whether there was a moment at which no stream was to be loaded."""

    def __init__(
        self,
        config: Config,
        where: Mapping[str, str | None],
        spark: SparkStarter,
        is_ready: Callable[[], bool],
        has_loaded: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        assert config.verify.every is not None, "asked before"
        self._config = config
        self._where = where
        self._spark = spark
        self._is_ready = is_ready
        self._has_loaded = has_loaded
        self._note = note
        self._every_s = config.verify.every.total_seconds()
        self._seconds, self._failures = 0.0, 0
        self._streams: frozenset[str] | None = (
            None  # those of the newest comparison by schedule: all there are
        )
        self._heard_at = -1
        self._known: dict[str, VerifiedStream] = {}
        self.hear()
        self._began_at_s = reports.last_began_s(config.state)
        self._due_at = 0.0 if self._began_at_s is None else self._began_at_s + self._every_s

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(_LOOK_EVERY_S):
            self.hear()
            if self.is_due():
                self._due_at = time.time() + self._every_s
                self._verify()

    def is_due(self) -> bool:
        is_first = self._began_at_s is None
        return time.time() >= self._due_at and self._is_ready() and (not is_first or self._has_loaded())

    def hear(self) -> None:
        """Of results that came since the last look, those of who compares by hand among them."""
        changed_at = reports.changed_at(self._config.state)
        if changed_at != self._heard_at:
            self._heard_at = changed_at
            known = reports.known(self._config.state)
            streams = self._streams if self._streams is not None else reports.of_pipeline(self._config, known)
            self._known = {name: each for name, each in known.items() if name in streams}

    def _verify(self) -> None:
        began = time.monotonic()
        try:
            address, token = self._where["address"], self._where.get("token")
            assert address is not None
            with beside(self._config, address, token, self._where.get("certificate")) as opened:
                options = VerifyOptions(sample=self._config.verify.sample)
                listener = _Notes(self._note)
                report = Verification(self._config, opened, self._spark, listener, options).run()
            reports.save(self._config.state, replace(report, by_schedule=True))
            self._streams = frozenset(each.name for each in report.streams)
            self._heard_at = -1
            self.hear()
            self._began_at_s = reports.began_at_s(report.began_at)
            for stream in report.streams:
                if stream.verdict == "different":
                    self._note(words_of(stream))
        except Exception as error:
            self._failures += 1
            if not isinstance(error, PenstockError):
                _logger.warning("a comparison failed unexpectedly", kind=type(error).__name__)
            said = str(error) if isinstance(error, PenstockError) else type(error).__name__
            self._note(f"Tables could not be compared with their source: {said}")
        finally:
            self._seconds += time.monotonic() - began

    def samples(self) -> list[Sample]:
        found: list[Sample] = [
            (metrics.VERIFY_SECONDS.name, {}, self._seconds),
            (metrics.VERIFY_FAILURES.name, {}, float(self._failures)),
        ]
        if self._began_at_s is None:
            return found
        found.append((metrics.VERIFY_TIMESTAMP.name, {}, self._began_at_s))
        for stream in self._known.values():
            labels = {"stream": stream.stream}
            found.append((metrics.VERIFY_DIFFERENCES.name, labels, float(stream.differing_at_least)))
            found.append((metrics.VERIFY_NOT_COMPARED.name, labels, float(stream.why_not == "for now")))
        return found


def words_of(stream: VerifiedStream) -> str:
    """A difference, in one sentence and without a value."""
    return (
        f"{stream.stream} differs from its source at {stream.position}: {stream.missing:,} rows are missing, "
        f"{stream.extra:,} are extra and {stream.different:,} different; `penstock verify` tells which."
    )


class _Notes:
    """A listener that passes on what people should know."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    def stream_started(self, stream: str, phase: str, rows_estimated: int | None) -> None: ...

    def progressed(self, stream: str, phase: str, rows_total: int, bytes_total: int) -> None: ...

    def stream_finished(self, stream: str, phase: str, rows: int) -> None: ...
