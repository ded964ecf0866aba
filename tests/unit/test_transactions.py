from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.tail_items import Transactions
from penstock.capture.tail_reader import first_change
from penstock.capture.transactions import DELETE, INSERT, TRUNCATE, UPDATE, ChangeRows, MessageConverter
from penstock.core.position import Lsn
from tests.logged_changes import COLUMNS, Logged, item, piece


def inserted(tx: int, op: int) -> Logged:
    return Logged(tx, op, "i", {"id": f"{tx}-{op}"})


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(0, 10), st.integers(0, 10))
def test_changes_between_two_positions_are_those_from_the_first_and_before_the_second(
    drawn: list[int], start: int, end: int
) -> None:
    txs = sorted(drawn)
    own = piece([inserted(tx, n) for n, tx in enumerate(txs)])
    [fragment] = MessageConverter().fragments(item(100, own))
    [changes] = fragment.changes
    for until in (Lsn(end), None):
        wanted = [tx for tx in txs if start <= tx and (until is None or tx < end)]
        part = changes.between(Lsn(start), until)
        assert (wanted == []) == (part is None)
        assert part is None or part.tx.tolist() == wanted


def ids(changes: Sequence[ChangeRows]) -> list[str | None]:
    return [value for each in changes for value in each.new("id").to_pylist()]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=60),
    st.integers(1, 6_000),
    st.integers(1, 20),
    st.booleans(),
)
def test_rows_of_all_leaves_come_in_the_order_of_the_log_however_an_item_is_cut(
    placed: list[tuple[int, int]], bytes_max: int, group: int, from_log: bool
) -> None:
    """`placed`: of each change the transaction, relative, and the leaf. What is in memory comes leaf by leaf;
    the log gives pieces by their first changes, as they are asked for."""
    changes = sorted((100 * tx, 2 * n, leaf) for n, (tx, leaf) in enumerate(placed))
    groups = []
    for leaf in range(3):
        own = [inserted(tx, op) for tx, op, each in changes if each == leaf]
        groups += [piece(own[at : at + group], f"public.leaf_{leaf}") for at in range(0, len(own), group)]
    pieces = iter(sorted(groups, key=first_change)) if from_log else tuple(groups)

    fragments = list(MessageConverter(bytes_max).fragments(Transactions(Lsn(1000), pieces)))

    assert [found for each in fragments for found in ids(each.changes)] == [
        f"{tx}-{op}" for tx, op, _ in changes
    ]
    parts = [part for each in fragments for part in each.partitions]
    for leaf in range(3):
        of_leaf = [part for part in parts if str(part.stream) == f"public.leaf_{leaf}"]
        assert ids(of_leaf) == [f"{tx}-{op}" for tx, op, each in changes if each == leaf]
    assert [each.is_last for each in fragments] == [False] * (len(fragments) - 1) + [True]
    assert {each.end for each in fragments} == {Lsn(1000)}
    filled = [each for each in fragments if each.changes]
    assert min(each.first_tx for each in filled) == changes[0][0]
    assert max(each.last_tx for each in filled) == changes[-1][0]


def test_leaves_in_memory_that_do_not_come_in_the_order_of_their_changes_are_put_in_it() -> None:
    """One transaction wrote to one leaf after the other; capture tells of them in the order of their oids."""
    leaves = [
        piece([inserted(100, op) for op in range(start, start + 20, 2)], f"public.leaf_{start}")
        for start in (20, 40, 0)
    ]

    fragments = list(MessageConverter(1).fragments(item(200, *leaves)))

    assert len(fragments) == 3
    assert [found for each in fragments for found in ids(each.changes)] == [
        f"100-{op}" for op in range(0, 60, 2)
    ]


def test_leaves_that_have_their_columns_in_another_order_become_rows_of_one_table() -> None:
    swapped = (COLUMNS[2], COLUMNS[0], COLUMNS[1])
    one = piece([Logged(10, 0, "u", {"id": "1", "note": "b"}, {"id": "1", "note": "a"})], "public.leaf_1")
    other = piece(
        [Logged(10, 2, "u", {"id": "2", "note": "d"}, {"id": "2", "note": "c"})], "public.leaf_2", swapped
    )

    (fragment,) = MessageConverter().fragments(item(20, one, other))

    (changes,) = fragment.changes
    assert changes.new("id").to_pylist() == ["1", "2"]
    assert changes.new("note").to_pylist() == ["b", "d"]
    assert changes.old("note").to_pylist() == ["a", "c"]


def test_rows_from_before_and_after_a_column_came_stay_apart_and_in_order() -> None:
    before = piece([inserted(10, 0), inserted(30, 0)], columns=COLUMNS[:2])
    after = piece([Logged(30, 2, "i", {"id": "9", "note": "x"})])

    (fragment,) = MessageConverter().fragments(item(40, before, after))

    assert [sorted(each.version.types) for each in fragment.changes] == [
        ["id", "owner"],
        ["id", "note", "owner"],
    ]
    assert fragment.changes[0].new("note").to_pylist() == [None, None]


def test_an_item_without_changes_is_a_fragment_that_says_so() -> None:
    (fragment,) = MessageConverter().fragments(item(40))

    assert (fragment.end, fragment.changes, fragment.is_last) == (Lsn(40), [], True)


def test_what_a_change_is_can_be_read_from_a_slice() -> None:
    changes = [
        inserted(1, 0),
        Logged(1, 2, "u", {"id": "1"}, {"id": "1"}),
        Logged(2, 0, "d", None, {"id": "1"}, old_kind="k"),
        Logged(3, 0, "t"),
    ]
    (fragment,) = MessageConverter().fragments(item(4, piece(changes)))

    part = fragment.changes[0].slice(1, 4)

    assert part.op.tolist() == [UPDATE, DELETE, TRUNCATE]
    assert fragment.changes[0].op[0] == INSERT
    assert bytes(part.old_kind) == b"fkn"
    assert part.tx.tolist() == [1, 2, 3]
    assert part.xid.dtype == np.uint64
