"""What people order a lane to do: kept, carried out once, and no order swallows another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.core.errors import SourceBusyError, StateError
from penstock.core.position import Lsn
from penstock.file_lock import held
from penstock.operations import lanes
from penstock.streams.orders import ORDERS_FILE, OrderBook, Orders, lane_directory
from penstock.streams.publisher import Standing
from penstock.streams.starting_point import Ordered
from tests.idle_pipeline import idle_pipeline


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


def test_an_order_that_came_meanwhile_stays_and_the_one_that_was_carried_out_goes(book: OrderBook) -> None:
    book.write(book.read().rewind(Lsn(1)).load_anew(("public.orders",)))
    taken = book.read()
    book.write(book.read().load_anew(("public.customers",)).pause("meanwhile"))
    known = book.carried_out(taken)
    left = book.read()
    assert (left.rewind_to, left.resync, left.reason) == (None, ("public.customers",), "meanwhile")
    assert known.serial != left.serial, "the lane still has to hear of it"
    assert book.carried_out(left).serial == book.read().serial
    assert not book.read().is_open


@pytest.mark.parametrize(
    ("to", "log_start", "is_done"), [(5, 3, True), (3, 3, True), (7, 3, True), (8, 3, False), (2, 3, False)]
)
def test_a_rewind_goes_where_the_log_reaches_and_not_beyond_what_the_target_holds(
    to: int, log_start: int, is_done: bool
) -> None:
    """Only one that can be done does without dead letters that are elsewhere, and it does so once."""
    orders = Orders(book="book").rewind(Lsn(to))
    held = Standing(Lsn(7), Lsn(1), "source", 1)
    ordered = Ordered(orders, Lsn(log_start))
    assert ordered.goes_back_to(held) == (Lsn(to) if is_done else None)
    assert ordered.leaves_letters(held) == is_done
    assert not Ordered(orders, None).leaves_letters(held)
    assert not ordered.leaves_letters(replace(held, orders=orders.mark))
    assert Ordered(orders.load_anew(()), None).leaves_letters(held)
    assert not Ordered(Orders(book="book").load_anew(("public.orders",)), None).leaves_letters(held)


def test_what_a_target_remembers_is_not_carried_out_again_though_it_was_not_struck_out(
    book: OrderBook,
) -> None:
    book.write(book.read().rewind(Lsn(1)).load_anew(()))
    mark = book.read().mark
    book.write(book.read().pause("and then").load_anew(("public.orders",)))
    left = book.read().beyond(mark)
    assert (left.position, left.resync, left.is_paused) == (None, ("public.orders",), True)
    book.write(book.read().rewind(Lsn(1)))
    assert book.read().beyond(mark).position == Lsn(1), "the same position, by another order"


def test_orders_in_a_file_that_was_removed_count_for_nothing_in_the_next_one(
    book: OrderBook, tmp_path: Path
) -> None:
    book.write(book.read().rewind(Lsn(1)).rewind(Lsn(2)))
    mark = book.read().mark
    (tmp_path / ORDERS_FILE).unlink()
    assert book.read().mark == ""
    book.write(book.read().rewind(Lsn(3)))
    assert book.read().beyond(mark).position == Lsn(3)


def test_orders_of_before_they_had_numbers_are_carried_out_once_too(tmp_path: Path) -> None:
    (tmp_path / ORDERS_FILE).write_text(
        '{"rewind_to": "0/10", "resync": [], "serial": "a", "format_version": 1}'
    )
    book = OrderBook(tmp_path)
    orders = book.read()
    assert (orders.position, orders.resync) == (Lsn(0x10), ())
    assert not orders.beyond(orders.mark).is_open
    book.write(orders.load_anew(("public.orders",)))
    assert book.read().beyond(orders.mark).resync == ("public.orders",)


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


def test_of_orders_that_come_at_once_and_of_those_carried_out_none_is_lost(tmp_path: Path) -> None:
    file = idle_pipeline(tmp_path, ["public.*"], lanes={"file": {"path": "./events.ndjson"}})
    config = Config.load(file)
    book = OrderBook(lane_directory(config.state, "file"))
    wanted = [[f"public.t{thread}_{number}" for number in range(12)] for thread in range(4)]
    carried_out: set[str] = set()
    given = threading.Event()

    def carry_out() -> None:
        while not given.is_set():
            orders = book.read()
            if orders.is_open:
                carried_out.update(orders.resync or ())
                book.carried_out(orders)

    def give(names: list[str]) -> None:
        for name in names:
            lanes.resync(config, "file", (name,))

    lane = threading.Thread(target=carry_out)
    lane.start()
    try:
        with ThreadPoolExecutor(len(wanted)) as people:
            list(people.map(give, wanted))
    finally:
        given.set()
        lane.join()
    assert carried_out | set(book.read().resync or ()) == {name for names in wanted for name in names}


def test_a_lock_that_is_never_let_go_is_an_error_and_no_wait_for_ever(tmp_path: Path) -> None:
    with (
        held(tmp_path / "a.lock"),
        pytest.raises(SourceBusyError, match=r"a\.lock"),
        held(tmp_path / "a.lock", within_s=0.05),
    ):
        pass
