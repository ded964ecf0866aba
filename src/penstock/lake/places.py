"""The source's words for positions that the state is to have, where the number does not say them.

A position of the state is where a step of the change log ends, whose manifest has its words, or the point of
a load, whose record has them. Any other lies between such ones, and its place is found by counting from one
of them (`core.binlog_place.Numbering`); of such a place nobody knows the set of transactions.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core import binlog_place
from penstock.core.binlog_place import BinlogPlace, Numbering
from penstock.core.errors import StateError
from penstock.core.place import Place
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.ledger.load_record import LoadPoint, LoadRecords
from penstock.log.reader import ChangeLog


def position_at(place: Place, known: LoadPoint) -> Lsn | None:
    """The number of a place, by a point that is known; None if they are not of one server's counting."""
    assert known.place is not None, "positions of such a source have places"
    return binlog_place.position_at(place, known.place, known.consistent_point)


def cluster_mark(position: Lsn) -> Place:
    """A `PlaceOf` for MongoDB, whose positions are cluster times: a token that stands right before one."""
    return Place(ResumeToken.before(position).data)


class BinlogPlaces:
    """A `PlaceOf`."""

    def __init__(self, log: ChangeLog, records: LoadRecords) -> None:
        self._log = log
        self._records = records

    def __call__(self, position: Lsn) -> Place:
        nearest: tuple[Lsn, Place] | None = None
        for known, place in self._known(position):
            if known == position:
                return place
            if nearest is None or abs(known - position) < abs(nearest[0] - position):
                nearest = known, place
        if nearest is None:
            raise StateError(
                f"Nothing says where in the source's log {position} is.",
                remedy="Run `penstock resync --yes` to load the tables again and begin a new change log.",
            )
        known, place = nearest
        counted = BinlogPlace.parse(place.text)
        numbering = Numbering(counted.base, int(known) - counted.number)
        return Place(str(numbering.place(position)), "", place.server)

    def _known(self, position: Lsn) -> Iterator[tuple[Lsn, Place]]:
        for point in self._records.points():
            if point.place is not None:
                yield point.consistent_point, point.place
        steps = self._log.after(Lsn(max(0, position - 1)))[:1]
        newest = self._log.newest()
        for step in (*steps, *([] if newest is None else [newest])):
            if step.place is not None:
                yield step.end, step.place
