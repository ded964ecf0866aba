"""Intervals, and what they do to days and moments, by Postgres' own rules.

Months, days and microseconds are kept apart, as Postgres does: a month has no fixed length and a day may have
23 hours, only comparisons take 30 days and 24 hours. A literal is taken in units without fractions (but of
seconds) or in ISO 8601, since a fraction of a month would have to be rounded.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.core.where.calendar import DAY_US, NEGATIVE_INFINITY, POSITIVE_INFINITY, day_number
from penstock.core.where.errors import EvaluationError

_SECOND_US = 1_000_000
_HOUR_US = 3600 * _SECOND_US
_MINUTE_US = 60 * _SECOND_US
_INT32 = 2**31
_INT64 = 2**63
#: The first day and the first microsecond of Postgres' calendar, and those after its last.
_FIRST_DAY, _END_DAY = -2_451_545, 2_147_483_494 - 2_451_545
_FIRST_US, _END_US = -211_813_488_000_000_000, 9_223_371_331_200_000_000
_INFINITIES = (POSITIVE_INFINITY, NEGATIVE_INFINITY)
#: Products of more microseconds would go through a double at the source.
_EXACT_PRODUCT = 2**53


class Interval(NamedTuple):
    months: int
    days: int
    us: int

    @property
    def rank(self) -> int:
        return (self.months * 30 + self.days) * DAY_US + self.us


_ISO = re.compile(
    r"P(?:([+-]?\d+)Y)?(?:([+-]?\d+)M)?(?:([+-]?\d+)W)?(?:([+-]?\d+)D)?"
    r"(?:T(?:([+-]?\d+)H)?(?:([+-]?\d+)M)?(?:([+-]?(?:\d+(?:\.\d{1,6})?|\.\d{1,6}))S)?)?",
    re.ASCII,
)
_CLOCK = re.compile(r"([+-]?)(\d+):(\d\d)(?::(\d\d(?:\.\d{1,6})?))?", re.ASCII)
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d{1,6})?)([a-z]+)?", re.ASCII)
_SECOND = Interval(0, 0, _SECOND_US)
_PARTS_OF_A_SECOND = (Interval(0, 0, 1000), Interval(0, 0, 1))
_UNITS = {
    spelling: unit
    for spellings, unit in {
        "century centuries": Interval(1200, 0, 0),
        "decade decades": Interval(120, 0, 0),
        "year years yr yrs": Interval(12, 0, 0),
        "month months mon mons": Interval(1, 0, 0),
        "week weeks": Interval(0, 7, 0),
        "day days": Interval(0, 1, 0),
        "hour hours hr hrs": Interval(0, 0, _HOUR_US),
        "minute minutes min mins": Interval(0, 0, _MINUTE_US),
        "second seconds sec secs": _SECOND,
        "millisecond milliseconds": _PARTS_OF_A_SECOND[0],
        "microsecond microseconds": _PARTS_OF_A_SECOND[1],
    }.items()
    for spelling in spellings.split()
}


def read_interval(text: str) -> Interval:
    """Of a literal, or as Postgres prints it in ISO 8601; a `ValueError` for other spellings."""
    iso = _ISO.fullmatch(text)
    if iso is not None and text not in ("P", "PT") and not text.endswith("T"):
        years, months, weeks, days, hours, minutes = (int(part or 0) for part in iso.group(1, 2, 3, 4, 5, 6))
        us = hours * _HOUR_US + minutes * _MINUTE_US + _microseconds(iso[7] or "0")
        return _bounded(years * 12 + months, weeks * 7 + days, us)
    words = text.lower().split()
    if not words:
        raise ValueError("no interval")
    return _spelled(words)


def _spelled(words: list[str]) -> Interval:
    """A unit that is there twice is refused, as Postgres does."""
    months = days = us = 0
    used: set[Interval] = set()
    while words:
        word = words.pop(0)
        clock = _CLOCK.fullmatch(word)
        if clock is not None:
            if words or any(unit.us for unit in used) or int(clock[3]) > 59 or float(clock[4] or 0) >= 60:
                raise ValueError("not a time")
            time = int(clock[2]) * _HOUR_US + int(clock[3]) * _MINUTE_US + _microseconds(clock[4] or "0")
            us += -time if clock[1] == "-" else time
            continue
        quantity = _QUANTITY.fullmatch(word)
        if quantity is None or not (quantity[2] or words):
            raise ValueError("not a quantity")
        unit = _UNITS.get(quantity[2] or words.pop(0))
        if unit is None:
            raise ValueError("not a unit")
        given = {unit, *_PARTS_OF_A_SECOND} if "." in quantity[1] else {unit}
        if used & given:
            raise ValueError("a unit twice")
        used |= given
        if unit == _SECOND:
            us += _microseconds(quantity[1])
            continue
        number = int(quantity[1])
        months += number * unit.months
        days += number * unit.days
        us += number * unit.us
    return _bounded(months, days, us)


def _microseconds(seconds: str) -> int:
    whole, _, fraction = seconds.lstrip("+-").partition(".")
    us = int(whole or 0) * _SECOND_US + int(fraction.ljust(6, "0") or 0)
    return -us if seconds.startswith("-") else us


def print_interval(interval: Interval) -> str:
    """In ISO 8601, which every server reads alike."""
    if interval == (0, 0, 0):
        return "PT0S"
    date = "".join(f"{n}{unit}" for n, unit in ((interval.months, "M"), (interval.days, "D")) if n)
    if not interval.us:
        return f"P{date}"
    sign, (seconds, us) = "-" if interval.us < 0 else "", divmod(abs(interval.us), _SECOND_US)
    return f"P{date}T{sign}{seconds}.{us:06}S"


def add(left: Interval, right: Interval) -> Interval:
    return _bounded(left.months + right.months, left.days + right.days, left.us + right.us)


def subtract(left: Interval, right: Interval) -> Interval:
    return add(left, negate(right))


def negate(interval: Interval) -> Interval:
    return _bounded(-interval.months, -interval.days, -interval.us)


def multiply(interval: Interval, factor: int) -> Interval:
    if abs(interval.us * factor) > _EXACT_PRODUCT:
        raise EvaluationError("an interval is too long to be multiplied exactly")
    return _bounded(interval.months * factor, interval.days * factor, interval.us * factor)


def _bounded(months: int, days: int, us: int) -> Interval:
    if not (-_INT32 <= months < _INT32 and -_INT32 <= days < _INT32 and -_INT64 <= us < _INT64):
        raise EvaluationError("interval out of range")
    return Interval(months, days, us)


def justify_hours(interval: Interval) -> Interval:
    carried, us = _carry(interval.us, DAY_US)
    days = interval.days + carried
    if days > 0 > us:
        days, us = days - 1, us + DAY_US
    elif days < 0 < us:
        days, us = days + 1, us - DAY_US
    return _bounded(interval.months, days, us)


def justify_days(interval: Interval) -> Interval:
    carried, days = _carry(interval.days, 30)
    months = interval.months + carried
    if months > 0 > days:
        months, days = months - 1, days + 30
    elif months < 0 < days:
        months, days = months + 1, days - 30
    return _bounded(months, days, interval.us)


def justify_interval(interval: Interval) -> Interval:
    carried, us = _carry(interval.us, DAY_US)
    carried, days = _carry(interval.days + carried, 30)
    months = interval.months + carried
    if months > 0 and (days < 0 or (days == 0 and us < 0)):
        months, days = months - 1, days + 30
    elif months < 0 and (days > 0 or (days == 0 and us > 0)):
        months, days = months + 1, days - 30
    if days > 0 > us:
        days, us = days - 1, us + DAY_US
    elif days < 0 < us:
        days, us = days + 1, us - DAY_US
    return _bounded(months, days, us)


def _carry(number: int, size: int) -> tuple[int, int]:
    """How often `size` goes into `number`, cut towards zero, and what is left."""
    whole = abs(number) // size * (1 if number >= 0 else -1)
    return whole, number - whole * size


def add_days(day: int, number: int) -> int:
    if day in _INFINITIES:
        return day
    if not _FIRST_DAY <= day + number < _END_DAY:
        raise EvaluationError("date out of range")
    return day + number


def days_between(left: int, right: int) -> int:
    if left in _INFINITIES or right in _INFINITIES:
        raise EvaluationError("cannot subtract infinite dates")
    return left - right


def moment_of(day: int, us: int = 0) -> int:
    """The moment of a time on a day."""
    return day if day in _INFINITIES else bounded_moment(day * DAY_US + us)


def bounded_moment(us: int) -> int:
    if not _FIRST_US <= us < _END_US:
        raise EvaluationError("timestamp out of range")
    return us


def add_to_moment(moment: int, interval: Interval) -> int:
    if moment in _INFINITIES:
        return moment
    if interval.months:
        day, us = divmod(moment, DAY_US)
        moment = bounded_moment(_months_later(day, interval.months) * DAY_US + us)
    if interval.days:
        moment = bounded_moment(moment + interval.days * DAY_US)
    return bounded_moment(moment + interval.us)


def _months_later(day: int, months: int) -> int:
    year, month, day_of_month = _civil(day)
    years, month = divmod(month - 1 + months, 12)
    year, month = year + years, month + 1
    after = day_number(year + (month == 12), month % 12 + 1, 1)
    first = day_number(year, month, 1)
    return first + min(day_of_month, after - first) - 1


def _civil(day: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month and day of month of a day since 2000; the inverse of `day_number`."""
    year = 2000 + day * 400 // 146_097
    while day_number(year, 1, 1) > day:
        year -= 1
    while day_number(year + 1, 1, 1) <= day:
        year += 1
    month = 12
    while day_number(year, month, 1) > day:
        month -= 1
    return year, month, day - day_number(year, month, 1) + 1


def between_moments(left: int, right: int) -> Interval:
    if left in _INFINITIES or right in _INFINITIES:
        raise EvaluationError("cannot subtract infinite timestamps")
    return justify_hours(_bounded(0, 0, left - right))


def add_to_time(time: int, interval: Interval) -> int:
    """Round the clock."""
    return (time + interval.us) % DAY_US
