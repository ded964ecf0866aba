"""One comparison of a Kafka lane with the change log, from the lane's standing to what differs."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.capture.remote import RemoteCapture
from penstock.config import Config
from penstock.config.streams import KafkaLaneConfig
from penstock.core.errors import CaptureAwayError, ConfigError, LogGoneError, PositionGoneError
from penstock.core.position import Lsn
from penstock.core.report import ProgressListener
from penstock.core.stream import MESSAGES, StreamId
from penstock.core.verify_report import VerifiedStream, VerifyReport
from penstock.ledger.run_file import read_running
from penstock.log.reader import ChangeLog
from penstock.streams import rewinds
from penstock.streams.comparison.deleted import deleted_to
from penstock.streams.comparison.judging import LetterName, Rules, judge
from penstock.streams.comparison.logged import logged_events, rows_in_log
from penstock.streams.comparison.ranges import NotComparable, Range, Wanted, begun_at, ranges_of
from penstock.streams.comparison.spilled import Numbers, Spilled, buckets_for
from penstock.streams.comparison.telling import Tally
from penstock.streams.encoding.sent_time import without_time
from penstock.streams.events import TOMBSTONE, Events
from penstock.streams.followed import FollowedStream, followed_streams
from penstock.streams.kafka import positions
from penstock.streams.kafka.marks import Held
from penstock.streams.kafka.partitions import partitions_of
from penstock.streams.kafka.patience import Patience
from penstock.streams.kafka.topic_reading import Records, TopicReader
from penstock.streams.kafka.topics import Topics
from penstock.streams.letter_file import LetterFile, dead_letters_path
from penstock.streams.publisher import Standing
from penstock.streams.routing import Router
from penstock.streams.settings import StreamSettings

_EVERYTHING = Wanted()
TRIES_MAX = 3  # of a log whose beginning goes while it is read
_HEAD = 100  # changes at the beginning of a partition of which a part was deleted: what precedes them is gone
_SEAL_S = 30.0  # how long capture may take until what the lane has sent is in files
_NOBODY = "command line"  # as capture knows us; it never joins, so nothing is held for it


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """`streams`: none means all. `limit`: how many differences of a stream are told one by one."""

    streams: tuple[StreamId, ...] = ()
    wanted: Wanted = _EVERYTHING
    limit: int = 20


@dataclass(slots=True)
class _Seen:
    """What the topics show of streams beside their changes, by stream."""

    loaded: dict[str, int] = field(default_factory=dict)
    load_points: dict[str, Lsn] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    #: Of (route, partition): up to which tx its records may have been deleted.
    gone_to: dict[tuple[int, int], int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)


def compare_lane(settings: StreamSettings, listener: ProgressListener, options: LaneOptions) -> VerifyReport:
    """What a lane's topics hold, against the log. Nothing is changed at either."""
    if not isinstance(settings.section, KafkaLaneConfig):
        raise ConfigError(
            f"The lane {settings.lane} is no Kafka lane: what it has sent cannot be read back by position.",
            remedy="Name a lane of Kafka.",
        )
    began, began_at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    comparison = _Comparison(settings, settings.section, listener, options)
    streams: Sequence[VerifiedStream] | None = None
    for _ in range(TRIES_MAX):
        try:
            streams = comparison.run()
            break
        except (PositionGoneError, LogGoneError, FileNotFoundError):
            continue  # retention took what was being read
    if streams is None:
        reason = "the change log went faster than it was read; raise `log.retention`"
        streams = [comparison.not_compared(stream, NotComparable(reason)) for stream in comparison.chosen]
    return VerifyReport(tuple(streams), began_at, round(time.monotonic() - began, 3), of=settings.lane)


class _Comparison:
    def __init__(
        self,
        settings: StreamSettings,
        section: KafkaLaneConfig,
        listener: ProgressListener,
        options: LaneOptions,
    ) -> None:
        self._settings = settings
        self._section = section
        self._listener = listener
        self._options = options
        self._patience = Patience()
        self._followed: Mapping[StreamId, FollowedStream] = followed_streams(settings)
        self._head = max(_HEAD, section.queue.count if section.buckets > 1 else 0)
        self._keys_may_move = section.on_partition_change == "accept"
        self._messages = {MESSAGES, *settings.outbox_tables}
        self.chosen = self._chosen()

    def run(self) -> list[VerifiedStream]:
        began = time.monotonic()
        held = self._held()
        standing = None if held is None else held.standing()
        if held is None or standing is None:
            nothing = NotComparable("the lane has sent nothing yet")
            return [self.not_compared(stream, nothing) for stream in self.chosen]
        if self._is_of_this_server(standing):
            _seal(self._settings.pipeline, standing.position)
        ranges = self._ranges(standing)
        compared = {stream: each for stream, each in ranges.items() if isinstance(each, Range)}
        told: dict[StreamId, VerifiedStream] = {}
        if compared:
            with tempfile.TemporaryDirectory(prefix="penstock-verify-") as directory:
                told = self._compare(Path(directory), compared, held, standing)
        for stream, why in ranges.items():
            if isinstance(why, NotComparable):
                told[stream] = self.not_compared(stream, why)
        seconds = round(time.monotonic() - began, 3)
        return [_timed(told[stream], seconds) for stream in self.chosen]

    def not_compared(self, stream: StreamId, why: NotComparable) -> VerifiedStream:
        return VerifiedStream(
            str(stream),
            "not compared",
            why.reason,
            "by its mode" if why.is_final else "for now",
            lane=self._settings.lane,
            against="change log",
        )

    def _chosen(self) -> tuple[StreamId, ...]:
        there = [*self._followed, *([MESSAGES] if self._section.messages is not None else [])]
        for name in self._options.streams:
            if name not in there:
                raise ConfigError(
                    f"The lane {self._settings.lane} does not send this stream.",
                    stream=str(name),
                    remedy=f"It sends {', '.join(map(str, there[:20]))}.",
                )
        return self._options.streams or tuple(there)

    def _held(self) -> Held | None:
        identity = self._settings.identity
        if Topics(self._section, self._patience).count(positions.topic_name(identity)) is None:
            return None
        return positions.read(self._section, identity, self._patience)

    def _is_of_this_server(self, standing: Standing) -> bool:
        newest = ChangeLog(self._settings.log_directory).newest()
        return newest is None or newest.system_id == standing.system_id

    def _ranges(self, standing: Standing) -> dict[StreamId, Range | NotComparable]:
        log = ChangeLog(self._settings.log_directory)
        oldest, newest = log.start(), log.newest()
        if oldest is None or newest is None:
            return dict.fromkeys(self.chosen, NotComparable("the change log is empty"))
        if not self._is_of_this_server(standing):
            other = NotComparable("what the lane has sent is of another server than the change log")
            return dict.fromkeys(self.chosen, other)
        return ranges_of(self.chosen, standing, oldest, newest.end, self._options.wanted)

    # Both sides

    def _compare(
        self, directory: Path, ranges: Mapping[StreamId, Range], held: Held, standing: Standing
    ) -> dict[StreamId, VerifiedStream]:
        for stream in ranges:
            self._listener.stream_started(str(stream), "verify", None)
        streams, topics = Numbers([str(stream) for stream in ranges]), Numbers()
        secret = secrets.randbits(64), secrets.randbits(64)
        rows = rows_in_log(ChangeLog(self._settings.log_directory), ranges)
        expected, found = (
            Spilled(directory, side, buckets_for(2 * rows), secret) for side in ("expected", "found")
        )
        routes = self._spill_expected(expected, ranges, streams, topics, held.partitions)
        letters = self._letters(standing.system_id, streams)
        seen = _Seen()
        with closing(TopicReader(self._section, self._settings.identity, self._patience)) as reader:
            refused = self._refused(reader, routes)
            for topic in dict.fromkeys(topic for of in routes.values() for topic in of):
                self._spill_found(reader, topic, found, ranges, streams, topics[topic], seen)
            seen.others = reader.others
        found.done()
        ranges = {
            stream: begun_at(each, seen.load_points.get(str(stream)), seen.first.get(str(stream)))
            for stream, each in ranges.items()
        }
        rules = Rules(
            start=np.array([int(each.start) for each in ranges.values()], np.int64),
            end=np.array([int(each.end) for each in ranges.values()], np.int64),
            letters=letters,
            rewinds=rewinds.read(self._settings.directory),
            gone_to=seen.gone_to,
            keeps_order=self._section.dead_letter.order == "block_key",
            keys_may_move=self._keys_may_move,
        )
        tally = Tally(len(streams), topics.names, self._options.limit)
        for bucket in range(expected.buckets):
            tally.add(judge(expected.bucket(bucket), found.bucket(bucket), rules))
        told = {}
        for number, (stream, within) in enumerate(ranges.items()):
            why = refused.get(stream)
            if why is None:
                told[stream] = self._told(
                    stream, number, within, tally, rules, seen, routes[stream], standing
                )
            else:
                told[stream] = self.not_compared(stream, why)
            self._listener.stream_finished(str(stream), "verify", int(tally.expected[number]))
        return told

    def _spill_expected(
        self,
        side: Spilled,
        ranges: Mapping[StreamId, Range],
        streams: Numbers,
        topics: Numbers,
        partitions: Mapping[str, int],
    ) -> dict[StreamId, list[str]]:
        """Write down what the log makes of these ranges; the topics that events of each stream go to."""
        router = Router(self._settings.routes)
        routes = {
            stream: {} if router.sends_messages(stream) else {router.route(stream): None} for stream in ranges
        }
        for events in logged_events(self._settings, self._followed, ranges):
            routes[events.stream][events.route] = None
            count = partitions.get(events.route)
            places = np.full(len(events), -1, np.int32) if not count else partitions_of(events.key, count)
            side.add(
                streams[str(events.stream)],
                topics[events.route],
                events.tx,
                events.op,
                events.kind,
                events.key,
                self._compared(events.stream, events.value),
                places,
                _refused(events),
            )
        side.done()
        return {stream: list(of) for stream, of in routes.items()}

    def _spill_found(
        self,
        reader: TopicReader,
        topic: str,
        side: Spilled,
        ranges: Mapping[StreamId, Range],
        streams: Numbers,
        route: int,
        seen: _Seen,
    ) -> None:
        by_name = {str(stream): within for stream, within in ranges.items()}
        for batch in reader.read(topic, reader.extents(topic)):
            for records in batch:
                within = by_name.get(records.stream)
                if within is None:
                    continue
                if records.chunk:
                    _note_load(records, seen)
                    continue
                first = int(records.tx.min())
                seen.first[records.stream] = min(seen.first.get(records.stream, first), first)
                rows = np.flatnonzero((records.tx >= int(within.start)) & (records.tx < int(within.end)))
                side.add(
                    streams[records.stream],
                    route,
                    records.tx[rows],
                    records.op[rows],
                    records.kind[rows],
                    records.key.take(rows),
                    self._compared(StreamId.parse(records.stream), records.value.take(rows)),
                    records.partition[rows].astype(np.int32),
                    records.offset[rows],
                )
        deleted = deleted_to(reader, topic, self._head, keys_may_move=self._keys_may_move)
        seen.gone_to.update({(route, partition): bound for partition, bound in deleted.items()})

    def _compared(self, stream: StreamId, values: pa.BinaryArray) -> pa.BinaryArray:
        """Messages are what applications wrote; events say when they were made, too."""
        return values if stream in self._messages else without_time(values, self._settings.encoding)

    # What is excused

    def _letters(self, system_id: str, streams: Numbers) -> frozenset[LetterName]:
        path = dead_letters_path(self._settings.pipeline.state, self._settings.lane)
        if not path.exists():
            return frozenset()
        with closing(LetterFile(path)) as file:
            rows = file.rows(
                "SELECT stream, tx, op, kind FROM letters WHERE chunk = '' AND source = ?", (system_id,)
            )
        return frozenset(
            (number, tx, op, kind == TOMBSTONE)
            for stream, tx, op, kind in rows
            if (number := streams.find(stream)) is not None
        )

    def _refused(
        self, reader: TopicReader, routes: Mapping[StreamId, Sequence[str]]
    ) -> dict[StreamId, NotComparable]:
        """Streams whose topics lose records that nobody deleted."""
        found: dict[StreamId, NotComparable] = {}
        policies = {
            topic: reader.cleanup_policy(topic) for topic in {each for of in routes.values() for each in of}
        }
        for stream, of in routes.items():
            for topic in of:
                policy = policies[topic]
                if policy is None and reader.extents(topic):
                    found[stream] = NotComparable(
                        f"whether the topic {topic} is compacted may not be asked; allow DESCRIBE_CONFIGS"
                    )
                elif "compact" in (policy or ""):
                    reason = f"the topic {topic} is compacted: of a key, Kafka keeps the newest record alone"
                    found[stream] = NotComparable(reason, is_final=True)
        return found

    # What is said

    def _told(
        self,
        stream: StreamId,
        number: int,
        within: Range,
        tally: Tally,
        rules: Rules,
        seen: _Seen,
        topics: Sequence[str],
        standing: Standing,
    ) -> VerifiedStream:
        differing, differences = tally.differing(number), tally.differences(number)
        count: Callable[[str], int] = lambda kind: tally.count(kind, number)  # noqa: E731
        return VerifiedStream(
            str(stream),
            "different" if differing else "equal",
            lane=self._settings.lane,
            against="change log",
            position=str(within.end),
            table_position=str(standing.position),
            compared_from=str(within.start),
            source_rows=int(tally.expected[number]),
            table_rows=int(tally.found[number]),
            dead_letters=count("dead"),
            missing=count("missing"),
            extra=count("extra"),
            different=count("different"),
            doubled=count("doubled"),
            out_of_order=count("out_of_order"),
            gone=count("gone"),
            loaded=seen.loaded.get(str(stream), 0),
            differences=differences,
            left_out=differing - len(differences),
            notes=tuple(self._notes(within, rules, seen, topics, count("gone"))),
        )

    def _notes(self, within: Range, rules: Rules, seen: _Seen, topics: Sequence[str], gone: int) -> list[str]:
        notes = []
        if gone:
            notes.append(f"Kafka has deleted {gone:,} records of the range; they were not compared")
        others = sum(seen.others.get(topic, 0) for topic in topics)
        if others:
            notes.append(f"{others:,} records of its topics are somebody else's")
        if not rules.keeps_order:
            notes.append("order was not compared: `dead_letter.order` is `skip`")
        if any(each.to < within.end and each.held > within.start for each in rules.rewinds):
            notes.append(
                "changes were sent again by order (`penstock lane rewind`): those may be there twice"
            )
        return notes


def _note_load(records: Records, seen: _Seen) -> None:
    stream = records.stream
    seen.loaded[stream] = seen.loaded.get(stream, 0) + len(records.tx)
    with suppress(ValueError):
        point = Lsn.parse(records.chunk.rpartition("@")[2])
        seen.load_points[stream] = max(seen.load_points.get(stream, point), point)


def _refused(events: Events) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """1 for what the lane's format cannot say, which nobody sends."""
    marks = np.zeros(len(events), np.int64)
    marks[list(events.refused)] = 1
    return marks


def _timed(stream: VerifiedStream, seconds: float) -> VerifiedStream:
    return replace(stream, seconds=seconds) if stream.position else stream


def _seal(config: Config, position: Lsn) -> None:
    """Have the running instance's capture seal the log so far.

    Without one, or if it does not come there, what is sealed is compared.
    """
    running = read_running(config.state)
    if running is None:
        return
    token = config.tail.token
    secret = None if token is None else token.get_secret_value()
    with (
        suppress(CaptureAwayError),
        RemoteCapture(
            running.capture["address"], _NOBODY, secret, running.capture.get("certificate")
        ) as capture,
    ):
        hello = capture.hello()
        if hello.leading:
            capture.epoch = hello.epoch
            capture.read_to(position)
            capture.reached(_SEAL_S)
