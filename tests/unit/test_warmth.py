"""What a standby does beside its waiting."""

from __future__ import annotations

import threading

import pytest

from penstock.core.errors import DestinationError
from penstock.lake import warmth


def test_who_stands_by_has_opened_a_table_and_who_leads_at_once_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = threading.Event()
    with warmth.opened_beside(opened.set):
        pass
    monkeypatch.setattr(warmth, "OPEN_AFTER_S", 0.0)
    asked = threading.Event()
    with warmth.opened_beside(asked.set):
        assert asked.wait(60)
    assert not opened.is_set()


def test_a_table_that_cannot_be_opened_is_no_trouble_of_who_stands_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    monkeypatch.setattr(warmth, "OPEN_AFTER_S", 0.0)
    asked = threading.Event()

    def refuse() -> None:
        asked.set()
        raise DestinationError("The catalog is away.")

    with warmth.opened_beside(refuse):
        assert asked.wait(60)
        for thread in threading.enumerate():
            if thread.name == "lake-opening":
                thread.join(60)
    assert not told
