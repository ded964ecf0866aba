"""The tail in memory: random transactions, seen by readers of every speed, compared with the log itself."""

from __future__ import annotations

import itertools
import random
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.tail import Served, Tail
from penstock.capture.tail_items import (
    Piece,
    ReadLog,
    Transactions,
    item_of,
    transactions_item,
)
from penstock.core.errors import CaptureAwayError
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log.columns import log_schema
from penstock.log.reader import ChangeLog, read_rows
from penstock.log.writer import LogWriter

pytestmark = pytest.mark.unit

START = Lsn(1000)
MIB = 1 << 20
TABLES = [
    TableSchema(StreamId("public", name), (SourceColumn("id", 25, -1, "text", "text"),), key=("id",))
    for name in ("orders", "events")
]
Offset = tuple[str, int, int, str]  # stream, tx, op, value


def rows(table: TableSchema, offsets: list[tuple[int, int]], width: int = 8) -> pa.RecordBatch:
    tx, op = np.array(offsets, np.int64).T
    count = len(offsets)
    own = {
        "_op": pa.array(["i"] * count),
        "_xid": pa.array(np.full(count, 7, np.uint64)),
        "_commit_ts": pa.array(np.zeros(count, np.int64)).view(pa.timestamp("us", "UTC")),
        "_old_kind": pa.array(["n"] * count),
        "_tx": pa.array(tx),
        "_op_index": pa.array(op),
        "id": pa.array([f"{at}.{index}".ljust(width, "x") for at, index in offsets]),
    }
    schema = log_schema(table, str(table.stream))
    arrays = [own.get(field.name, pa.nulls(count, field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def offsets_of(pieces: list[Piece] | Iterator[Piece]) -> list[Offset]:
    found: list[Offset] = []
    for piece in pieces:
        columns = [piece.rows.column(name).to_pylist() for name in ("_tx", "_op_index", "id")]
        found += [(str(piece.stream), *row) for row in zip(*columns, strict=True)]
    return sorted(found, key=lambda offset: offset[1:3])


def new_tail(bytes_max: int = 4 * MIB) -> Tail:
    tail = Tail(bytes_max)
    tail.identify("7", 1, Lsn(5), START)
    return tail


def add(tail: Tail, *offsets: tuple[int, int], width: int = 8) -> None:
    tail.rows(TABLES[0], TABLES[0].stream, rows(TABLES[0], list(offsets), width))


def is_full(tail: Tail) -> bool:
    return tail.full


def taken(tail: Tail, after: Lsn) -> Transactions | ReadLog:
    served = tail.read(after, 0)
    assert served is not None
    return item(served)


def item(served: Served) -> Transactions | ReadLog:
    found = item_of(served.batch, served.line)
    assert isinstance(found, Transactions | ReadLog)
    return found


def brief(found: Transactions | ReadLog) -> tuple[int, list[tuple[int, int]]]:
    assert isinstance(found, Transactions)
    return found.end, [(tx, op) for _, tx, op, _ in offsets_of(iter(found.pieces))]


class Feed:
    """Gives the same random transactions to a log and to a tail, in the batches that capture would."""

    def __init__(self, chance: random.Random, directory: Path, tail: Tail) -> None:
        self.tail = tail
        self.log = ChangeLog(directory)
        self.boundaries = [START]
        self.all: list[Offset] = []
        self._chance = chance
        self._writer = LogWriter(directory, system_id="7", timeline=1, epoch=Lsn(5), end=START)
        self._position = START
        self._open: list[tuple[TableSchema, int, int]] = []  # of the open transaction, not given yet
        self._open_tx: int | None = None

    def batch(self) -> None:
        """A few transactions, of which the last may go on in the next batch."""
        rows_now: list[tuple[TableSchema, int, int]] = []
        for _ in range(self._chance.randint(0, 4)):
            if self._open_tx is None:
                self._begin()
            if self._chance.random() < 0.2:
                cut = self._chance.randint(0, len(self._open))
                rows_now += self._open[:cut]
                del self._open[:cut]
                break
            rows_now += self._open
            self._commit()
        if self._open_tx is None and self._chance.random() < 0.3:
            self._position = Lsn(self._position + self._chance.randint(1, 50))  # a keepalive
            self.boundaries.append(self._position)
        self._give(rows_now)
        self.tail.committed(self._position, self._open_tx)
        if self._open_tx is None and (self.tail.full or self._chance.random() < 0.2):
            self.seal()

    def finish(self) -> None:
        if self._open_tx is not None:
            rest = self._open
            self._commit()
            self._give(rest)
            self.tail.committed(self._position, None)
        self.seal()

    def write(self, table: TableSchema, piece: pa.RecordBatch, end: Lsn) -> None:
        """One batch of whole transactions."""
        self._write(table, piece)
        self._position = end
        self.tail.committed(end, None)
        if self.tail.full:
            self.seal()

    def seal(self) -> None:
        if self._position > self._writer.end:
            self._writer.seal(self._position)
            self.tail.sealed(self._position)

    def _begin(self) -> None:
        self._open_tx = self._position + self._chance.randint(0, 20)
        size = self._chance.choice([0, 1, 1, 2, 5, 40, 400])
        self._open = [(self._chance.choice(TABLES), self._open_tx, 2 * index) for index in range(size)]

    def _commit(self) -> None:
        assert self._open_tx is not None
        self._position = Lsn(self._open_tx + self._chance.randint(1, 20))
        self.boundaries.append(self._position)
        self._open_tx, self._open = None, []

    def _give(self, rows_now: list[tuple[TableSchema, int, int]]) -> None:
        for table in TABLES:
            chosen = [(tx, op) for of, tx, op in rows_now if of is table]
            if chosen:
                self._write(table, rows(table, chosen, width=100))

    def _write(self, table: TableSchema, piece: pa.RecordBatch) -> None:
        self._writer.write(table, table.stream, piece, {"i": piece.num_rows})
        self.tail.rows(table, table.stream, piece)
        self.all += offsets_of([Piece(table.stream, table.stream, table.id, piece)])


class Reader:
    """Reads one item at a time from where it is told to begin, by way of the log where that is asked for."""

    def __init__(self, feed: Feed, after: Lsn) -> None:
        self._feed = feed
        self._begin = self._after = after
        self.seen: list[Offset] = []

    def read(self) -> bool:
        served = self._feed.tail.read(self._after, 0)
        if served is None:
            return False
        found = item(served)
        if isinstance(found, ReadLog):
            assert self._after < found.to <= (self._feed.log.end() or START)
            new, end = self._from_log(self._after, found.to), found.to
        else:
            new, end = offsets_of(iter(found.pieces)), found.end
        assert all(self._after <= tx < end for _, tx, _, _ in new), "an item has what its range says"
        for tx in {tx for _, tx, _, _ in new}:
            assert [o for o in new if o[1] == tx] == [o for o in self._everything() if o[1] == tx], "whole"
        self.seen += new
        self._after = end
        return True

    def check(self) -> None:
        while self.read():
            pass
        assert self.seen == [offset for offset in self._everything() if offset[1] >= self._begin]

    def _everything(self) -> list[Offset]:
        return sorted(self._feed.all, key=lambda offset: offset[1:3])

    def _from_log(self, after: Lsn, to: Lsn) -> list[Offset]:
        found = []
        for stream, part in self._feed.log.streams_with_changes(after, to).items():
            for table in read_rows(part.files, after, to):
                found += [Piece(stream, stream, "", batch) for batch in table.to_batches()]
        return offsets_of(found)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    bytes_max=st.sampled_from([64 << 10, 256 << 10, MIB]),
    steps=st.integers(1, 60),
)
def test_every_reader_is_given_what_the_log_has_in_order_and_in_whole_transactions(
    seed: int, bytes_max: int, steps: int
) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        feed = Feed(chance, Path(directory), new_tail(bytes_max))
        readers = [Reader(feed, START)]
        for _ in range(steps):
            feed.batch()
            if len(readers) < 5 and chance.random() < 0.2:
                readers.append(Reader(feed, chance.choice(feed.boundaries)))
            for reader in readers:
                if chance.random() < 0.5:
                    reader.read()
        feed.finish()
        for reader in [*readers, Reader(feed, chance.choice(feed.boundaries))]:
            reader.check()


def test_nothing_of_a_transaction_is_sent_before_its_commit_is_known() -> None:
    tail = new_tail()
    add(tail, (1010, 0), (1020, 0), (1020, 2))
    assert tail.read(START, 0) is None
    tail.committed(Lsn(1015), 1020)
    assert brief(taken(tail, START)) == (1015, [(1010, 0)])
    assert tail.read(Lsn(1015), 0) is None
    add(tail, (1020, 4))
    tail.committed(Lsn(1015), 1020)
    assert tail.read(Lsn(1015), 0) is None
    tail.committed(Lsn(1025), None)
    assert brief(taken(tail, Lsn(1015))) == (1025, [(1020, 0), (1020, 2), (1020, 4)])


def test_a_reader_may_begin_inside_what_is_sent_together() -> None:
    tail = new_tail()
    add(tail, (1010, 0), (1020, 0), (1030, 0))
    tail.committed(Lsn(1040), None)
    assert brief(taken(tail, START)) == (1040, [(1010, 0), (1020, 0), (1030, 0)])
    assert brief(taken(tail, Lsn(1015))) == (1040, [(1020, 0), (1030, 0)])
    assert brief(taken(tail, Lsn(1035))) == (1040, [])
    assert tail.read(Lsn(1040), 0) is None


def test_a_keepalive_moves_readers_on() -> None:
    tail = new_tail()
    tail.committed(Lsn(1100), None)
    assert brief(taken(tail, START)) == (1100, [])
    assert tail.read(Lsn(1100), 0) is None


def test_a_reader_that_was_ahead_waits_for_what_is_new_to_it() -> None:
    """Capture has begun again at the log's end; the reader has seen more of its predecessor's tail."""
    tail = new_tail()
    add(tail, (1010, 0), (1020, 0))
    tail.committed(Lsn(1025), None)
    assert tail.read(Lsn(1025), 0) is None
    add(tail, (1030, 0))
    tail.committed(Lsn(1035), None)
    assert brief(taken(tail, Lsn(1025))) == (1035, [(1030, 0)])


def test_a_transaction_too_large_for_memory_goes_by_the_log_once_that_has_it() -> None:
    tail = new_tail(MIB)
    add(tail, (1010, 0))
    for op in range(0, 2000, 200):
        add(tail, *((1020, op + index) for index in range(200)), width=1000)
        tail.committed(Lsn(1015), 1020)
        assert tail.bytes < MIB
    add(tail, (1020, 3000), (1030, 0))
    tail.committed(Lsn(1035), None)
    assert brief(taken(tail, START)) == (1015, [(1010, 0)])
    assert is_full(tail), "capture is asked to seal"
    assert tail.read(Lsn(1015), 0) is None, "the log does not have it yet"
    tail.sealed(Lsn(1035))
    assert not is_full(tail)
    assert taken(tail, Lsn(1015)) == ReadLog(Lsn(1035))


def test_what_follows_a_large_transaction_waits_for_it() -> None:
    tail = new_tail(MIB)
    add(tail, *((1020, 2 * index) for index in range(2000)), width=1000)
    tail.committed(Lsn(1025), None)
    add(tail, (1030, 0))
    tail.committed(Lsn(1035), None)
    assert tail.read(START, 0) is None
    tail.sealed(Lsn(1025))
    assert taken(tail, START) == ReadLog(Lsn(1025))
    assert brief(taken(tail, Lsn(1025))) == (1035, [(1030, 0)])


def test_many_transactions_of_one_batch_are_cut_into_groups_that_can_be_sent() -> None:
    tail = new_tail(MIB)
    add(tail, *((1010 + index, 0) for index in range(2000)), width=1000)
    tail.committed(Lsn(9000), None)
    after, seen = START, []
    while after < 9000:
        served = tail.read(after, 0)
        assert served is not None
        assert served.batch.nbytes <= MIB // 4
        seen += brief(item(served))[1]
        after = served.end
    assert seen == [(1010 + index, 0) for index in range(2000)]


def test_a_full_tail_asks_for_a_step_and_gives_nothing_up() -> None:
    tail = new_tail(MIB)
    ends = [Lsn(1100 + 100 * number) for number in range(20)]
    for end in ends:
        add(tail, *((end - 50, 2 * index) for index in range(100)), width=1000)
        tail.committed(end, None)
    assert is_full(tail)
    assert tail.bytes > MIB
    assert brief(taken(tail, START))[0] == ends[0], "the oldest is there: no manifest has it"
    tail.sealed(ends[-1])
    assert not is_full(tail)
    assert tail.bytes <= MIB
    assert taken(tail, START) == ReadLog(ends[-1])


def test_memory_stays_bounded_however_much_passes_through() -> None:
    tail = new_tail(MIB)
    batch = 0
    for number in range(200):
        end = Lsn(1100 + 100 * number)
        before = tail.bytes
        add(tail, *((end - 50 + index, 0) for index in range(40)), width=1000)
        tail.committed(end, None)
        batch = max(batch, tail.bytes - before)
        assert tail.bytes <= MIB + batch
        if tail.full:
            tail.sealed(end)
    assert len(tail._groups) < 40


def test_many_small_commits_are_bounded_in_number_however_little_they_take() -> None:
    tail = Tail(64 * MIB, groups_max=100)
    tail.identify("7", 1, Lsn(5), START)
    end, asked = START, 0
    for number in range(1000):
        end = Lsn(1100 + 100 * number)
        add(tail, (end - 50, 0))
        tail.committed(end, None)
        assert len(tail._groups) <= 100 + 1
        if tail.full:
            asked += 1
            tail.sealed(end)
            assert not is_full(tail)
    assert 5 <= asked <= 10, "a step is asked for when there are too many, and not before"
    assert tail.bytes < 8 * MIB
    assert isinstance(taken(tail, START), ReadLog), "who is further behind reads the log"
    assert brief(taken(tail, Lsn(end - 100)))[0] == end


def test_closing_a_tail_sends_waiting_readers_away() -> None:
    tail = new_tail()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(CaptureAwayError):
            tail.read(START, 60)
        ended.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    tail.close()
    waiting.join(120)
    assert ended.is_set()


def test_a_waiting_reader_is_woken_by_a_commit() -> None:
    tail = new_tail()
    found: list[Served | None] = []
    waiting = threading.Thread(target=lambda: found.append(tail.read(START, 60)))
    waiting.start()
    add(tail, (1010, 0))
    tail.committed(Lsn(1015), None)
    waiting.join(120)
    assert found
    assert found[0] is not None
    assert found[0].end == 1015


def sent_and_read(pieces: list[Piece]) -> list[Piece]:
    """By an item whose batch lies oddly in memory, as it may when it comes through gRPC."""
    batch, line = transactions_item(Lsn(1), 2.5, pieces)
    if batch.num_rows:
        content = b"".join(batch.column("rows").to_pylist())
        oddly = pa.py_buffer(b"?" + content).slice(1)
        ends = batch.column("rows").buffers()[1]
        rows_there = pa.Array.from_buffers(pa.binary(), len(pieces), [None, ends, oddly])
        batch = pa.RecordBatch.from_arrays([*batch.columns[:3], rows_there], schema=batch.schema)
    found = item_of(batch, line)
    assert isinstance(found, Transactions)
    assert (found.end, found.at) == (1, 2.5)
    return list(found.pieces)


def test_pieces_travel_as_they_are() -> None:
    pieces = [
        Piece(
            table.stream,
            StreamId("public", f"{table.stream.name}_1"),
            table.id,
            rows(table, [(1, 0), (2, 0)]),
        )
        for table in itertools.islice(itertools.cycle(TABLES), 5)
    ]
    cut = [*pieces, Piece(pieces[0].stream, pieces[0].leaf, "other", pieces[0].rows.slice(1))]
    back = sent_and_read(cut)
    assert list(back) == cut
    assert [piece.rows.schema.metadata for piece in back] == [piece.rows.schema.metadata for piece in cut]


@pytest.mark.parametrize("count", [1, 16, 17, 5000])
def test_rows_travel_as_they_are_wherever_in_memory_they_arrive(count: int) -> None:
    [table, _] = TABLES
    sent = Piece(table.stream, table.stream, table.id, rows(table, [(tx, 0) for tx in range(count)]))
    [back] = sent_and_read([sent])
    assert back == sent
    assert back.rows.schema.metadata == sent.rows.schema.metadata
    assert back.rows.column("_tx").buffers()[1].address % 8 == 0, "compiled code reads it where it is"


def memory_of(tail: Tail) -> int:
    """Of all buffers that the tail keeps alive, each counted once."""
    pieces = [*tail._open, *(piece for group in tail._groups for piece in group._pieces or ())]
    buffers = {
        buffer.address: buffer.size
        for piece in pieces
        for column in piece.rows.columns
        for buffer in column.buffers()
        if buffer is not None
    }
    return sum(buffers.values())


def test_a_slice_does_not_keep_the_batch_that_it_was_cut_from() -> None:
    """Each batch is one large transaction, which goes by the log, and a small one behind it."""
    tail = new_tail(4 * MIB)
    for number in range(1, 11):
        large, small = 1000 * number, 1000 * number + 500
        tail.rows(TABLES[0], TABLES[0].stream, rows(TABLES[0], [(large, 0)], 2 * MIB))
        tail.committed(Lsn(large - 1), large)
        offsets = [*((large, index) for index in range(1, 1001)), (small, 0)]
        tail.rows(TABLES[0], TABLES[0].stream, rows(TABLES[0], offsets, 1000))
        tail.committed(Lsn(small + 1), None)
    assert tail.bytes < MIB // 4
    assert memory_of(tail) <= 2 * tail.bytes


def test_an_open_transaction_does_not_keep_the_batch_that_it_began_in() -> None:
    tail = new_tail(4 * MIB)
    whole, open_ = [(1000, index) for index in range(2000)], [(2000, 0), (2000, 1)]
    tail.rows(TABLES[0], TABLES[0].stream, rows(TABLES[0], whole + open_, 400))
    tail.committed(Lsn(1001), 2000)
    tail._groups.clear()  # as if they were let go
    assert [(tx, op) for _, tx, op, _ in offsets_of(tail._open)] == open_
    assert memory_of(tail) < MIB // 64


@pytest.mark.parametrize("open_tx", [None, 1300])
def test_transactions_of_which_changes_are_missing_go_by_the_log_which_says_so(open_tx: int | None) -> None:
    tail = new_tail()
    add(tail, (1010, 0))
    tail.committed(Lsn(1020), None)
    add(tail, (1030, 0), (1100, 0), (1200, 0))
    tail.untold(1100)
    if open_tx is not None:
        add(tail, (open_tx, 0))
    tail.committed(Lsn(1210), open_tx)
    assert brief(taken(tail, START)) == (1020, [(1010, 0)])
    assert tail.read(Lsn(1020), 0) is None, "it waits for the log"
    assert is_full(tail), "and asks for it"
    tail.sealed(Lsn(1210))
    assert taken(tail, Lsn(1020)) == ReadLog(Lsn(1210))
    if open_tx is None:
        add(tail, (1300, 0))
    tail.committed(Lsn(1310), None)
    assert brief(taken(tail, Lsn(1210))) == (1310, [(1300, 0)])


def test_changes_that_are_missing_in_an_open_transaction_are_told_with_its_end() -> None:
    tail = new_tail()
    add(tail, (1010, 0), (1100, 0))
    tail.untold(1100)
    tail.committed(Lsn(1020), 1100)
    assert brief(taken(tail, START)) == (1020, [(1010, 0)])
    tail.committed(Lsn(1200), None)
    tail.sealed(Lsn(1200))
    assert taken(tail, Lsn(1020)) == ReadLog(Lsn(1200))


def test_a_transaction_that_was_cut_off_is_never_told_from_memory() -> None:
    tail = new_tail()
    add(tail, (1010, 0))
    tail.committed(START, 1010)
    tail.untold(1010)
    tail.committed(Lsn(1010), None)  # it ends where it began
    add(tail, (1100, 0))
    tail.committed(Lsn(1200), None)
    tail.sealed(Lsn(1200))
    assert taken(tail, START) == ReadLog(Lsn(1200))


def test_transactions_that_were_cut_off_ask_for_no_step_once_the_log_has_them() -> None:
    tail = Tail(MIB, groups_max=3)
    tail.identify("7", 1, Lsn(5), START)
    for number in range(10):
        begins, end = Lsn(START + 100 * number), Lsn(START + 100 * (number + 1))
        tail.untold(begins)
        tail.committed(begins, None)  # it ends where it began, and the log ends there too
        add(tail, (end - 50, 0))
        tail.committed(end, None)
        tail.sealed(end)
        assert not is_full(tail)
