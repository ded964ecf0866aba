"""Which transactions have been read, as a set that grows by what a batch brings.

Cost: a transaction is a number in an array; an object is made for each run of numbers without a gap, which
is one per batch and server unless a replica commits in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.core.failover import Flavor
from penstock.core.gtid import GtidSet
from penstock.core.mariadb_gtid import MariaDbPosition
from penstock.sources.mysql.binlog.packet_kernels import Ints


class SeenGtids:
    """Begins with what was read before. A server without global ids leaves it empty."""

    def __init__(self, flavor: Flavor, start: str) -> None:
        self._flavor = flavor
        self._set = GtidSet.parse(start) if flavor == "mysql" else GtidSet()
        self._position = MariaDbPosition.parse(start) if flavor == "mariadb" else MariaDbPosition()
        self._before = {source: np.array(intervals) for source, intervals in self._set}
        self._domains = {domain: number for domain, (_, number) in self._position}

    def had(self, names: Sequence[str], source: Ints, number: Ints) -> npt.NDArray[np.bool_]:
        """Which of these transactions were read before: on another server they may lie behind our place."""
        found = np.zeros(len(source), np.bool_)
        for index in np.unique(source[source >= 0]).tolist():
            these = source == index
            found[these] = self._were_before(names[index], number[these])
        return found

    def _were_before(self, name: str, numbers: Ints) -> npt.NDArray[np.bool_]:
        if self._flavor == "mariadb":
            last = self._domains.get(int(name.partition("-")[0]), 0)
            return np.asarray(numbers <= last)
        uuid, _, tag = name.partition(":")
        intervals = self._before.get((uuid, tag))
        if intervals is None:
            return np.zeros(len(numbers), np.bool_)
        at = np.searchsorted(intervals[:, 0], numbers, side="right") - 1
        return np.asarray((at >= 0) & (numbers <= intervals[np.maximum(at, 0), 1]))

    def add(self, names: Sequence[str], source: Ints, number: Ints) -> None:
        """Transactions in the order of the log. `source`: indexes into `names`, -1 for none."""
        for index in np.unique(source[source >= 0]).tolist():
            numbers = number[source == index]
            if self._flavor == "mysql":
                uuid, _, tag = names[index].partition(":")
                self._set |= GtidSet({(uuid, tag): _runs(numbers)})
            else:
                domain, _, server = names[index].partition("-")
                last = {int(domain): (int(server), int(numbers[-1]))}
                self._position |= MariaDbPosition(last)

    def __str__(self) -> str:
        return str(self._set if self._flavor == "mysql" else self._position)


def _runs(numbers: Ints) -> list[tuple[int, int]]:
    ordered = np.sort(numbers)
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 2) != 1)
    ends = np.append(starts[1:], len(ordered)) - 1
    return list(zip(ordered[starts].tolist(), ordered[ends].tolist(), strict=True))
