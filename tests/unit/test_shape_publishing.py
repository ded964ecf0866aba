"""Many shapes of new tables, one join; and what a refusal of one of them does to the others.

Capture is stood in for by its rules: which tables it takes, and which it has just published.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import pytest

from penstock.capture.spec import Started
from penstock.core.errors import CaptureAwayError, PenstockError, SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.shapes.shape import SnapshotProblem
from penstock.shapes.source import publishing
from penstock.shapes.source.problems import locked
from penstock.shapes.source.publishing import TablePublisher
from tests.conftest import WAIT_S, wait_until

A, B, C = (StreamId("public", name) for name in "abc")


class CaptureByRules:
    def __init__(self) -> None:
        self.asked = 0
        self.joins: list[frozenset[StreamId]] = []
        self.refused: dict[StreamId, str] = {}
        self.published: set[StreamId] = set()  # in the publication
        self.unheard: set[StreamId] = set()
        self.away = False
        self.manual = False
        self.gate = threading.Event()
        self.gate.set()

    def join(self, streams: list[StreamId], full_identity: Collection[StreamId] = ()) -> Started:
        self.asked += 1
        assert self.gate.wait(WAIT_S)
        if self.away:
            raise CaptureAwayError("Capture is away.")
        self.joins.append(frozenset(streams))
        assert frozenset(full_identity) == frozenset(streams)
        wrong = [stream for stream in streams if stream in self.refused]
        if wrong and self.manual:
            raise SourceError(
                "by hand", stream=str(wrong[0]) if len(wrong) == 1 else None, remedy="Run this."
            )
        if wrong:
            raise SourceError(self.refused[wrong[0]], stream=str(wrong[0]), remedy="Run this.")
        new = set(streams) - self.published
        self.published |= new
        self.unheard |= new
        return Started("1", 1, 180000, False, Lsn(1), None, Lsn(2), tuple(sorted(self.unheard)))

    def heard(self, streams: Collection[StreamId] | None = None) -> None:
        assert streams is not None, "others may not have settled"
        if self.away:
            raise CaptureAwayError("Capture is away.")
        self.unheard -= set(streams)


class Settled:
    """Stands for the wait for writers."""

    def __init__(self) -> None:
        self.gates: dict[StreamId, threading.Event] = {}
        self.written: set[StreamId] = set()  # tables with a writer that goes on
        self.waited: list[StreamId] = []

    @contextmanager
    def connection(self) -> Iterator[None]:
        yield

    def wait(self, _connection: None, table: StreamId, _wait_s: float) -> None:
        if table in self.gates:
            assert self.gates[table].wait(WAIT_S)
        if table in self.written:
            raise locked()
        self.waited.append(table)


class Case:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capture = CaptureByRules()
        self.settled = Settled()
        self.told: list[tuple[StreamId, ...]] = []
        self.manual = False
        monkeypatch.setattr(publishing, "wait_for_writers", self.settled.wait)
        monkeypatch.setattr(publishing, "_CONFIRM_AFTER_S", 0.0)
        self.publisher = self.make()

    def make(self, *, manual: bool = False, wait_s: float = WAIT_S) -> TablePublisher:
        self.publisher = TablePublisher(
            self.capture,
            self.settled,  # type: ignore[arg-type]
            lambda started, _tables: self.told.append(started.published),
            manual=manual,
            wait_s=wait_s,
        )
        return self.publisher

    def wait_until_heard(self, *still: StreamId) -> None:
        wait_until(lambda: self.capture.unheard == set(still), "capture to be told")

    def problem(self, table: StreamId) -> SnapshotProblem:
        with pytest.raises(SnapshotProblem) as caught:
            self.publisher.ensure(table).result(WAIT_S)
        return caught.value


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    made = Case(monkeypatch)
    yield made
    made.publisher.close()


def test_many_shapes_at_once_are_one_join_and_later_ones_none(case: Case) -> None:
    case.publisher.join([])
    case.capture.gate.clear()
    first = case.publisher.ensure(A)
    rest = [case.publisher.ensure(table) for table in (B, C, A, B) * 100]
    case.capture.gate.set()
    for outcome in (first, *rest):
        outcome.result(WAIT_S)
    assert len(case.capture.joins) <= 3  # the term's, one that had begun, one for all others
    assert case.capture.joins[-1] == {A, B, C}
    joins = len(case.capture.joins)
    case.publisher.ensure(B).result(WAIT_S)
    assert len(case.capture.joins) == joins


def test_a_table_that_is_refused_keeps_no_other_one_out(case: Case) -> None:
    case.publisher.join([A])
    case.capture.refused[B] = "The role may not."
    refused, taken = case.publisher.ensure(B), case.publisher.ensure(C)
    taken.result(WAIT_S)
    with pytest.raises(SnapshotProblem, match=r"The role may not\. Run this\.") as caught:
        refused.result(WAIT_S)
    assert (caught.value.status, caught.value.known) == (503, True)
    assert case.capture.joins[-1] == {A, C}
    del case.capture.refused[B]
    case.publisher.ensure(B).result(WAIT_S)


def test_tables_that_are_to_be_published_by_hand_are_told_apart(case: Case) -> None:
    publisher = case.make(manual=True)
    case.capture.manual = True
    case.capture.refused = {A: "", C: ""}
    joined = publisher.join([A, B, C])
    assert joined.refused.keys() == {A, C}
    assert case.capture.joins[-1] == {B}


def test_an_error_of_the_moment_refuses_nothing(case: Case) -> None:
    real = case.capture.join

    def once(streams: list[StreamId], full_identity: Collection[StreamId] = ()) -> Started:
        case.capture.join = real  # type: ignore[method-assign]
        raise SourceError("The connection was lost.", stream=str(A))

    case.capture.join = once  # type: ignore[method-assign]
    with pytest.raises(PenstockError, match="The connection was lost"):
        case.publisher.join([A, B])
    assert case.publisher.join([A, B]).refused == {}


def test_a_fresh_table_waits_for_its_writers_and_capture_is_told_of_each_that_has_none_left(
    case: Case,
) -> None:
    case.publisher.join([])
    case.settled.gates[A] = threading.Event()
    waiting, through = case.publisher.ensure(A), case.publisher.ensure(B)
    through.result(WAIT_S)
    case.wait_until_heard(A)  # the other table does not wait with it
    assert not waiting.done()
    case.publisher.join([A, B])  # the lane's next term; what it was told of is not told again
    assert case.told[-1] == ()
    case.settled.gates[A].set()
    waiting.result(WAIT_S)
    case.wait_until_heard()
    case.publisher.join([A, B])
    assert sorted(table for tables in case.told for table in tables) == [A, B]
    assert case.told[-1] == ()


def _new_term(publisher: TablePublisher) -> None:
    publisher.join([B])  # with the tables of shapes: the one that failed is not among them


def _table_changed(publisher: TablePublisher) -> None:
    publisher.forget(A)
    publisher.ensure(C).result(WAIT_S)


@pytest.mark.parametrize("meanwhile", [lambda _publisher: None, _new_term, _table_changed])
def test_a_fresh_table_stays_fresh_whatever_is_joined_until_its_writers_have_ended(
    case: Case, meanwhile: Callable[[TablePublisher], None]
) -> None:
    case.publisher.join([B])
    case.settled.written = {A}
    assert case.problem(A).message == "Snapshot timed out while waiting for a table lock"
    meanwhile(case.publisher)
    assert case.problem(A).message == "Snapshot timed out while waiting for a table lock"
    assert A in case.capture.unheard
    case.settled.written = set()
    case.publisher.ensure(A).result(WAIT_S)
    assert A in case.settled.waited


def test_a_table_that_a_process_before_has_published_is_fresh_though_no_shape_has_it_yet(case: Case) -> None:
    case.capture.join([A], {A})  # it was killed before its writers had ended
    case.publisher.join([])
    case.publisher.join([])
    case.settled.written = {A}
    case.problem(A)
    assert case.capture.unheard == {A}


def test_if_capture_cannot_be_told_a_table_settles_once_more_and_its_shapes_stay(case: Case) -> None:
    case.publisher.join([])
    case.settled.gates[A] = threading.Event()
    waiting = case.publisher.ensure(A)
    wait_until(lambda: case.told[-1] == (A,), "the table to be published")
    case.capture.away = True
    case.settled.gates[A].set()
    waiting.result(WAIT_S)
    case.capture.away = False
    case.publisher.join([A])
    assert case.told[-1] == ()
    case.publisher.ensure(A).result(WAIT_S)
    case.wait_until_heard()


def test_a_table_that_was_left_out_of_the_publication_meanwhile_is_told_of_again(case: Case) -> None:
    case.publisher.join([])
    case.publisher.ensure(A).result(WAIT_S)
    case.wait_until_heard()
    case.publisher.join([A])
    case.capture.published.clear()
    case.publisher.join([A])
    assert case.told[-1] == (A,)
    case.publisher.ensure(A).result(WAIT_S)
    assert case.settled.waited == [A, A]


def test_a_forgotten_table_is_joined_again(case: Case) -> None:
    case.publisher.join([A])
    case.publisher.ensure(A).result(WAIT_S)
    joins = len(case.capture.joins)
    case.publisher.forget(A)
    case.publisher.ensure(A).result(WAIT_S)
    assert len(case.capture.joins) == joins + 1


def test_another_table_of_the_same_name_is_joined_and_waited_for_though_no_shape_was_left_to_notice(
    case: Case,
) -> None:
    case.publisher.join([])
    case.publisher.ensure(A, 1).result(WAIT_S)
    case.wait_until_heard()
    case.capture.published.clear()  # it was dropped and made anew
    case.publisher.ensure(A, 2).result(WAIT_S)
    assert case.capture.published == {A}
    assert case.settled.waited == [A, A]


def test_a_table_that_is_forgotten_while_a_join_is_under_way_is_joined_once_more(case: Case) -> None:
    case.publisher.join([])
    case.publisher.ensure(A, 1).result(WAIT_S)
    joins = len(case.capture.joins)
    case.capture.gate.clear()
    other = case.publisher.ensure(B, 1)
    wait_until(lambda: case.capture.asked > joins, "the join to be under way")
    again = case.publisher.ensure(A, 2)
    case.capture.gate.set()
    other.result(WAIT_S)
    again.result(WAIT_S)
    assert A in case.capture.joins[-1]
    assert len(case.capture.joins) == joins + 2

    case.capture.gate.clear()
    waiting = case.publisher.ensure(C, 1)
    wait_until(lambda: case.capture.asked > joins + 2, "the join to be under way")
    case.publisher.forget(C)
    case.capture.gate.set()
    waiting.result(WAIT_S)
    assert len(case.capture.joins) == joins + 4


def test_nobody_waits_for_a_lock_without_end(case: Case) -> None:
    publisher = case.make(wait_s=0.05)
    case.capture.gate.clear()
    assert case.problem(A).message == "Snapshot timed out while waiting for a table lock"
    case.capture.gate.set()
    publisher.ensure(A).result(WAIT_S)


def test_without_capture_there_is_no_new_shape(case: Case) -> None:
    case.capture.away = True
    problem = case.problem(A)
    assert (problem.status, problem.retry_after_s) == (503, 5)
    with pytest.raises(CaptureAwayError):
        case.publisher.join([A])
    case.publisher.close()
    assert case.problem(A).code == "database_unreachable"
