"""Small fragments that wait become one, with the same changes in the same order, and errors come last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.tail_items import Transactions
from penstock.capture.tail_reader import TailReader
from penstock.capture.transactions import MessageConverter, TransactionFragment
from penstock.core.errors import CaptureAwayError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.streams.tail_feed import TailFeed, joined
from tests.conftest import WAIT_S, wait_until
from tests.logged_changes import COLUMNS, Logged, item, piece

pytestmark = pytest.mark.unit


class Items:
    """A tail of its own; `read` counts what was asked for."""

    def __init__(self, items: Iterable[Transactions], error: BaseException | None = None) -> None:
        self._items = list(items)
        self._error = error
        self.read = 0

    def follow(self, after: Lsn) -> Iterator[Transactions]:
        for each in self._items:
            yield each
            self.read += 1
        if self._error is not None:
            raise self._error

    def feed(self) -> TailFeed:
        return TailFeed(cast(TailReader, self), Lsn(0))


def inserted(tx: int, size: int = 1) -> Logged:
    return Logged(tx, 0, "i", {"id": str(tx), "note": "x" * size})


def small(tx: int) -> Transactions:
    return item(tx + 1, piece([inserted(tx)], "public.t"))


def ids(fragment: TransactionFragment) -> list[str | None]:
    return [value for changes in fragment.changes for value in changes.new("id").to_pylist()]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.booleans()), max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_joined_is_the_same_changes_in_the_same_order(
    transactions: list[list[tuple[int, int, bool]]],
) -> None:
    """Of each transaction the changes: of which table, of which leaf, with which columns."""
    fragments: list[TransactionFragment] = []
    expected: dict[str, list[str]] = {}
    for number, changes in enumerate(transactions, 1):
        pieces = []
        for op, (table, leaf, is_wide) in enumerate(changes):
            row = Logged(100 * number, 2 * op, "i", {"id": f"{number}-{op}"})
            columns = COLUMNS if is_wide else COLUMNS[:2]
            made = piece([row], f"public.leaf_{table}_{leaf}", columns)
            pieces.append(replace(made, stream=StreamId("public", f"t{table}")))
            expected.setdefault(f"public.t{table}", []).append(f"{number}-{op}")
        fragments += MessageConverter().fragments(item(100 * number + 1, *pieces))

    one = joined(fragments)

    found: dict[str, list[str | None]] = {}
    for each in one.changes:
        found.setdefault(str(each.stream), []).extend(each.new("id").to_pylist())
    assert found == expected
    assert one.end == fragments[-1].end
    assert one.is_last
    told = [each for fragment in fragments for each in fragment.changes]
    assert one.first_tx == min((int(each.tx[0]) for each in told), default=0)
    assert one.last_tx == max((int(each.tx[-1]) for each in told), default=0)


def test_changes_that_wait_are_handed_over_as_one() -> None:
    items = Items(map(small, range(10, 30)))
    with items.feed() as feed:
        wait_until(lambda: items.read == 20, "the tail to be read")
        fragment = feed.next(WAIT_S)

    assert fragment is not None
    assert ids(fragment) == [str(tx) for tx in range(10, 30)]
    assert fragment.end == Lsn(30)
    assert len(fragment.changes) == 1


def test_a_large_transaction_is_joined_to_nothing() -> None:
    large = [piece([inserted(20, 3 << 20)], "public.t") for _ in range(2)]
    items = Items([small(10), item(21, *large), small(30)])
    found: list[TransactionFragment] = []
    with items.feed() as feed:
        wait_until(lambda: items.read == 3, "the tail to be read")
        while not found or found[-1].end != Lsn(31):
            fragment = feed.next(WAIT_S)
            assert fragment is not None
            found.append(fragment)

    assert ids(found[0]) == ["10"]
    assert [each.is_last for each in found if each.end == Lsn(21)] == [False] * (len(found) - 3) + [True]
    assert ids(found[-1]) == ["30"]


def test_an_error_of_the_tail_comes_behind_what_was_read_before() -> None:
    error = CaptureAwayError("Capture is away.", remedy="None.")
    with Items([small(10)], error).feed() as feed:
        first = feed.next(WAIT_S)
        assert first is not None
        assert ids(first) == ["10"]
        with pytest.raises(CaptureAwayError):
            feed.next(WAIT_S)
