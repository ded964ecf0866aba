"""Epochs over promotions: a later term always has the greater number, wherever its timeline begins."""

from __future__ import annotations

from penstock.core.position import Lsn
from penstock.sources.postgres.timelines import epoch_at


def test_on_the_first_timeline_an_epoch_is_the_position_as_it_always_was() -> None:
    assert epoch_at(1, Lsn.parse("2D9/AD00445A")) == Lsn.parse("2D9/AD00445A")


def test_a_term_after_a_promotion_is_later_wherever_the_standby_was() -> None:
    for timeline in range(1, 128):
        assert epoch_at(timeline + 1, Lsn(1)) > epoch_at(timeline, Lsn(2**55))


def test_timelines_beyond_those_that_there_is_room_for_are_told_apart_by_positions() -> None:
    assert epoch_at(500, Lsn(2)) == epoch_at(128, Lsn(2)) > epoch_at(501, Lsn(1))
    assert epoch_at(500, Lsn(2**55)) < 2**63
