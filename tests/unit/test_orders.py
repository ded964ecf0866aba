"""Orders for streams: carried out once by whoever has the state, in the order they came."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.errors import StateError
from penstock.core.stream import StreamId
from penstock.ledger import orders
from penstock.ledger.ledger import Ledger
from penstock.ledger.orders import Order
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore

_STREAM = StreamId("public", "orders")


def test_orders_are_applied_in_the_order_they_came_and_then_gone(tmp_path: Path) -> None:
    ledger = Ledger(StateStore(tmp_path))
    ledger.write(orders.applied(StateDocument.new(), [Order("pause", _STREAM, "first")]))
    orders.give(tmp_path, [Order("resume", _STREAM), Order("pause", _STREAM, "second", mode="strict_cdc")])
    orders.settle(ledger, tmp_path)
    found = ledger.document.stream(_STREAM)
    assert found is not None
    assert found.paused is not None
    assert found.paused.reason == "second"
    assert not orders.any_wait(tmp_path)
    assert orders.wait_for([tmp_path / "orders" / "gone.json"], 0.0)


def test_a_resync_lets_a_paused_stream_go_on_and_is_remembered(tmp_path: Path) -> None:
    document = orders.applied(StateDocument.new(), [Order("pause", _STREAM), Order("resync", _STREAM)])
    found = document.stream(_STREAM)
    assert found is not None
    assert found.paused is None
    assert found.reload is not None
    assert found.reload.replace


@pytest.mark.parametrize(
    "content",
    [
        b'{"format_version": 1, "action": "explode", "stream": "public.orders", "at": ""}',
        b'{"format_version": 99, "action": "pause", "stream": "public.orders", "at": ""}',
        b'{"format_version": 1, "act',
        b"",
        b"[1]",
        b"\xff\xfe",
    ],
)
def test_an_order_that_cannot_be_read_is_set_aside_and_stops_no_other(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = orders.give(tmp_path, [Order("pause", _STREAM), Order("resume", _STREAM)])
    bad.write_bytes(content)
    assert [path for path, _ in orders.taken(tmp_path)] == [good]
    (aside,) = orders.unreadable(tmp_path)
    assert (aside.name, aside.read_bytes()) == (f"{bad.name}.unreadable", content)
    assert aside.name in capsys.readouterr().out
    orders.carried_out([good])
    assert not orders.any_wait(tmp_path), "nobody takes turn after turn for it"
    with pytest.raises(StateError, match=aside.name):
        orders.wait_for([bad], 0.0)


def test_looking_at_orders_changes_nothing(tmp_path: Path) -> None:
    bad, good = orders.give(tmp_path, [Order("pause", _STREAM), Order("resume", _STREAM)])
    bad.write_bytes(b"{")
    assert [path for path, _ in orders.waiting(tmp_path)] == [good]
    assert orders.unreadable(tmp_path) == [bad], "people see what will be set aside"
    assert sorted((tmp_path / "orders").iterdir()) == [bad, good]


def test_who_waits_is_told_at_once_that_one_of_the_orders_could_not_be_read(tmp_path: Path) -> None:
    bad, good = orders.give(tmp_path, [Order("pause", _STREAM), Order("resume", _STREAM)])
    bad.write_bytes(b"{")
    orders.taken(tmp_path)
    assert good.exists(), "the run is still at work on it"
    with pytest.raises(StateError, match=bad.name):
        orders.wait_for([bad, good], 0.0)


def test_an_order_that_another_process_has_just_carried_out_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, left = orders.give(tmp_path, [Order("pause", _STREAM), Order("resume", _STREAM)])
    listed = orders._files(tmp_path)
    monkeypatch.setattr(orders, "_files", lambda _state, _ending=".json": listed)
    taken.unlink()
    assert [path for path, _ in orders.taken(tmp_path)] == [left]


def test_what_is_set_aside_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "SET_ASIDE_MAX", 2)
    paths = orders.give(tmp_path, [Order("pause", _STREAM)] * 3)
    for path in paths:
        path.write_bytes(b"")
    assert orders.taken(tmp_path) == []
    kept = [f"{path.name}.unreadable" for path in paths[1:]]
    assert [path.name for path in orders.unreadable(tmp_path)] == kept


def test_orders_that_nobody_takes_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "ORDERS_MAX", 2)
    orders.give(tmp_path, [Order("pause", _STREAM)] * 2)
    with pytest.raises(StateError, match="2 orders wait"):
        orders.give(tmp_path, [Order("pause", _STREAM)])
