"""The engine without a source: what ends a shape, and what outlives a restart."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from penstock.capture.spec import Started
from penstock.capture.transactions import MessageConverter
from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn
from penstock.shapes.engine.collector import ShapeLogCollector
from penstock.shapes.engine.engine import Engine
from penstock.shapes.engine.eviction import Limits
from penstock.shapes.shape import Shape, SnapshotListener, SnapshotPoint, SnapshotProblem
from penstock.shapes.source.catalog import CardColumn
from penstock.shapes.source.reconciler import compare
from tests.conftest import WAIT_S, wait_until
from tests.logged_changes import CARD, COLUMNS, TABLE, Logged, definition, item, piece

POINT = SnapshotPoint(5, 5, (), 1000)


class Snapshots:
    """Taken when the test says so."""

    def __init__(self) -> None:
        self.cancelled: list[Shape] = []
        self.started_over = 0

    def start_over(self) -> None:
        self.started_over += 1

    def start(self, shape: Shape, listener: SnapshotListener) -> None: ...

    def cancel(self, shape: Shape) -> None:
        self.cancelled.append(shape)


def _wake(shapes: list[Shape]) -> None:
    for shape in shapes:
        shape.wake()


@contextmanager
def running(directory: Path, limits: Limits = Limits()) -> Iterator[Engine]:  # noqa: B008 - a value
    engine = Engine(directory, _wake, limits=limits)
    engine.snapshots = Snapshots()
    engine.start()
    if engine.begin_term() is None:
        engine.start_over(Lsn(1000), "")
    try:
        yield engine
    finally:
        engine.close()


def made(
    engine: Engine, where: str | None = None, *, complete: bool = True, point: SnapshotPoint = POINT
) -> Shape:
    shape = engine.create(definition(where)).result(WAIT_S)
    engine.snapshot_known(shape, point)
    if complete:
        writer = shape.storage.make_new_snapshot()
        line = b'{"key":"k","value":{"id":"0"},"headers":{"operation":"insert"}}\n'
        writer.write(line, np.array([len(line)]))
        engine.snapshot_started(shape)
        writer.close(b'{"headers":{"control":"snapshot-end"}}')
        engine.snapshot_completed(shape)
    engine.submit(lambda: None).result(WAIT_S)
    return shape


def hand_in(engine: Engine, end: int, row_id: str, columns: Sequence[SourceColumn] = COLUMNS) -> None:
    changes = piece([Logged(end - 50, 0, "i", {"id": row_id})], columns=columns)
    for fragment in MessageConverter().fragments(item(end, changes)):
        assert engine.hand_in(fragment)


def wait_until_durable(engine: Engine, end: int) -> None:
    wait_until(lambda: engine.position == Lsn(end), f"everything up to {end} to be durable")


def test_a_shape_outlives_a_restart_once_its_snapshot_is_whole(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        whole, half = made(engine), made(engine, "owner = 1", complete=False)
        hand_in(engine, 1100, "1")
        wait_until_durable(engine, 1100)
        offset = whole.last_offset

    with running(tmp_path) as engine:
        (again,) = engine.registry.all()
        assert (again.handle, again.last_offset, again.state) == (whole.handle, offset, "ready")
        assert engine.registry.find(half.handle) is None
        hand_in(engine, 1100, "1")
        hand_in(engine, 1200, "2")
        wait_until_durable(engine, 1200)
        text = b"".join(again.storage.get_log_stream(offset, again.last_offset))
        assert text.count(b'"key"') == 1


def test_whoever_has_the_first_rows_has_a_handle_that_outlives_a_kill(tmp_path: Path) -> None:
    """Of a snapshot that is one block: a larger one is read as it is written, and discarded by a crash."""
    begun, gate, told = threading.Event(), threading.Event(), threading.Event()

    def hold_the_disk() -> None:
        begun.set()
        gate.wait(WAIT_S)

    with running(tmp_path / "lane") as engine:
        engine._store.loop.run(hold_the_disk)
        assert begun.wait(WAIT_S)
        shape = engine.create(definition()).result(WAIT_S)
        shape.subscribe(told.set)
        engine.snapshot_known(shape, POINT)
        shape.storage.make_new_snapshot().close(b'{"headers":{"control":"snapshot-end"}}')
        engine.snapshot_completed(shape)
        for _ in range(2):  # the turn of the first has ended when the second has its own
            engine.submit(lambda: None).result(WAIT_S)
        assert (shape.snapshot_started, told.is_set()) == (False, False)
        gate.set()
        assert told.wait(WAIT_S)
        assert shape.snapshot_started
        killed = _copied(engine, tmp_path / "lane", tmp_path / "killed")

    with running(killed) as engine:
        assert [each.handle for each in engine.registry.all()] == [shape.handle]


def test_a_snapshot_that_failed_says_why_and_ends_its_shape(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        shape = engine.create(definition()).result(WAIT_S)
        told = threading.Event()
        shape.subscribe(told.set)
        problem = SnapshotProblem(503, "Snapshot timed out", 10)

        engine.snapshot_failed(shape, problem)

        assert told.wait(WAIT_S)
        assert (shape.state, shape.error) == ("gone", problem)
        assert engine.registry.all() == []
        again = engine.create(definition()).result(WAIT_S)
        assert again.handle != shape.handle


def test_a_shape_that_makes_no_progress_is_asked_once_and_then_ends(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        shape = made(engine)

        def stuck() -> list[str]:
            """It is handed a transaction, and nobody says that it is on disk."""
            tracker = engine.collector.delivery.tracker
            tracker.transaction(LogOffset(1050, 0), [shape.handle], 0.0)
            states: list[str] = []
            for now in (30.0, 61.0, 122.0):
                engine.eviction.drop_stuck(now)
                states.append(shape.state)
            return states

        assert engine.submit(stuck).result(WAIT_S) == ["ready", "ready", "gone"]
        assert engine.collector.delivery.tracker.is_level


def test_shapes_that_nobody_reads_end_and_those_that_somebody_waits_for_do_not(tmp_path: Path) -> None:
    with running(tmp_path, Limits(unread_s_max=3600)) as engine:
        unread, waited_for, read = (made(engine, f"owner = {n}") for n in range(3))
        unread.last_read = waited_for.last_read = read.last_read - 4000
        waited_for.subscribe(lambda: None)

        engine.eviction.drop_unread()
        engine.submit(lambda: None).result(WAIT_S)

        assert [shape.state for shape in (unread, waited_for, read)] == ["gone", "ready", "ready"]


def test_when_shapes_take_too_much_room_those_not_read_for_the_longest_time_end(tmp_path: Path) -> None:
    with running(tmp_path, Limits(disk_bytes_max=1)) as engine:
        shape = made(engine)

        engine.eviction.drop_unread()
        engine.submit(lambda: None).result(WAIT_S)

        assert shape.state == "gone"


def test_a_shape_whose_files_cannot_be_written_ends_alone(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        failing, other = made(engine, "owner = 1"), made(engine, "owner = 2")
        failing.storage.is_gone = True

        engine.submit(lambda: engine._storage_failed(failing.slot, OSError(28, "full"))).result(WAIT_S)
        engine.submit(lambda: engine._storage_failed(other.slot, OSError(28, "full"))).result(WAIT_S)

        assert (failing.state, other.state) == ("gone", "ready")


def test_an_engine_that_fails_says_so_and_leaves_nobody_waiting(tmp_path: Path) -> None:
    with running(tmp_path) as engine:

        def fail() -> None:
            raise RuntimeError("a defect")

        engine._inbox.put(fail, 0)
        wait_until(lambda: engine.failure is not None, "the engine to say that it failed")

        assert engine.create(definition()).exception(WAIT_S) is not None


def test_a_column_that_came_is_known_after_a_restart_and_its_snapshot_still_counts(tmp_path: Path) -> None:
    came = replace(COLUMNS[2], name="came", attribute_number=4)
    grown = replace(CARD, columns=(*CARD.columns, CardColumn(came, "text", 0, -1)))
    anew = replace(
        CARD, columns=(*CARD.columns, CardColumn(replace(came, attribute_number=5), "text", 0, -1))
    )
    later = SnapshotPoint(5, 5, (), 1100)
    with running(tmp_path) as engine:
        shape = made(engine, point=later)
        half = made(engine, "owner = 1", complete=False)
        for each in (shape, half):
            engine.submit(partial(engine.refresh, each, each.definition.with_card(grown))).result(WAIT_S)

    with running(tmp_path) as engine:
        (again,) = engine.registry.all()
        assert (again.handle, again.definition.card) == (shape.handle, grown)
        assert again.definition.columns == ("id", "owner", "note", "came")
        for now in (CARD, anew):  # dropped, or dropped and made anew, while nobody looked
            verdict = compare(again.definition, now)
            assert verdict is not None
            assert verdict.kind == "rotate"
        before = again.last_offset
        hand_in(engine, 1100, "1", (*COLUMNS, came))  # the snapshot shows it
        wait_until_durable(engine, 1100)
        assert (again.state, again.last_offset) == ("ready", before)
        engine.submit(partial(engine.refresh, again, again.definition)).result(WAIT_S)
        hand_in(engine, 1200, "2", (*COLUMNS, came))
        wait_until_durable(engine, 1200)

    with running(tmp_path) as engine:
        (again,) = engine.registry.all()
        assert b"".join(again.storage.get_log_stream(before, again.last_offset)).count(b'"key"') == 1


def test_a_crash_loses_nothing_of_a_shape_whose_snapshot_became_known_in_the_midst_of_an_item(
    tmp_path: Path,
) -> None:
    first, *others = MessageConverter(1).fragments(
        item(1300, *(piece([Logged(1110 + n, 0, "i", {"id": str(n)}, xid=60 + n)]) for n in range(2, 5)))
    )
    with running(tmp_path / "killed") as engine:
        shape = engine.create(definition()).result(WAIT_S)
        hand_in(engine, 1100, "1")  # it waits, whole
        assert engine.hand_in(first)
        assert not first.is_last
        engine.snapshot_known(shape, SnapshotPoint(1, 1, (), 1000))
        shape.storage.make_new_snapshot().close(b'{"headers":{"control":"snapshot-end"}}')
        engine.snapshot_completed(shape)
        wait_until(lambda: shape.storage.is_kept, "it to outlive a crash")
        wait_until(lambda: shape.storage.last_persisted_txn_offset.tx == 1050, "what waited to be durable")
        wait_until_durable(engine, 1100)
        shutil.copytree(tmp_path / "killed", tmp_path / "found")

    with running(tmp_path / "found") as engine:
        assert engine.begin_term() == Lsn(1100)
        (again,) = engine.registry.all()
        for fragment in (first, *others):
            assert engine.hand_in(fragment)
        wait_until_durable(engine, 1300)
        text = b"".join(again.storage.get_log_stream(LogOffset.LAST_BEFORE_REAL, again.last_offset))
        assert text.count(b'"key"') == 4


def test_when_all_is_made_anew_nothing_is_remembered_of_the_source_before(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        made(engine)
        for fragment in MessageConverter().fragments(
            item(1100, piece([Logged(1050, 0, "i", {"id": "1"}, xid=900)]))
        ):
            assert engine.hand_in(fragment)
        snapshots = engine.snapshots
        assert isinstance(snapshots, Snapshots)
        before = snapshots.started_over

        engine.start_over(Lsn(2000), "another server")

        assert snapshots.started_over == before + 1
        shape = engine.create(definition()).result(WAIT_S)
        engine.snapshot_known(shape, SnapshotPoint(5, 5, (), 2000))  # that does not show its transaction 900
        engine.submit(lambda: None).result(WAIT_S)
        assert (shape.state, shape.error) == ("ready", None)


def _copied(engine: Engine, directory: Path, to: Path) -> Path:
    """What a kill at this moment leaves: nothing is being written."""

    def copy() -> None:
        shutil.copytree(directory, to)

    engine._store.loop.run_now(copy)
    return to


def test_a_shape_that_was_dropped_does_not_come_back_after_a_kill(tmp_path: Path) -> None:
    """Whatever ended it is not told again: it would be served for ever, and wrong."""
    with running(tmp_path / "lane") as engine:
        shape, other = made(engine), made(engine, "owner = 1")
        hand_in(engine, 1100, "1")
        wait_until_durable(engine, 1100)
        copies: list[list[str]] = []
        write = engine._store.loop.log.write

        def copy_after(packed: bytes) -> None:
            write(packed)
            copies.append(sorted(path.name for path in (engine._store.files / "shapes").iterdir()))

        engine._store.loop.log.write = copy_after  # type: ignore[method-assign]
        gate = threading.Event()

        def wait() -> None:
            gate.wait(WAIT_S)

        engine._store.loop.run(wait)  # so that all comes at once
        engine.submit(lambda: engine.drop(shape, "truncate")).result(WAIT_S)
        hand_in(engine, 1200, "2")
        wait_until(lambda: engine._committed == Lsn(1200), "the commit to be handed over")
        gate.set()
        wait_until_durable(engine, 1200)
        assert copies == [[other.handle]] * len(copies), "found at a position past its end"
        killed = _copied(engine, tmp_path / "lane", tmp_path / "killed")

    with running(killed) as engine:
        assert [shape.handle for shape in engine.registry.all()] == [other.handle]
        assert engine.position == Lsn(1200)


def test_nobody_is_stuck_while_the_disk_is_full(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        shape = made(engine)
        engine.submit(engine._commit).result(WAIT_S)
        wait_until_durable(engine, 1000)
        loop = engine._store.loop
        write = loop.log.write

        def full(packed: bytes) -> None:
            raise OSError(28, "No space left on device")

        loop.log.write = full  # type: ignore[method-assign]
        hand_in(engine, 1100, "1")
        wait_until(lambda: engine._store.problem is not None, "the disk to be full")
        now = time.monotonic()

        def look(*at: float) -> list[str]:
            states: list[str] = []
            for after_s in at:
                engine.eviction.drop_stuck(now + after_s)
                states.append(shape.state)
            return states

        assert engine.submit(lambda: look(70, 140, 210)).result(WAIT_S) == ["ready"] * 3
        loop.log.write = write  # type: ignore[method-assign]
        wait_until_durable(engine, 1100)

        def stuck() -> list[str]:
            engine.collector.delivery.tracker.transaction(LogOffset(1150, 0), [shape.handle], 0.0)
            loop.failures += 1  # since the last look
            return look(280, 300, 341, 402)

        states = engine.submit(stuck).result(WAIT_S)
        assert states == ["ready", "ready", "ready", "gone"], "its time begins when the disk has room"


def test_all_shapes_may_be_made_anew_while_one_is_being_made(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        gate, inside = threading.Event(), threading.Event()

        def wait() -> None:
            inside.set()
            gate.wait(WAIT_S)

        engine.submit(wait)
        assert inside.wait(WAIT_S)
        over = threading.Thread(target=engine.start_over, args=(Lsn(500), ""))
        over.start()
        wait_until(lambda: len(engine._inbox._tasks) == 1, "it to be asked for")
        making = engine.create(definition())
        wait_until(lambda: len(engine._inbox._tasks) == 2, "its files to be there")
        gate.set()
        over.join(WAIT_S)

        assert making.result(WAIT_S).state == "creating"
        assert engine.position == Lsn(500)


def test_a_shape_that_cannot_be_routed_is_refused_and_can_be_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    with running(tmp_path) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(engine.collector._router, "add", fail)
            error = engine.create(definition()).exception(WAIT_S)
        assert isinstance(error, SnapshotProblem)
        assert engine.registry.all() == []
        shape = engine.create(definition()).result(WAIT_S)
        assert engine.collector.shape_at(shape.slot) is shape


def test_a_shape_that_cannot_be_gone_on_with_is_discarded_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as engine:
        broken, other = made(engine, "owner = 1"), made(engine, "owner = 2")
        hand_in(engine, 1100, "1")
        wait_until_durable(engine, 1100)
    resume = ShapeLogCollector.resume

    def fail_for_one(collector: ShapeLogCollector, shape: Shape, point: SnapshotPoint | None) -> None:
        if shape.handle == broken.handle:
            raise RuntimeError("a defect")
        resume(collector, shape, point)

    monkeypatch.setattr(ShapeLogCollector, "resume", fail_for_one)
    with running(tmp_path) as engine:
        assert [shape.handle for shape in engine.registry.all()] == [other.handle]
    monkeypatch.undo()
    with running(tmp_path) as engine:
        assert [shape.handle for shape in engine.registry.all()] == [other.handle]


def test_shapes_that_lack_changes_are_gone_for_good_before_capture_may_be_told(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        shape = made(engine)
        was_there: list[bool] = []
        told = threading.Event()

        def joined() -> None:
            was_there.append(Path(shape.storage.directory).exists())
            told.set()

        engine.on_joined = joined
        engine._store.loop.run(lambda: _let_pass(told, 0.2))  # it is slow to move it away
        engine.joined(Started("1", 1, 180000, False, Lsn(1), None, Lsn(2), (TABLE,)))
        assert (shape.state, was_there) == ("gone", [False])


def _let_pass(event: threading.Event, at_most_s: float) -> None:
    event.wait(at_most_s)


def test_an_engine_whose_disk_is_full_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    def full(packed: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with running(tmp_path) as engine:
        made(engine)
        loop = engine._store.loop
        wait_until(lambda: not loop._commits and not loop.buffered_bytes, "nothing to be under way")
        loop._buffer_bytes_max = 10
        loop.log.write = full  # type: ignore[method-assign]
        hand_in(engine, 1100, "1")
        wait_until(lambda: loop.buffered_bytes > 10, "the engine to wait for room")
        closing = threading.Thread(target=engine.close)
        closing.start()
        closing.join(WAIT_S)
        ended, loop._buffer_bytes_max = not closing.is_alive(), 1 << 20
        loop.take_last()
        assert ended
