"""When people are told of log that the source keeps, and when the change log's end may be acknowledged."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.postgres.pressure import WalPressure, used_share
from penstock.sources.postgres.slots import SlotInfo

MIB = 1 << 20
SLOT = SlotInfo(
    name="slot",
    plugin="pgoutput",
    database="db",
    temporary=False,
    active=True,
    active_pid=1,
    restart_lsn=None,
    confirmed_flush=None,
    wal_status="reserved",
    safe_wal_size=None,
    two_phase=False,
    retained_bytes=0,
)


def slot(retained: int, safe: int | None = None, status: str = "reserved") -> SlotInfo:
    return dataclasses.replace(SLOT, retained_bytes=retained, safe_wal_size=safe, wal_status=status)


def test_the_nearer_of_both_limits_counts() -> None:
    assert used_share(slot(50), 100) == 0.5
    assert used_share(slot(50, safe=50), 100) == pytest.approx(50 / 90)
    assert used_share(slot(50, safe=10_000), 100) == 0.5
    assert used_share(slot(1, status="unreserved"), 100) == 1.0
    assert used_share(slot(90, safe=0), 1000) >= 1.0
    assert used_share(dataclasses.replace(SLOT, retained_bytes=None), 100) == 0.0


def test_people_are_told_once_per_level_and_again_after_it_was_left() -> None:
    pressure = WalPressure("slot", 100 * MIB, "hold")
    told = [pressure.look(slot(retained * MIB)) for retained in (10, 50, 49, 51, 81, 79, 82, 40, 55)]
    assert [sentence is not None for sentence in told] == [
        False, True, False, False, True, False, False, False, True,
    ]  # fmt: skip


def test_holding_never_acknowledges_the_log() -> None:
    pressure = WalPressure("slot", 100, "hold")
    sentence = pressure.look(slot(500, status="unreserved"))
    assert sentence is not None
    assert "penstock lane drop" in sentence
    assert not pressure.acknowledge_log


def test_relief_begins_at_the_limit_and_ends_below_half_of_it() -> None:
    pressure = WalPressure("slot", 100, "acknowledge_log")
    allowed = []
    for retained in (99, 100, 85, 60, 46, 44, 60, 99):
        pressure.look(slot(retained))
        allowed.append(pressure.acknowledge_log)
    assert allowed == [False, True, True, True, True, False, False, False]


@given(st.lists(st.integers(0, 300)))
def test_the_log_is_acknowledged_whenever_the_limit_is_passed_and_never_if_it_was_not(
    retained: list[int],
) -> None:
    pressure = WalPressure("slot", 100, "acknowledge_log")
    passed = False
    for size in retained:
        pressure.look(slot(size))
        passed |= size >= 100
        assert pressure.acknowledge_log <= passed
        if size >= 100:
            assert pressure.acknowledge_log
        if size < 45:
            assert not pressure.acknowledge_log
