"""Time zones: which names are taken, and what a moment is in one.

The rules are those of this machine's time zone data. Abbreviations and offsets are refused: Postgres reads
them by a setting, or with the sign turned round.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

from penstock.core.where.calendar import DAY_US, NEGATIVE_INFINITY, POSITIVE_INFINITY
from penstock.core.where.intervals import bounded_moment

_2000 = datetime(2000, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_CYCLE_US = 146_097 * DAY_US


def is_zone(name: str) -> bool:
    return name == "UTC" or ("/" in name and not name.startswith(("posix", "right")) and name in _zones())


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def moment_in(zone: str, moment: int, *, to_local: bool) -> int:
    if moment in (POSITIVE_INFINITY, NEGATIVE_INFINITY) or zone == "UTC":
        return moment
    # Rules of years that Python has no dates for are those of others: the calendar repeats in 400 years.
    alike = (
        moment
        if abs(moment) < _CYCLE_US
        else moment % _CYCLE_US + (_CYCLE_US if moment > 0 else -4 * _CYCLE_US)
    )
    time, found = _2000 + timedelta(microseconds=alike), _zone(zone)
    if to_local:
        offset = cast("timedelta", found.utcoffset(found.fromutc(time.replace(tzinfo=found))))
        return bounded_moment(moment + offset // _MICROSECOND)
    # A time that is there twice counts as the later one, one that was skipped as before the change.
    offsets = [cast("timedelta", found.utcoffset(time.replace(fold=fold))) for fold in (0, 1)]
    return bounded_moment(moment - min(offsets) // _MICROSECOND)
