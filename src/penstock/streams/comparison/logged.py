"""What a topic should hold of a range of the log: its changes as the lane makes events of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.capture.tail_reader import LogReader
from penstock.capture.transactions import MessageConverter
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.reader import ChangeLog
from penstock.streams.comparison.ranges import Range, least_start
from penstock.streams.conversion import Conversion
from penstock.streams.events import Events
from penstock.streams.followed import FollowedStream
from penstock.streams.settings import StreamSettings


def rows_in_log(log: ChangeLog, ranges: Mapping[StreamId, Range]) -> int:
    """About how many; whole files are counted."""
    return sum(
        file.rows
        for stream, within in ranges.items()
        if within.start < within.end
        for file in log.files(stream, within.start, within.end).files
    )


def logged_events(
    settings: StreamSettings, followed: Mapping[StreamId, FollowedStream], ranges: Mapping[StreamId, Range]
) -> Iterator[Events]:
    """In the order of the log for each stream. `PositionGoneError`, or a file that is not there: it went."""
    end = max(each.end for each in ranges.values())
    start = least_start(ranges)
    if start >= end:
        return
    conversion = Conversion.of_source(settings, followed)
    converter = MessageConverter()
    reader = LogReader(settings.log_directory, frozenset(ranges))
    for item in reader.read(start, _step_end(settings, end)):
        for fragment in converter.fragments(item):
            for changes in fragment.changes:
                within = ranges[changes.stream]
                if (part := changes.between(within.start, within.end)) is not None:
                    made = conversion.events(part)
                    # What is told of columns is told anew with every start.
                    yield from (each for each in made if each.stream == part.stream and len(each))


def _step_end(settings: StreamSettings, position: Lsn) -> Lsn:
    """Steps are read whole; what lies behind the range is left out of each."""
    return next((step.end for step in ChangeLog(settings.log_directory).after(Lsn(position - 1))), position)
