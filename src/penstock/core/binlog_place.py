"""Places in a MySQL or MariaDB binlog, and the numbers that the ledger and the log know them by. Pure.

A place is a file and a byte in it, `mysql-bin.000070:772591`. Within one server its `number` grows with it:
the file's number in the upper 32 bits, the byte in the lower. Printed as a position is printed, `46/BC9EF`,
it is still the file and the byte. Another server has other files, and the same server may start to count
anew (RESET BINARY LOGS), so places alone do not order what a pipeline has seen: everything new might look
"already seen".

`Numbering` makes them one growing number. It holds while one server counts on: a position is the place's
number plus an offset that is fixed where the pipeline begins there. On the first server the offset is 0; on
a next one it is chosen so that the place found by GTID lies right behind the last position. So positions
always grow, the transactions between two of them are exactly those between their places, and a place is
found again from its position by subtraction. A numbering is kept with each manifest, by its offset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.core.place import Place
from penstock.core.position import Lsn

_BYTES = 32
_FILE_NUMBER_MAX = 2**31 - 1  # the server's own bound
OFFSET_MAX = 2**_BYTES - 1  # an event's place is four bytes in the protocol
_FILE = re.compile(r"\A(?P<base>[^:/\\]+)\.(?P<number>\d{6,10})\Z")


@dataclass(frozen=True, slots=True)
class BinlogPlace:
    """`name` is the file as the server names it, without a directory."""

    name: str
    pos: int

    def __post_init__(self) -> None:
        match = _FILE.match(self.name)
        if match is None or int(match["number"]) > _FILE_NUMBER_MAX:
            raise ValueError(f"not a binlog file: {self.name!r} (expected e.g. mysql-bin.000070)")
        if isinstance(self.pos, bool) or not 0 <= self.pos <= OFFSET_MAX:
            raise ValueError(f"not a place in a binlog file: {self.pos!r}")

    @classmethod
    def parse(cls, text: str) -> BinlogPlace:
        name, separator, pos = text.rpartition(":")
        if not separator or not pos.isascii() or not pos.isdigit():
            raise ValueError(f"not a binlog place: {text!r} (expected e.g. mysql-bin.000070:772591)")
        return cls(name, int(pos))

    @classmethod
    def of_number(cls, base: str, number: int) -> BinlogPlace:
        """The place whose number this is, in files that are called `base`."""
        return cls(f"{base}.{number >> _BYTES:06d}", number & OFFSET_MAX)

    def __str__(self) -> str:
        return f"{self.name}:{self.pos}"

    @property
    def base(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def file(self) -> tuple[str, int]:
        """In the order of files, which their names as text do not have: behind 999999 comes 1000000."""
        base, _, number = self.name.rpartition(".")
        return base, int(number)

    @property
    def number(self) -> int:
        return self.file[1] << _BYTES | self.pos


@dataclass(frozen=True, slots=True)
class Numbering:
    """How the places of one server become positions, and back, while it counts on."""

    base: str
    offset: int = 0

    @classmethod
    def beginning_at(cls, place: BinlogPlace) -> Numbering:
        """Of a pipeline that begins here: a position is the place's own number."""
        return cls(place.base)

    @classmethod
    def going_on(cls, last: Lsn, place: BinlogPlace) -> Numbering:
        """On another server, or after a reset: `place` is where `last` is there, numbered right behind it."""
        return cls(place.base, int(last) + 1 - place.number)

    def position(self, place: BinlogPlace) -> Lsn:
        if place.base != self.base:
            raise ValueError(f"{place} is not of the files {self.base}.*")
        return Lsn(place.number + self.offset)

    def place(self, position: Lsn) -> BinlogPlace:
        number = int(position) - self.offset
        if number < 0:
            raise ValueError(f"{position} is from before this numbering")
        return BinlogPlace.of_number(self.base, number)


def position_at(place: Place, known: Place, position: Lsn) -> Lsn | None:
    """The position of a place, by that of one that is known and not behind it; None if they are not of one
    server's counting."""
    at, counted = BinlogPlace.parse(place.text), BinlogPlace.parse(known.text)
    if place.server != known.server or at.base != counted.base or at.number < counted.number:
        return None
    return Numbering(counted.base, int(position) - counted.number).position(at)
