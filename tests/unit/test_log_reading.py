"""What every source gets from steps and loop, shown with one that is a list in memory.

It has nothing of Postgres: no keepalives, nothing to acknowledge, and a transaction's end is known from the
message that brings it.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.acknowledgement import AcknowledgementTracker
from penstock.capture.log_reading import CapturedTable, ChangeSink, Decoded, Truncation
from penstock.capture.loop import ReplicationLoop
from penstock.capture.rows import Changes, log_rows
from penstock.capture.steps import StepBuilder
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log.manifest import list_sequence, read_manifest
from penstock.log.reader import ChangeLog, read_rows
from penstock.log.writer import LogWriter
from tests.conftest import wait_until

STREAM = StreamId("shop", "orders")
TABLE = CapturedTable(TableSchema(STREAM, (SourceColumn("id", 20, -1, "int8", "bigint", 1),)), STREAM)
NEVER_S = 3600.0
START = Lsn(1)
TX_BYTES = 10  # from the beginning of one transaction to that of the next


class Message(NamedTuple):
    """A row of transaction `tx`, its truncate, or, with neither, its end."""

    tx: int
    id: int | None = None
    empties: bool = False


Batch = Sequence[Message]


def end_of(tx: int) -> Lsn:
    return Lsn(tx + TX_BYTES)


class ListDecoder:
    def __init__(self) -> None:
        self.open_tx: int | None = None
        self.spilled_bytes = 0
        self._ordinal = 0

    def parts(self, batch: Batch) -> Iterator[Batch]:
        return iter([batch] if batch else [])

    def decode(
        self, part: Batch, first: int, log_end: Lsn, must_end: Callable[[Lsn], bool], sink: ChangeSink
    ) -> Decoded:
        last = len(part)
        ends = [at for at in range(first, last) if _is_end(part[at])]
        if ends and ends[-1] + 1 < last and must_end(end_of(part[ends[-1]].tx)):
            last = ends[-1] + 1
        position, transactions = Lsn(0), 0
        for message in part[first:last]:
            known = message.tx < log_end
            if _is_end(message):
                position, self.open_tx, self._ordinal = end_of(message.tx), None, 0
                transactions += not known
                continue
            self.open_tx = message.tx
            if message.empties and not known:
                sink.truncate(TABLE, Truncation(message.tx, 2 * self._ordinal, 0, 0), whole=True)
            elif not known:
                sink.write(TABLE, *_row(message, self._ordinal, sink.schema_of(TABLE)))
            self._ordinal += 1
        return Decoded(last if last < len(part) else None, position, last - first, transactions, last - first)

    def add(self, streams: Sequence[StreamId]) -> None: ...

    def close(self) -> None: ...


class ListStream:
    """Brings the batches it is given, one at a time, and hears nothing."""

    report_every_s = NEVER_S
    is_full = False

    def __init__(self) -> None:
        self._sent: deque[Batch] = deque()
        self._received: Batch = ()
        self._readable, self._write = os.pipe()

    def send(self, batch: Batch) -> None:
        self._sent.append(batch)
        os.write(self._write, b"\0")

    @property
    def waiting_bytes(self) -> int:
        return len(self._received)

    def receive(self) -> int:
        if self._received or not self._sent:
            return 0
        os.read(self._readable, 1)
        self._received = self._sent.popleft()
        return len(self._received)

    def take(self) -> Batch:
        taken, self._received = self._received, ()
        return taken

    def wait(self, timeout_s: float, wake: int) -> None:
        select.select([self._readable, wake], [], [], timeout_s)

    def let_fill(self) -> None: ...

    def report(self, received: Lsn, acknowledged: Lsn, *, ask: bool = False) -> None: ...

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._write)


def _is_end(message: Message) -> bool:
    return message.id is None and not message.empties


def _row(message: Message, ordinal: int, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[str, int]]:
    changes = Changes(
        op=np.array([ord("i")], np.uint8),
        tx=np.array([message.tx]),
        ordinal=np.array([ordinal]),
        xid=np.zeros(1, np.uint64),
        commit_ts_us=np.zeros(1, np.int64),
        columns=[pa.array([str(message.id)])],
        old=[],
        old_kind=np.array([ord("n")], np.uint8),
        unchanged=None,
    )
    return log_rows(changes, TABLE.schema, schema)


def transactions(*sizes: int, first_id: int = 0) -> list[Message]:
    """One of each size, of rows that are numbered on."""
    found: list[Message] = []
    for number, size in enumerate(sizes):
        tx = int(START) + number * TX_BYTES
        found += (Message(tx, first_id + len(found) + row) for row in range(size))
        found.append(Message(tx))
    return found


def cut(messages: Batch, places: Sequence[int]) -> list[Batch]:
    bounds = [0, *sorted(place for place in places if place < len(messages)), len(messages)]
    return [messages[begin:end] for begin, end in pairwise(bounds)]


def open_log(directory: Path, end: Lsn = START, last_seq: int = 0) -> LogWriter:
    return LogWriter(directory, system_id="s", timeline=1, epoch=Lsn(1), end=end, last_seq=last_seq)


def logged(directory: Path) -> list[tuple[int, int, str | None]]:
    log = ChangeLog(directory)
    start, end = log.start(), log.end()
    assert start is not None
    assert end is not None
    parts = read_rows(log.files(STREAM, start, end).files, start, end)
    return [(row["_tx"], row["_op_index"], row["id"]) for part in parts for row in part.to_pylist()]


def expected(messages: Batch) -> list[tuple[int, int, str | None]]:
    found: list[tuple[int, int, str | None]] = []
    for message in messages:
        if not _is_end(message):
            before = sum(tx == message.tx for tx, _, _ in found)
            found.append((message.tx, 2 * before, None if message.id is None else str(message.id)))
    return found


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    places=st.lists(st.integers(0, 40), max_size=6),
    bytes_max=st.sampled_from([1, 200, 1 << 20]),
)
def test_steps_hold_whole_transactions_wherever_a_source_cuts_its_batches(
    sizes: list[int], places: list[int], bytes_max: int
) -> None:
    messages = transactions(*sizes)
    target = end_of(messages[-1].tx)
    with TemporaryDirectory() as directory:
        log = Path(directory)
        builder = StepBuilder(open_log(log), ListDecoder(), bytes_max)
        builder.demand(target)
        reached = [builder.take(batch) for batch in cut(messages, places)]
        assert reached[-1]
        assert logged(log) == expected(messages)
        ends = {end_of(message.tx) for message in messages}
        manifests = [read_manifest(log, seq) for seq in list_sequence(log)]
        assert {manifest.end for manifest in manifests} <= ends
        assert sum(manifest.transactions for manifest in manifests) == len(sizes)


def test_what_the_log_has_is_left_out_when_reading_begins_before_its_end(tmp_path: Path) -> None:
    messages = transactions(2, 3, 1)
    middle = end_of(messages[2].tx)
    before = StepBuilder(open_log(tmp_path), ListDecoder(), 1 << 20)
    before.demand(middle)
    assert before.take(messages[:3])

    again = StepBuilder(open_log(tmp_path, middle, last_seq=1), ListDecoder(), 1 << 20)
    again.demand(end_of(messages[-1].tx))
    assert again.take(messages)
    assert logged(tmp_path) == expected(messages)
    assert again.counters.transactions == 2


def test_a_truncate_is_a_row_and_noted_in_the_step(tmp_path: Path) -> None:
    tx = int(START)
    messages = [Message(tx, 1), Message(tx, empties=True), Message(tx, 2), Message(tx)]
    builder = StepBuilder(open_log(tmp_path), ListDecoder(), 1 << 20)
    builder.demand(end_of(tx))
    assert builder.take(messages)
    assert logged(tmp_path) == [(tx, 0, "1"), (tx, 2, None), (tx, 4, "2")]
    [entry] = read_manifest(tmp_path, 1).tables
    assert entry.truncates == ((tx, 2),)


@pytest.mark.parametrize("follows", [False, True])
def test_a_source_that_has_nothing_to_be_told_is_read_to_its_target(follows: bool, tmp_path: Path) -> None:
    messages = transactions(2, 3, 1)
    target = end_of(messages[-1].tx)
    writer, stream = open_log(tmp_path), ListStream()
    reached, failures = threading.Event(), list[BaseException]()
    tracker = AcknowledgementTracker({"lake": None}, START, START)
    loop = ReplicationLoop(
        stream,
        StepBuilder(writer, ListDecoder(), 1 << 20),
        writer,
        tracker,
        on_reached=lambda _: reached.set(),
        on_progress=lambda _: None,
        on_failed=failures.append,
    )
    loop.start()
    if follows:
        loop.follow()
    loop.demand(target)
    for batch in cut(messages, [1, 4]):
        stream.send(batch)
    wait_until(lambda: writer.end >= target if follows else reached.is_set(), "the target to be reached")
    tracker.lane_flushed("lake", target)
    wait_until(lambda: tracker.acknowledged() == target, "the log's end to be known")
    loop.stop()
    assert failures == []
    assert logged(tmp_path) == expected(messages)


def test_a_lane_that_asks_again_and_again_while_the_disk_stalls_costs_nothing(tmp_path: Path) -> None:
    messages = transactions(2, 3, 1)
    ends = sorted({end_of(message.tx) for message in messages})
    writer, stream = open_log(tmp_path), ListStream()
    stalls, goes_on, failures = threading.Event(), threading.Event(), list[BaseException]()

    class Stalling(ListDecoder):
        def decode(
            self, part: Batch, first: int, log_end: Lsn, must_end: Callable[[Lsn], bool], sink: ChangeSink
        ) -> Decoded:
            stalls.set()
            goes_on.wait()
            return super().decode(part, first, log_end, must_end, sink)

    builder = StepBuilder(writer, Stalling(), 1 << 20)
    loop = ReplicationLoop(
        stream,
        builder,
        writer,
        AcknowledgementTracker({"lake": None}, START, START),
        on_reached=lambda _: None,
        on_progress=lambda _: None,
        on_failed=failures.append,
    )
    loop.start()
    try:
        loop.follow()
        loop.demand(ends[0])
        stream.send(messages)
        assert stalls.wait(60)
        for number in range(10_000):
            loop.demand(Lsn(ends[-1] + number))
            loop.demand(ends[number % len(ends)])
        assert len(loop._asked_targets) <= 64
        assert len(loop._in_flight) <= 2 + 64 + 1
    finally:
        goes_on.set()
    wait_until(lambda: writer.end >= ends[-1], "all that was asked for to be sealed")
    loop.stop()
    assert failures == []
    assert len(builder._targets) <= 64
    assert logged(tmp_path) == expected(messages)
