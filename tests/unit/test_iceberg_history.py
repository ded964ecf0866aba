"""Which commit a table holds, whatever others do to its snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.destinations.iceberg_history import Ancestor, HistoryGapError, newest_commit
from penstock.destinations.iceberg_record import COMMITS, COMMITS_MIRRORED, mirror_text, read_mirror


@dataclass
class Table:
    """A table as catalogs keep it: snapshots that may expire, older metadata that is kept for a while."""

    metadata_kept: int
    snapshots: dict[int, Ancestor] = field(default_factory=dict)
    older: list[dict[int, Ancestor]] = field(default_factory=list)
    head: int | None = None
    mirror: dict[int, str] = field(default_factory=dict)
    truth: dict[int, str | None] = field(default_factory=dict)  # what each snapshot holds of ours
    commits: int = 0

    def change(self) -> None:
        self.older = [*self.older, dict(self.snapshots)][-self.metadata_kept :] if self.metadata_kept else []

    def commit(self, ours: bool) -> None:
        self.change()
        self.commits += 1
        number, record = self.commits, f"commit {self.commits}" if ours else None
        self.snapshots[number] = Ancestor(number, self.head, record)
        self.truth[number] = record or (self.truth[self.head] if self.head is not None else None)
        self.head = number
        if record is not None:
            self.mirror = read_mirror({COMMITS: mirror_text(self.mirror, number, record)}.get)

    def roll_back(self, choice: int) -> None:
        self.change()
        self.head = sorted(self.snapshots)[choice % len(self.snapshots)] if self.snapshots else None

    def expire(self, keep: int) -> None:
        self.change()
        kept = sorted(self.snapshots)[-keep:]
        self.snapshots = {n: s for n, s in self.snapshots.items() if n in kept or n == self.head}

    def find(self, snapshot_id: int) -> Ancestor | None:
        places = [self.snapshots, *reversed(self.older)]
        return next((place[snapshot_id] for place in places if snapshot_id in place), None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ours"), st.just(0)),
        st.tuples(st.just("foreign"), st.just(0)),
        st.tuples(st.just("roll back"), st.integers(0, 9)),
        st.tuples(st.just("expire"), st.integers(1, 3)),
    ),
    max_size=30,
)


def run(table: Table, steps: list[tuple[str, int]]) -> None:
    for step, value in steps:
        if step == "roll back":
            table.roll_back(value)
        elif step == "expire":
            table.expire(value)
        else:
            table.commit(step == "ours")


@given(STEPS)
def test_the_answer_is_what_the_head_was_built_on(steps: list[tuple[str, int]]) -> None:
    table = Table(metadata_kept=100)
    run(table, steps)
    expected = table.truth[table.head] if table.head is not None else None
    assert newest_commit(table.head, table.find, table.mirror) == expected


@given(STEPS, st.integers(0, 2))
def test_where_nobody_can_tell_it_says_so_and_never_guesses(steps: list[tuple[str, int]], kept: int) -> None:
    table = Table(metadata_kept=kept)
    run(table, steps)
    try:
        found = newest_commit(table.head, table.find, table.mirror)
    except HistoryGapError:
        return
    assert found == (table.truth[table.head] if table.head is not None else None)


def test_a_rollback_that_expiry_covered_up_is_not_taken_for_a_commit() -> None:
    table = Table(metadata_kept=0)
    run(table, [("ours", 0), ("ours", 0), ("roll back", 0), ("foreign", 0), ("foreign", 0), ("expire", 1)])
    with pytest.raises(HistoryGapError):
        newest_commit(table.head, table.find, table.mirror)


def test_the_mirror_stays_short() -> None:
    mirror: dict[int, str] = {}
    for number in range(100):
        mirror = read_mirror({COMMITS: mirror_text(mirror, number, "x")}.get)
    assert list(mirror) == list(range(100 - COMMITS_MIRRORED, 100))
