"""What is due to a table by its figures, and what may expire without a trace being lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.report import TableHealth
from penstock.destinations.iceberg_expiry import History, Most, Reference, Version, cut_off, to_expire
from penstock.destinations.iceberg_health import (
    LEFT_ALONE,
    SPARE_MIN,
    Limits,
    deletes_are_due,
    due,
    files_are_due,
    small_file_ratio,
    spare_manifests,
)
from penstock.destinations.iceberg_history import Ancestor, newest_commit
from penstock.destinations.iceberg_record import CUT_OFF_TOGETHER, Known, cut_off_properties, outlived

MIB = 1024 * 1024
LIMITS = Limits(256 * MIB, 0.3, 0.1, 5 * 86400, 10, 3 * 86400, 1000, 3600)
WELL = TableHealth(100, 100 * 256 * MIB, 0.0, 0, 0.0, 0, 10, 3600)


def due_of(health: TableHealth, limits: Limits = LIMITS) -> tuple[str, ...]:
    return due(health, limits, by_hand=False, orphans_s=None)


def test_nothing_is_due_to_a_table_that_is_well() -> None:
    assert due_of(WELL) == ()


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        (replace(WELL, small_file_ratio=0.3), ("data files",)),
        (replace(WELL, small_file_ratio=0.29), ()),
        (replace(WELL, delete_ratio=0.1, delete_files=5), ("data files",)),
        (replace(WELL, delete_ratio=0.1, delete_files=4, file_bytes=639 * MIB), ()),
        (replace(WELL, delete_ratio=0.1, delete_files=4, file_bytes=640 * MIB), ("data files",)),
        (replace(WELL, delete_ratio=0.09, delete_files=199), ()),
        (replace(WELL, delete_ratio=0.09, delete_files=200), ("delete files",)),
        (replace(WELL, spare_manifests=20), ("manifests",)),
        (replace(WELL, snapshots=11, oldest_snapshot_age_s=6 * 86400), ("snapshots",)),
        (replace(WELL, snapshots=11, oldest_snapshot_age_s=5.5 * 86400), ()),
        (replace(WELL, snapshots=10, oldest_snapshot_age_s=60 * 86400), ()),
        (replace(WELL, snapshots=1201, oldest_snapshot_age_s=4320), ("snapshots",)),
        (replace(WELL, snapshots=1200, oldest_snapshot_age_s=4320), ()),
        (replace(WELL, snapshots=1201, oldest_snapshot_age_s=4319), ()),
    ],
)
def test_what_is_due_follows_from_the_figures(health: TableHealth, expected: tuple[str, ...]) -> None:
    assert due_of(health) == expected


def test_by_hand_snapshots_go_at_their_age_and_orphans_are_always_looked_for() -> None:
    old = replace(WELL, snapshots=11, oldest_snapshot_age_s=5 * 86400)
    assert due(old, LIMITS, by_hand=True, orphans_s=None) == ("snapshots", "orphans")


def test_orphans_are_looked_for_once_in_their_age() -> None:
    assert due(WELL, LIMITS, by_hand=False, orphans_s=3 * 86400) == ("orphans",)
    assert due(WELL, LIMITS, by_hand=False, orphans_s=3 * 86400 - 1) == ()


def test_a_ratio_of_zero_makes_no_table_without_spare_files_due() -> None:
    assert due_of(WELL, replace(LIMITS, small_file_ratio=0.0)) == ()


def test_deletes_left_over_by_a_rewrite_are_looked_through_if_they_are_few() -> None:
    assert deletes_are_due(replace(WELL, delete_files=1), LIMITS, rewritten=8)
    assert not deletes_are_due(replace(WELL, delete_files=1), LIMITS)
    assert not deletes_are_due(replace(WELL, delete_files=50), LIMITS, rewritten=8)


def test_many_deletes_that_no_file_had_to_be_rewritten_for_concern_none_and_go() -> None:
    worn = replace(WELL, delete_files=6, delete_ratio=0.5)
    assert files_are_due(worn, LIMITS)
    assert deletes_are_due(worn, LIMITS, rewritten=0)
    assert not deletes_are_due(worn, LIMITS), "the data files come first"


@given(st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=40), max_size=10))
def test_what_is_called_small_iceberg_takes(partitions: list[list[int]]) -> None:
    """Its planner takes files below a part of the target, from five in a partition on."""
    target = 400
    ratio = small_file_ratio([(len(files), sum(files)) for files in partitions], target)
    taken = [sum(size < LEFT_ALONE * target for size in files) for files in partitions]
    assert 0 <= ratio <= 1
    if ratio > 0:
        assert max(taken) >= SPARE_MIN
    if all(len(files) == 1 for files in partitions):
        assert ratio == 0


def test_small_files_are_counted_by_partition() -> None:
    assert small_file_ratio([(10, 10 * MIB)], 256 * MIB) == 0.9
    assert small_file_ratio([(1, MIB)] * 10, 256 * MIB) == 0
    assert small_file_ratio([(10, 10 * MIB), (10, 10 * 256 * MIB)], 256 * MIB) == 0.45


def test_manifests_are_spare_by_their_size() -> None:
    assert spare_manifests([1000] * 30) == 29
    assert spare_manifests([8 * MIB] * 30) == 0


def version(number: int, parent: int | None, *, ours: bool = False) -> Version:
    return Version(number, parent, number, ours)


def history(*versions: Version, **references: Reference) -> History:
    return History({each.snapshot_id: each for each in versions}, references)


def test_what_is_named_young_or_among_the_newest_stays() -> None:
    line = [version(n, n - 1 or None) for n in range(1, 11)]
    made = history(*line, main=Reference(10, True), tag=Reference(2, False))
    assert to_expire(made, older_than_ms=9, snapshots_min=1) == {1, 3, 4, 5, 6, 7, 8}
    assert to_expire(made, older_than_ms=99, snapshots_min=3) == {1, 3, 4, 5, 6, 7}
    assert to_expire(made, older_than_ms=0, snapshots_min=1) == set()


def test_of_too_many_the_oldest_go_unless_somebody_may_count_on_them() -> None:
    line = [version(n, n - 1 or None) for n in range(1, 11)]
    made = history(*line, main=Reference(10, True), tag=Reference(2, False))
    assert to_expire(made, 0, 1, Most(3, 99)) == {1, 3, 4, 5, 6, 7}
    assert to_expire(made, 0, 1, Most(3, older_than_ms=5)) == {1, 3}, "4 was read until 5 was made"
    assert to_expire(made, 0, 5, Most(3, 99)) == {1, 3, 4, 5}
    assert to_expire(made, 0, 1, Most(10, 99)) == set()
    assert to_expire(made, 9, 1, Most(8, 99)) == to_expire(made, 9, 1)


def test_a_snapshot_was_read_until_the_next_one_of_main_whatever_a_branch_put_on_top_of_it() -> None:
    line = [version(1, None), version(8, 1), version(9, 8), version(10, 9)]
    load = [version(2, 1), version(3, 2)]
    made = history(*line, *load, main=Reference(10, True), penstock_load=Reference(3, True))
    assert to_expire(made, 0, 1, Most(2, older_than_ms=8)) == set(), "1 was read until 8 was made"
    assert to_expire(made, 0, 1, Most(2, older_than_ms=9)) == {1}


def test_a_snapshot_that_main_has_left_was_read_until_its_last_successor_at_least() -> None:
    left = [version(2, 1), version(3, 2), version(7, 2)]
    line = [version(1, None), version(8, 1), version(9, 8)]
    made = history(*line, *left, main=Reference(9, True))
    assert to_expire(made, 0, 1, Most(1, older_than_ms=7)) == {3}
    assert to_expire(made, 0, 1, Most(1, older_than_ms=8)) == {2, 3, 7}


def test_all_of_a_branch_stays_and_what_was_rolled_back_goes() -> None:
    made = history(
        version(1, None, ours=True),
        version(2, 1, ours=True),
        version(3, 2),
        version(4, 3),
        version(5, 2),
        version(6, 5),
        version(7, 1, ours=True),
        main=Reference(6, True),
        penstock_load=Reference(4, True),
    )
    expired = to_expire(made, older_than_ms=99, snapshots_min=1)
    assert expired == {1, 2, 5, 7}
    assert cut_off(made, expired) == [3, 6]


def test_references_that_iceberg_is_about_to_drop_keep_nothing() -> None:
    day = 86400 * 1000
    document = {
        "snapshots": [
            {"snapshot-id": 1, "timestamp-ms": 0, "summary": {"penstock": "{}"}},
            {"snapshot-id": 2, "parent-snapshot-id": 1, "timestamp-ms": 5, "summary": {}},
        ],
        "refs": {
            "main": {"snapshot-id": 2, "type": "branch", "max-ref-age-ms": 1},
            "penstock_fence": {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": day},
        },
    }
    assert to_expire(History.from_json(document, now_ms=day), day, 1) == set()
    lapsed = History.from_json(document, now_ms=day + 1)
    assert to_expire(lapsed, day, 1) == {1}
    assert lapsed.versions[1].is_ours
    assert cut_off(lapsed, {1}) == [2]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5), st.integers(1, 9)), max_size=4),
)
def test_what_a_kept_snapshot_holds_is_known_after_any_expiry(
    commits: list[tuple[bool, int]], expiries: list[tuple[int, int, int]]
) -> None:
    """Commits of ours and of others, each on top of a recent one; no older metadata is left to ask."""
    versions: dict[int, Version] = {}
    truth: dict[int, str | None] = {}
    for number, (ours, back) in enumerate(commits, start=1):
        parent = max(number - 1 - back, 0) or None
        versions[number] = version(number, parent, ours=ours)
        truth[number] = f"commit {number}" if ours else truth.get(parent or 0)
    written: dict[str, str] = {}

    def find(number: int) -> Ancestor | None:
        found = versions.get(number)
        return (
            None
            if found is None
            else Ancestor(number, found.parent_id, truth[number] if found.is_ours else None)
        )

    for older_than, keep, most in expiries:
        made = history(*versions.values(), main=Reference(len(commits), True))
        expired = to_expire(made, older_than, keep, Most(most, 99))
        known = Known(written.get)
        answers = {each: newest_commit(each, find, known) for each in cut_off(made, expired)}
        gone = outlived(written, versions.keys())
        written = {name: held for name, held in written.items() if name not in gone}
        written |= cut_off_properties(answers)
        versions = {number: each for number, each in versions.items() if number not in expired}
        for number in versions:
            assert newest_commit(number, find, Known(written.get)) == truth[number]


def test_every_answer_is_written_down() -> None:
    answers: dict[int, str | None] = {
        number: f"commit {number}" if number % 2 else None for number in range(100)
    }
    known = Known(cut_off_properties(answers).get)
    assert {number: known[number] for number in answers} == answers
    assert all(number in known for number in answers)
    assert 100 not in known


def test_what_is_written_down_of_a_snapshot_goes_when_that_is_gone() -> None:
    """Also what the first versions wrote, all in one, which stays while one of its snapshots does."""
    older = {CUT_OFF_TOGETHER: '{"1":"commit 1","2":null}'}
    written = {**older, **cut_off_properties({3: "commit 3", 4: None}), "penstock.epoch": "0/1"}
    known = Known(written.get)
    assert [known[number] for number in (1, 2, 3, 4)] == ["commit 1", None, "commit 3", None]
    assert outlived(written, {1, 2, 3, 4}) == []
    assert outlived(written, {2, 4}) == [*cut_off_properties({3: None})]
    assert outlived(written, {3}) == [CUT_OFF_TOGETHER, *cut_off_properties({4: None})]
