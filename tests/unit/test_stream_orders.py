"""What people order a lane to do: kept, carried out once, and no order swallows another."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.streams.orders import ORDERS_FILE, OrderBook, Orders


@pytest.fixture
def book(tmp_path: Path) -> OrderBook:
    return OrderBook(tmp_path)


def test_without_orders_there_is_nothing_to_do(book: OrderBook) -> None:
    assert book.read() == Orders()
    assert not book.read().is_open
    assert not book.read().is_paused


def test_a_pause_holds_over_a_rewind_until_it_is_taken_back(book: OrderBook) -> None:
    book.write(book.read().pause("for a reason"))
    book.write(book.read().rewind(Lsn(0x10)))
    orders = book.read()
    assert (orders.is_paused, orders.reason, orders.position) == (True, "for a reason", Lsn(0x10))
    book.carried_out(orders)
    assert (book.read().is_paused, book.read().is_open) == (True, False)
    book.write(book.read().resume())
    assert not book.read().is_paused


def test_an_order_that_came_meanwhile_is_not_removed_with_the_one_that_was_carried_out(
    book: OrderBook,
) -> None:
    book.write(book.read().rewind(Lsn(1)))
    carried_out = book.read()
    book.write(book.read().load_anew(("public.orders",)))
    book.carried_out(carried_out)
    assert book.read().resync == ("public.orders",)


def test_every_order_is_news(book: OrderBook) -> None:
    book.write(book.read().resume())
    first = book.read().serial
    book.write(book.read().resume())
    assert book.read().serial != first


@pytest.mark.parametrize(
    ("orders", "together"),
    [
        ([("a.b",), ("a.c",)], ("a.b", "a.c")),
        ([("a.b",), ()], ()),
        ([(), ("a.b",)], ()),
    ],
)
def test_several_resyncs_are_all_of_them(orders: list[tuple[str, ...]], together: tuple[str, ...]) -> None:
    found = Orders()
    for streams in orders:
        found = found.load_anew(streams)
    assert found.resync == together


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format_version": 9, "serial": ""}'])
def test_orders_that_cannot_be_read_are_an_error_that_says_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / ORDERS_FILE).write_text(content)
    with pytest.raises(StateError) as caught:
        OrderBook(tmp_path).read()
    assert caught.value.remedy
