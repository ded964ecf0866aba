"""Texts of a column as days, times of day, moments and intervals.

Only spellings that every version of Postgres reads alike, whatever the session's settings are, have a value
here: ISO 8601, also with a time zone that the type drops. Of other texts it is not known what Postgres reads.
Those with a word that means another moment tomorrow are made to fail at the source too: what was true of such
a row when a shape began would be wrong a day later, without a change that tells.
"""

from __future__ import annotations

import re

from penstock.core.where.kinds import Kind
from penstock.core.where.literals import WHITESPACE, LiteralError, printed, printed_moment, read_moment

KINDS = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL)
#: For whatever of them may hang on the clock: words that do, and one that Postgres reads as nothing.
OF_THE_CLOCK = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
CLOCK_WORDS = "now|today|tomorrow|yesterday"
NO_WORD = "undecidable"

_DAY_AND_BLANK = re.compile(r"\d{4}-\d\d-\d\d ", re.ASCII)
#: With a number of nine digits, a sum on the way may be too large for Postgres, though the whole is not.
_LONG_NUMBER = re.compile(r"\d{9}", re.ASCII)
_OF_AN_INTERVAL = re.compile(r"[\w:.+ \t\n\r\f\v-]*", re.ASCII)


def printed_time(text: str, kind: Kind) -> str:
    """The text that Postgres prints for the value; a `LiteralError` if that is not known here."""
    bare = text.strip(WHITESPACE)
    if kind is Kind.INTERVAL:
        return _interval(text, bare)
    if bare.startswith("+"):  # +infinity is new in Postgres 16
        raise LiteralError("not in a spelling of every version")
    if kind is Kind.TIMESTAMPTZ:
        return printed(bare, kind)
    # A time of day may have a day before it, but then not with a T between.
    needs_day = kind is Kind.TIME and not _DAY_AND_BLANK.match(bare)
    moment, _ = read_moment(f"2000-01-01 {bare}" if needs_day else bare)
    if isinstance(moment, str):
        return moment
    day, clock = printed_moment(moment).split()
    return {Kind.DATE: day, Kind.TIME: clock}.get(kind, f"{day} {clock}")


def _interval(text: str, bare: str) -> str:
    if not _OF_AN_INTERVAL.fullmatch(bare) or _LONG_NUMBER.search(bare):
        raise LiteralError("not an interval of plain units")
    # Postgres takes nothing around ISO 8601, and a plus in it in some versions only.
    if bare.startswith("P") and (bare != text or "+" in bare):
        raise LiteralError("not ISO 8601")
    return printed(bare, Kind.INTERVAL)
