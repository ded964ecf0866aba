"""The collector against a model of a source: what a shape's snapshot and log make is what the table has."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import failpoints
from penstock.capture.transactions import MessageConverter
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn
from penstock.core.stream import StreamId
from penstock.shapes.definition import DefinitionRequest, ShapeDefinition, define
from penstock.shapes.engine.collector import ShapeLogCollector
from penstock.shapes.engine.consumer import RecentTransactions, RoutedRows, SnapshotFilter, WaitingChanges
from penstock.shapes.shape import Shape, SnapshotPoint
from penstock.shapes.storage import ShapeStore
from tests.logged_changes import CARD, COLUMNS, TABLE, Logged, Row, definition, item, piece

START = Lsn(1000)


class Lane:
    """A collector on real storage; shapes that it gives up are listed with the reason."""

    def __init__(self, directory: Path, **given: Any) -> None:
        self.ended: dict[str, str] = {}
        self.store = ShapeStore(directory)
        self.store.recover()
        self.collector = ShapeLogCollector(self.store, START, self._end, **given)
        self._slots = 0

    def _end(self, shape: Shape, reason: str) -> None:
        self.ended[shape.handle] = reason
        self.collector.remove(shape)

    def add(self, wanted: ShapeDefinition) -> Shape:
        handle, slot = f"shape-{self._slots}", self._slots
        self._slots += 1
        shape = Shape(handle, wanted, slot, self.store.open(handle, slot))
        self.collector.add(shape)
        return shape

    def streaming(self, wanted: ShapeDefinition) -> Shape:
        """One whose snapshot was taken before anything happened."""
        shape = self.add(wanted)
        assert self.collector.known(shape, SnapshotPoint(1, 1, (), int(START)))
        return shape

    def process(self, end: int, *changes: Sequence[Logged], bytes_max: int = 1 << 20) -> None:
        pieces = [piece(each, f"public.leaf_{n}") for n, each in enumerate(changes) if each]
        for fragment in MessageConverter(bytes_max).fragments(item(end, *pieces)):
            self.collector.process(fragment)


@contextmanager
def lane(**given: Any) -> Iterator[Lane]:
    with TemporaryDirectory() as directory:
        made = Lane(Path(directory), **given)
        try:
            yield made
        finally:
            made.store.close()


def items_of(shape: Shape, after: LogOffset = LogOffset.LAST_BEFORE_REAL) -> list[dict[str, Any]]:
    text = b"".join(shape.storage.get_log_stream(after, shape.last_offset))
    found: list[dict[str, Any]] = json.loads(b"[" + text + b"]")
    return found


def followed(rows: dict[str, Row], items: Sequence[dict[str, Any]]) -> dict[str, Row]:
    """What a client makes of it, which takes nothing twice and misses nothing that it is told of."""
    rows = dict(rows)
    for each in items:
        key, operation = each["key"], each["headers"]["operation"]
        assert (key in rows) == (operation != "insert"), (operation, key)
        if operation == "delete":
            del rows[key]
        else:
            rows[key] = {**rows.get(key, {}), **each["value"]}
    return rows


class Source:
    """Transactions that write to disjoint rows, and commit in another order than they began."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: dict[str, Row] = {}
        self.visible: dict[str, Row] = {}  # as a snapshot taken now shows it
        self.lsn = int(START)
        self.next_xid = 10
        self.running: dict[int, list[Logged]] = {}
        self.invisible: dict[int, dict[str, Row | None]] = {}  # committed in the log, not yet to be seen

    def begin(self) -> None:
        """A transaction with its changes, of rows that no other one has touched."""
        taken = {str(change.new["id"]) for each in self.running.values() for change in each if change.new}
        taken |= {str(change.old["id"]) for each in self.running.values() for change in each if change.old}
        taken |= {key for each in self.invisible.values() for key in each}
        xid, changes, rows = self.next_xid, [], dict(self.rows)
        self.next_xid += 1
        for n in range(self.random.randint(1, 4)):
            row_id = str(self.random.randint(1, 12))
            if row_id in taken:
                continue
            old = rows.get(row_id)
            new: Row | None = {
                "id": row_id, "owner": str(self.random.randint(1, 3)), "note": f"{xid}.{n}"
            }  # fmt: skip
            if old is not None and self.random.random() < 0.4:
                new = None
            kind = "i" if old is None else "d" if new is None else "u"
            changes.append(Logged(0, 2 * n, kind, new, old, xid))
            if new is None:
                del rows[row_id]
            else:
                rows[row_id] = new
        self.running[xid] = changes

    def commit(self) -> list[Logged]:
        """One of those that run is in the log then, and not yet to be seen by snapshots."""
        xid = self.random.choice(list(self.running))
        changes = [
            Logged(self.lsn, each.op, each.kind, each.new, each.old, xid) for each in self.running.pop(xid)
        ]
        self.lsn += 100
        written: dict[str, Row | None] = {}
        for each in changes:
            row = each.new or each.old
            assert row is not None
            written[str(row["id"])] = each.new
        _write(self.rows, written)
        self.invisible[xid] = written
        return changes

    def show(self) -> None:
        """What is committed is to be seen from now on."""
        for xid in list(self.invisible):
            _write(self.visible, self.invisible.pop(xid))

    def snapshot(self) -> tuple[SnapshotPoint, dict[str, Row]]:
        unseen = sorted([*self.running, *self.invisible])
        xmin = unseen[0] if unseen else self.next_xid
        point = SnapshotPoint(xmin, self.next_xid, tuple(unseen), self.lsn)
        return point, dict(self.visible)


def _write(rows: dict[str, Row], written: dict[str, Row | None]) -> None:
    for row_id, row in written.items():
        if row is None:
            rows.pop(row_id, None)
        else:
            rows[row_id] = row


def keyed(rows: dict[str, Row], owner: str | None = None) -> dict[str, Row]:
    return {
        f'"public"."items"/"{row_id}"': row
        for row_id, row in rows.items()
        if owner is None or row["owner"] == owner
    }


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_snapshot_and_log_together_are_the_table_whatever_commits_around_the_snapshot(  # noqa: PLR0912
    seed: int, bytes_hundreds: int
) -> None:
    source = Source(seed)
    chance = source.random
    shapes: list[tuple[Shape, str | None]] = []
    waiting: dict[str, tuple[Shape, SnapshotPoint]] = {}
    snapshots: dict[str, dict[str, Row]] = {}
    unread: list[list[Logged]] = []
    is_remembered = False
    with lane() as live:

        def read() -> None:
            if not unread and not source.lsn > live.collector.delivery.position:
                return
            changes = [change for transaction in unread for change in transaction]
            unread.clear()
            leaves = [[each for each in changes if hash((each.op, seed)) % 2 == n] for n in (0, 1)]
            live.process(source.lsn, *leaves, bytes_max=bytes_hundreds * 100)

        def learn(handle: str) -> None:
            shape, point = waiting.pop(handle)
            if not live.collector.known(shape, point):  # its clients are told to come again
                live.collector.remove(shape)
                del snapshots[handle]
                shapes[:] = [each for each in shapes if each[0] is not shape]

        for _ in range(chance.randint(5, 60)):
            what = chance.random()
            if what < 0.3:
                source.begin()
            elif what < 0.55 and source.running:
                unread.append(source.commit())
                if chance.random() < 0.9:
                    source.show()
            elif what < 0.7:
                read()
            elif what < 0.75:
                source.show()
            elif what < 0.9 and len(shapes) < 6:
                owner = chance.choice([None, "1", "2"])
                shape = live.add(definition(None if owner is None else f"owner = {owner}"))
                shapes.append((shape, owner))
                if not is_remembered:  # what was handed out before is waited for (`earlier_writers`)
                    source.show()
                    is_remembered = True
                for _ in range(chance.randint(0, 2)):
                    if source.running:
                        unread.append(source.commit())
                    if chance.random() < 0.7:
                        read()
                point, rows = source.snapshot()
                waiting[shape.handle], snapshots[shape.handle] = (shape, point), keyed(rows, owner)
            elif waiting:
                learn(next(iter(waiting)))
        read()
        for handle in list(waiting):
            learn(handle)
        while source.running:
            unread.append(source.commit())
        read()

        assert not live.ended
        for shape, owner in shapes:
            assert followed(snapshots[shape.handle], items_of(shape)) == keyed(source.rows, owner)
            offsets = [
                (int(each["headers"]["lsn"]), each["headers"]["op_position"]) for each in items_of(shape)
            ]
            assert offsets == sorted(set(offsets))
            lasts = {each["headers"]["lsn"]: each["headers"].get("last", False) for each in items_of(shape)}
            assert all(lasts.values()), "the last item of each transaction says so"


def test_a_snapshot_is_asked_about_transactions_up_to_its_position_and_beyond_it_about_none() -> None:
    """Whatever its id, what commits beyond the position is not in the snapshot (correctness 10)."""
    transactions = {
        (999, 49): False,  # it shows that one
        (999, 54): False,
        (999, 55): True,  # it was running
        (999, 60): True,  # it began later
        (1000, 49): True,
        (1000, 54): True,
        (1000, 55): True,
    }
    tx, xid = (np.array(column) for column in zip(*transactions, strict=True))
    kept = SnapshotFilter(SnapshotPoint(50, 60, (55,), 1000)).keeps(tx, xid.astype(np.uint64))
    assert kept.tolist() == list(transactions.values())


def test_changes_of_a_partition_are_those_of_its_root_and_its_own() -> None:
    leaf = StreamId("public", "leaf_0")
    with lane() as live:
        root = live.streaming(definition())
        own = live.streaming(define(DefinitionRequest(str(leaf)), {leaf: replace(CARD, stream=leaf)}.get))
        live.process(
            1100, [Logged(1000, 0, "i", {"id": "1"})], [Logged(1000, 2, "i", {"id": "2"})], bytes_max=1
        )
        assert [each["value"]["id"] for each in items_of(root)] == ["1", "2"]
        assert [each["value"]["id"] for each in items_of(own)] == ["1"]
        assert items_of(own)[0]["headers"]["relation"] == ["public", "leaf_0"]


def test_a_snapshot_that_lacks_what_was_handed_out_before_is_not_used() -> None:
    with lane() as live:
        live.streaming(definition())
        live.process(1100, [Logged(1000, 0, "i", {"id": "1"}, xid=7)])
        late = live.add(definition("owner = 1"))

        assert not live.collector.known(late, SnapshotPoint(7, 9, (7,), 1100))
        assert live.collector.known(late, SnapshotPoint(8, 9, (), 1100))


def test_readers_see_nothing_of_a_transaction_before_its_last_fragment() -> None:
    with lane() as live:
        shape = live.streaming(definition())
        pieces = [piece([Logged(1000, 2 * n, "i", {"id": str(n), "note": "x" * 500})]) for n in range(20)]
        seen = []
        for fragment in MessageConverter(4_000).fragments(item(1100, *pieces)):
            live.collector.process(fragment)
            seen.append((fragment.is_last, shape.last_offset))

        assert len(seen) > 3
        assert all(
            offset == (LogOffset(1000, 38) if is_last else LogOffset.LAST_BEFORE_REAL)
            for is_last, offset in seen
        )
        assert [each["headers"].get("last", False) for each in items_of(shape)] == [False] * 19 + [True]


def test_a_transaction_that_broke_off_is_appended_once() -> None:
    with lane() as live:
        shape = live.streaming(definition())
        pieces = [piece([Logged(1000, 2 * n, "i", {"id": str(n), "note": "x" * 500})]) for n in range(20)]
        for fragment in list(MessageConverter(4_000).fragments(item(1100, *pieces)))[:3]:
            live.collector.process(fragment)

        live.collector.delivery.break_off()
        for fragment in MessageConverter(6_000).fragments(item(1100, *pieces)):
            live.collector.process(fragment)

        assert [each["value"]["id"] for each in items_of(shape)] == [str(n) for n in range(20)]
        assert live.collector.delivery.position == Lsn(1100)


def test_a_batch_that_concerns_many_shapes_is_dealt_with_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.shapes.engine.collector._PAIRS_MAX", 8)
    monkeypatch.setattr("penstock.shapes.engine.collector._CHOSEN_BYTES_MAX", 1000)
    with lane() as live:
        shapes = [live.streaming(definition(columns=",".join(("id", *more)))) for more in ((), ("owner",))]
        live.process(1100, [Logged(1000 + n // 4, n, "i", {"id": str(n)}) for n in range(30)])

        for shape in shapes:
            found = items_of(shape)
            assert [each["value"]["id"] for each in found] == [str(n) for n in range(30)]
            lasts = [n for n, each in enumerate(found) if each["headers"].get("last")]
            assert lasts == [3, 7, 11, 15, 19, 23, 27, 29]
        live.collector.delivery.flushed({shape.slot: LogOffset(1007, 29) for shape in shapes})
        assert live.collector.delivery.tracker.is_level


def test_what_was_handed_out_is_not_again() -> None:
    with lane() as live:
        shape = live.streaming(definition())
        for _ in range(2):
            live.process(1100, [Logged(1000, 0, "i", {"id": "1"})])

        assert len(items_of(shape)) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Logged(1100, 0, "t", xid=20), "truncate"),
        (Logged(1100, 0, "u", {"id": "1"}, {"id": "1"}, 20, old_kind="k"), "no old row"),
        (Logged(1100, 0, "d", None, None, 20), "no old row"),
    ],
)
def test_a_shape_ends_by_what_it_cannot_follow_unless_its_snapshot_shows_it(
    change: Logged, reason: str
) -> None:
    with lane() as live:
        before = live.streaming(definition())
        shown, not_shown = live.add(definition("owner = 1")), live.add(definition("owner = 2"))
        live.process(1200, [change])

        assert live.collector.known(shown, SnapshotPoint(30, 30, (), 1300))
        assert live.collector.known(not_shown, SnapshotPoint(20, 30, (20,), 1300))

        assert live.ended == {before.handle: reason, not_shown.handle: reason}


def test_columns_that_came_are_no_trouble_and_columns_that_changed_end_the_shapes_that_use_them() -> None:
    added = (*COLUMNS, SourceColumn("more", 25, -1, "text", "text", attribute_number=4))
    altered = (*COLUMNS[:2], SourceColumn("note", 1043, 14, "varchar", "varchar(10)", attribute_number=3))
    with lane() as live:
        everything, narrow = live.streaming(definition()), live.streaming(definition(columns="id,owner"))
        for end, columns in ((1100, added), (1200, altered)):
            change = Logged(end - 50, 0, "i", {"id": str(end)})
            (fragment,) = MessageConverter().fragments(item(end, piece([change], columns=columns)))
            live.collector.process(fragment)

        assert live.ended == {everything.handle: "schema"}
        assert [each["value"]["id"] for each in items_of(narrow)] == ["1100", "1200"]


def test_changes_kept_for_snapshots_are_bounded_and_end_only_shapes_that_wait() -> None:
    with lane(buffered_bytes_max=10_000) as live:
        streaming = live.streaming(definition())
        first, second = (
            live.add(definition("owner = 1")),
            live.add(definition("owner = 1", columns="id,owner")),
        )
        for n in range(20):
            new: Row = {"id": str(n), "owner": "1", "note": "x" * 1000}
            live.process(1100 + 100 * n, [Logged(1010 + 100 * n, 0, "i", new)])

        assert live.ended == dict.fromkeys((first.handle, second.handle), "too much to keep")
        assert len(items_of(streaming)) == 20


def test_what_a_table_that_nobody_has_a_shape_of_does_concerns_nobody() -> None:
    with lane() as live:
        live.process(1100, [Logged(1000, 0, "i", {"id": "1"})])

        assert live.collector.delivery.position == Lsn(1100)
        assert live.collector.delivery.tracker.is_level
        assert live.collector.delivery.lsn.last_processed == 1099


def test_the_position_waits_for_shapes_that_are_not_flushed() -> None:
    with lane() as live:
        one, other = live.streaming(definition("owner = 1")), live.streaming(definition("owner = 2"))
        tracker = live.collector.delivery.tracker
        live.process(1100, [Logged(1000, 0, "i", {"id": "1", "owner": "1"})])
        live.process(1200, [Logged(1100, 0, "i", {"id": "2", "owner": "2"})])
        assert tracker.flushed == 999

        live.collector.delivery.flushed({one.slot: LogOffset(1000, 0)})
        assert tracker.flushed == 1099

        live.collector.delivery.flushed({other.slot: LogOffset(1100, 0)})
        assert tracker.is_level
        assert tracker.flushed == 1100


def test_a_shape_that_goes_holds_nothing_back() -> None:
    with lane() as live:
        shape = live.streaming(definition())
        live.process(1100, [Logged(1000, 0, "i", {"id": "1"})])
        live.collector.remove(shape)

        assert live.collector.delivery.tracker.is_level
        assert live.collector.shapes_of(TABLE) == []
        live.process(1200, [Logged(1100, 0, "i", {"id": "2"})])
        assert live.collector.delivery.position == Lsn(1200)


def test_a_table_whose_rows_cannot_be_dealt_with_ends_its_shapes_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with lane() as live:
        shape = live.streaming(definition())

        def fail(*_: object) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(live.collector._router, "route", fail)
        live.process(1100, [Logged(1000, 0, "i", {"id": "1"})])

        assert live.ended == {shape.handle: "error"}
        assert live.collector.delivery.position == Lsn(1100)


@pytest.mark.parametrize(("bytes_max", "nth"), [(1 << 20, 1), (1, 3)], ids=["at once", "in fragments"])
def test_what_cannot_be_rendered_ends_the_shapes_that_look_alike_and_nobody_reads_half_of_it(
    monkeypatch: pytest.MonkeyPatch, bytes_max: int, nth: int
) -> None:
    """In fragments something of the transaction was appended before."""
    with lane() as live:
        narrow, other_narrow = (live.streaming(definition(where, columns="id")) for where in (None, "id > 0"))
        whole = live.streaming(definition())
        live.process(1100, [Logged(1000, 0, "i", {"id": "1"})])
        before = narrow.last_offset
        monkeypatch.setattr(failpoints, "_reached", {})
        monkeypatch.setenv("PENSTOCK_FAILPOINT", f"shapes.rendering=fail@{nth}")
        changes = [[Logged(1100, 2 * n, "i", {"id": f"{n + 2}"})] for n in range(2)]
        live.process(1200, *changes, bytes_max=bytes_max)

        assert live.ended == dict.fromkeys((narrow.handle, other_narrow.handle), "error")
        assert narrow.last_offset == other_narrow.last_offset == before
        assert [each["value"]["id"] for each in items_of(whole)] == ["1", "2", "3"]
        assert live.collector.delivery.position == Lsn(1200)


def test_a_shape_that_had_all_of_it_on_disk_before_a_crash_is_not_waited_for_again() -> None:
    with lane() as live:
        shape = live.streaming(definition())
        live.process(1100, [Logged(1000, 0, "i", {"id": "1"})])
        assert not live.collector.delivery.tracker.is_level
        live.store.commit(Lsn(1100))
        live.store.loop.turn()
        live.collector = ShapeLogCollector(live.store, START, live._end)
        live.collector.resume(shape, None)

        live.process(1100, [Logged(1000, 0, "i", {"id": "1"})])

        assert live.collector.delivery.tracker.is_level
        live.process(1200, [Logged(1100, 0, "i", {"id": "2"})])
        assert live.collector.delivery.tracker.behind().keys() == {shape.handle}


def test_what_was_kept_of_an_item_that_comes_again_is_there_once() -> None:
    changes = [Logged(1000, op, "i", {"id": str(op)}, xid=7) for op in range(0, 8, 2)]
    pieces = [piece([each]) for each in changes]
    fragments = list(MessageConverter(1).fragments(item(1100, *pieces)))
    with lane() as live:
        shape = live.add(definition())
        for fragment in fragments[:-1]:
            live.collector.process(fragment)
        live.collector.break_off()
        assert live.collector._waiting.bytes == 0
        live.collector.process(fragments[0])
        assert live.collector.known(shape, SnapshotPoint(7, 9, (7,), 1000))
        for fragment in fragments[1:]:
            live.collector.process(fragment)

        assert [each["value"]["id"] for each in items_of(shape)] == ["0", "2", "4", "6"]


def test_slices_of_the_same_rows_that_wait_count_once() -> None:
    (fragment,) = MessageConverter().fragments(
        item(1100, piece([Logged(1000, op, "i", {"id": str(op)}) for op in range(0, 200, 2)]))
    )
    (changes,) = fragment.changes
    slices = [changes.slice(at, at + 10) for at in range(0, 100, 10)]
    held = [RoutedRows(each, np.arange(10, dtype=np.int32), np.zeros(10, np.uint8)) for each in slices]
    size = changes.rows.get_total_buffer_size()
    waiting = WaitingChanges(size)

    assert all(waiting.hold(each) for each in held)

    assert waiting.bytes == size
    waiting.release(held)
    assert waiting.bytes == 0


def test_only_transactions_of_tables_that_have_had_shapes_are_remembered() -> None:
    (fragment,) = MessageConverter().fragments(item(1100, piece([Logged(1000, 0, "i", {"id": "1"}, xid=7)])))
    recent, point = RecentTransactions(), SnapshotPoint(7, 9, (7,), 1100)

    recent.note(fragment.changes[0])
    assert not recent.missed(TABLE, point, 1000)
    recent.begin(TABLE)
    recent.note(fragment.changes[0])
    assert recent.missed(TABLE, point, 1000)
