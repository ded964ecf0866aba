"""Dates and timestamps as numbers: days, or microseconds, since 2000 by the Gregorian calendar.

Since 2000 because Postgres counts so: its last timestamps do not fit into 64 bits since 1970. Its infinities
are the ends of the number range, where no true value lies.
"""

from __future__ import annotations

import re

POSITIVE_INFINITY = 2**63 - 1
NEGATIVE_INFINITY = -(2**63)
_INFINITIES = {"infinity": POSITIVE_INFINITY, "-infinity": NEGATIVE_INFINITY}

DAYS_FROM_1970 = 10_957
_SECOND_US = 1_000_000
DAY_US = 86_400 * _SECOND_US
_PRINTED = re.compile(
    r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?", re.ASCII
)


def day_number(year: int, month: int, day: int) -> int:
    """Days since 2000-01-01; year 0 is 1 BC."""
    # Years begin in March, so that the leap day is the last of one; 400 years repeat.
    year -= month <= 2
    cycle, year_of_cycle = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_cycle = year_of_cycle * 365 + year_of_cycle // 4 - year_of_cycle // 100 + day_of_year
    return cycle * 146_097 + day_of_cycle - 719_468 - DAYS_FROM_1970


def date_number(printed: str) -> int:
    if printed in _INFINITIES:
        return _INFINITIES[printed]
    return _days(_parts(printed))


def timestamp_number(printed: str) -> int:
    if printed in _INFINITIES:
        return _INFINITIES[printed]
    parts = _parts(printed)
    hours, minutes, seconds = (int(parts[group] or 0) for group in (4, 5, 6))
    fraction = int((parts[7] or "").ljust(6, "0"))
    return _days(parts) * DAY_US + (hours * 3600 + minutes * 60 + seconds) * _SECOND_US + fraction


def _parts(printed: str) -> re.Match[str]:
    parts = _PRINTED.fullmatch(printed)
    if parts is None:
        raise ValueError("not a date or timestamp as Postgres prints it")
    return parts


def _days(parts: re.Match[str]) -> int:
    year = 1 - int(parts[1]) if parts[8] else int(parts[1])
    return day_number(year, int(parts[2]), int(parts[3]))
