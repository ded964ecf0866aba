"""Tables and numbers for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024
_ABSENT = "–"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """Cells are shown as they are, whatever they look like: names and reasons are the source's, and may hold
    markup, or what a terminal takes for an order. `right` columns hold numbers.
    """
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        result.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        result.add_row(*(Text(printable(cell)) for cell in row))
    return result


def printable(text: str) -> str:
    """With what is not seen, but for ends of lines, written out."""
    return "".join(each if each == "\n" or not _is_unseen(each) else _escaped(each) for each in text)


def _is_unseen(character: str) -> bool:
    """Orders to a terminal, marks that turn the direction of text, halves of characters, other line ends."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def count(number: int | None) -> str:
    return _ABSENT if number is None else f"{number:,}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number: int | None) -> str:
    if number is None:
        return _ABSENT
    value = float(number)
    for unit in _UNITS:
        if abs(value) < _STEP or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _STEP
    raise AssertionError("unreachable")


def percent(part: float) -> str:
    return f"{part:.0%}"


def age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def text(value: str | None) -> str:
    return value or _ABSENT
