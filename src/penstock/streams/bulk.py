"""A backlog that is worth many cores: ranges of the change log, each encoded to a file by whoever has cores.

A range ends where a step does, so it is whole transactions; encoding it is a pure function of the log and may
be done twice. The lane hands the files over in the order of the log, through its one publisher: what is sent
and in which order is the same as without (correctness 48).
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.capture.tail_reader import LogReader
from penstock.capture.transactions import MessageConverter
from penstock.core.position import Lsn
from penstock.core.stream import MESSAGES, StreamId
from penstock.log.reader import ChangeLog
from penstock.log.undecided import can_be_undecided, has_undecided
from penstock.streams.conversion import Conversion
from penstock.streams.events import Batch
from penstock.streams.followed import FollowedStream
from penstock.streams.settings import StreamSettings

RANGE_BYTES_MAX = 32 << 20  # of the log: some ten times as much as events
RANGES_MIN = 8


@dataclass(frozen=True, slots=True)
class LogRangeToEncode:
    """`path`: the file that its batches go to."""

    settings: StreamSettings
    streams: Mapping[StreamId, FollowedStream]
    after: Lsn
    to: Lsn
    path: Path


class BulkEncoder(Protocol):
    def encoded(
        self,
        settings: StreamSettings,
        streams: Mapping[StreamId, FollowedStream],
        after: Lsn,
        ends: Sequence[Lsn],
    ) -> Generator[Batch]:
        """The batches of all ranges that these ends cut the log after `after` into, in the log's order."""


def backlog(settings: StreamSettings, streams: Mapping[StreamId, FollowedStream], after: Lsn) -> list[Lsn]:
    """The ends of the ranges that wait in the log; none, if they are not worth it.

    Nor if a stream lacks changes there, or its filter cannot be asked of some: it stands still then, which
    the lane alone knows.
    """
    log = ChangeLog(settings.log_directory)
    end = log.end()
    waiting = sum(manifest.bytes for manifest in log.after(after))
    if end is None or waiting < settings.section.spark_bytes_min or log.untold(after, end):
        return []
    for name, stream in streams.items():
        if not can_be_undecided(stream.table.schema.columns, stream.selection.condition):
            continue
        files = log.files(name, after, end).files
        if has_undecided(files, after, end, stream.table.schema, stream.selection.condition):
            return []
    return log.boundaries(after, end, min(RANGE_BYTES_MAX, waiting // RANGES_MIN))


def encode_range(task: LogRangeToEncode) -> Path:
    """Runs anywhere that has the log and reaches the source. The file: one pickled `Batch` after another."""
    conversion = Conversion.of_source(task.settings, task.streams)
    converter = MessageConverter()
    reader = LogReader(task.settings.log_directory, frozenset({*task.streams, MESSAGES}))
    task.path.parent.mkdir(parents=True, exist_ok=True)
    with open(task.path, "wb") as file:
        for item in reader.read(task.after, task.to):
            for fragment in converter.fragments(item):
                made = [
                    made for changes in fragment.changes for made in conversion.events(changes) if len(made)
                ]
                pickle.dump(Batch(fragment.end, made, fragment.is_last), file, protocol=5)
    return task.path


def read_range(path: Path) -> Iterator[Batch]:
    """What `encode_range` wrote; the file is gone at the end."""
    with open(path, "rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                break
    path.unlink()
