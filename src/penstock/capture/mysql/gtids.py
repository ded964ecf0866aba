"""Which transactions have been read, as a set that grows by what a batch brings.

Of MySQL the set says of each transaction whether it was read before. A position of MariaDB does not: it is
the last of each domain in the order of the log, and numbers within a domain need not grow in that order
(`gtid_strict_mode`). Its servers begin behind a position by themselves when they are asked for it by ids. By
file and byte they send all, and on a server that took over in the midst of several domains the last of one
may lie behind our place: such a domain is `awaited`, and what it has up to there was read before.

Cost: a transaction is a number in an array; an object is made for each run of numbers without a gap, which
is one per batch and server unless a replica commits in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.core.errors import PositionGoneError
from penstock.core.failover import Flavor
from penstock.core.gtid import GtidSet
from penstock.core.mariadb_gtid import MariaDbPosition
from penstock.sources.mysql.binlog.packet_kernels import Ints


class SeenGtids:
    """Begins with what was read before. A server without global ids leaves it empty.

    `awaited`: of MariaDB, the last ones of domains that come again up to them.
    """

    def __init__(self, flavor: Flavor, start: str, awaited: str = "") -> None:
        self._flavor = flavor
        self._set = GtidSet.parse(start) if flavor == "mysql" else GtidSet()
        self._position = MariaDbPosition.parse(start) if flavor == "mariadb" else MariaDbPosition()
        self._before = {source: np.array(intervals) for source, intervals in self._set}
        self._awaited = dict(MariaDbPosition.parse(awaited)) if flavor == "mariadb" else {}

    def had(self, names: Sequence[str], source: Ints, number: Ints) -> npt.NDArray[np.bool_]:
        """Which of these transactions were read before: on another server they may lie behind our place."""
        found = np.zeros(len(source), np.bool_)
        if self._flavor == "mariadb":
            for domain in self._awaited:
                these = _of_domain(domain, names, source)
                count, _ = self._before_awaited(domain, names, source[these], number[these])
                found[these[:count]] = True
            return found
        for index in np.unique(source[source >= 0]).tolist():
            these = source == index
            found[these] = self._were_before(names[index], number[these])
        return found

    def _were_before(self, name: str, numbers: Ints) -> npt.NDArray[np.bool_]:
        uuid, _, tag = name.partition(":")
        intervals = self._before.get((uuid, tag))
        if intervals is None:
            return np.zeros(len(numbers), np.bool_)
        at = np.searchsorted(intervals[:, 0], numbers, side="right") - 1
        return np.asarray((at >= 0) & (numbers <= intervals[np.maximum(at, 0), 1]))

    def _before_awaited(
        self, domain: int, names: Sequence[str], source: Ints, number: Ints
    ) -> tuple[int, bool]:
        """How many of a domain's transactions come up to the awaited one and with it; whether it came."""
        server, last = self._awaited[domain]
        name = f"{domain}-{server}"
        at = [index for index in np.flatnonzero(number == last).tolist() if names[source[index]] == name]
        count = at[0] + 1 if at else len(number)
        if (number[:count] > last).any():
            raise PositionGoneError(
                f"The log has later transactions of domain {domain}, and {domain}-{server}-{last} which was "
                "read last is not before them.",
                remedy="Set gtid_strict_mode = ON, and run `penstock resync --yes` to load the tables again.",
            )
        return count, bool(at)

    def add(self, names: Sequence[str], source: Ints, number: Ints) -> None:
        """Transactions in the order of the log. `source`: indexes into `names`, -1 for none."""
        if self._flavor == "mariadb":
            self._add_last(names, source, number)
            return
        for index in np.unique(source[source >= 0]).tolist():
            uuid, _, tag = names[index].partition(":")
            self._set |= GtidSet({(uuid, tag): _runs(number[source == index])})

    def _add_last(self, names: Sequence[str], source: Ints, number: Ints) -> None:
        last = dict(self._position)
        for domain in {_domain(names[index]) for index in np.unique(source[source >= 0]).tolist()}:
            these = _of_domain(domain, names, source)
            if domain in self._awaited:
                count, came = self._before_awaited(domain, names, source[these], number[these])
                these = these[count:]
                if came:
                    del self._awaited[domain]
            if len(these):
                server_id = int(names[source[these[-1]]].partition("-")[2])
                last[domain] = (server_id, int(number[these[-1]]))
        self._position = MariaDbPosition(last)

    def __str__(self) -> str:
        return str(self._set if self._flavor == "mysql" else self._position)


def _domain(name: str) -> int:
    return int(name.partition("-")[0])


def _of_domain(domain: int, names: Sequence[str], source: Ints) -> Ints:
    """Where its transactions are, in order."""
    indexes = [index for index, name in enumerate(names) if _domain(name) == domain]
    return np.flatnonzero(np.isin(source, indexes))


def _runs(numbers: Ints) -> list[tuple[int, int]]:
    ordered = np.sort(numbers)
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 2) != 1)
    ends = np.append(starts[1:], len(ordered)) - 1
    return list(zip(ordered[starts].tolist(), ordered[ends].tolist(), strict=True))
