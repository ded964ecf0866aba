"""GTID positions of MariaDB: the last transaction of each replication domain, `domain-server-number`. Pure.

Other than in MySQL a position is no set: within a domain the numbers grow in the order of the log, so the
last one says all. `0-1-100,3-7-12` is a place behind transaction 100 of domain 0 and 12 of domain 3. `a <=
b` means that `b` is not before `a` in any domain that `a` knows. Which server wrote the last transaction is
kept, since the server wants it back, and tells two histories apart only where the numbers are equal.

Where servers of one domain write at the same time, without `gtid_strict_mode`, numbers grow for each of them
alone. `gtid_binlog_state` has the last of each, which `beyond_state` goes by, as MariaDB does with its
replicas. A higher number of another server says nothing: one that took over too early counts on by itself.
Nor does what a server replicated and did not log (`log_slave_updates` off): MariaDB would send what comes
after its `gtid_slave_pos`, but `beyond_state` names it, since no place in that log has ours before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_GTID = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")
_MAX_32, _MAX_64 = 2**32 - 1, 2**64 - 1


class MariaDbPosition:
    """The last transaction of each domain, as `(server, number)`."""

    __slots__ = ("_last",)

    def __init__(self, last: Mapping[int, tuple[int, int]] | None = None) -> None:
        self._last: dict[int, tuple[int, int]] = {
            domain: (last or {})[domain] for domain in sorted(last or {})
        }

    @classmethod
    def parse(cls, text: str) -> MariaDbPosition:
        """A position as `gtid_current_pos` prints it; ValueError if a domain is named twice."""
        found: dict[int, tuple[int, int]] = {}
        for domain, server, number in _parsed(text):
            if domain in found:
                raise ValueError(f"a MariaDB position names domain {domain} twice")
            found[domain] = (server, number)
        return cls(found)

    @classmethod
    def of_binlog_state(cls, text: str) -> MariaDbPosition:
        """Of `gtid_binlog_state`, which has a line for each server of a domain: the highest is the last."""
        found: dict[int, tuple[int, int]] = {}
        for domain, server, number in _parsed(text):
            if domain not in found or number > found[domain][1]:
                found[domain] = (server, number)
        return cls(found)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in self._last.items())

    def __repr__(self) -> str:
        return f"MariaDbPosition({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariaDbPosition) and self._last == other._last

    def __hash__(self) -> int:
        return hash(tuple(self._last.items()))

    def __bool__(self) -> bool:
        return bool(self._last)

    def __iter__(self) -> Iterator[tuple[int, tuple[int, int]]]:
        return iter(self._last.items())

    def __or__(self, other: MariaDbPosition) -> MariaDbPosition:
        """In each domain the later of the two."""
        both = dict(self._last)
        for domain, (server, number) in other._last.items():
            if domain not in both or number > both[domain][1]:
                both[domain] = (server, number)
        return MariaDbPosition(both)

    def __sub__(self, other: MariaDbPosition) -> MariaDbPosition:
        """The domains in which `other` is not as far as this one, and how far this one is there."""
        return MariaDbPosition(
            {domain: last for domain, last in self._last.items() if not other._reaches(domain, last)}
        )

    def beyond_state(self, state: str) -> MariaDbPosition:
        """The domains whose last transaction a log does not have that is in this state."""
        held: dict[tuple[int, int], int] = {}
        for domain, server, number in _parsed(state):
            held[domain, server] = max(number, held.get((domain, server), 0))
        return MariaDbPosition(
            {
                domain: (server, number)
                for domain, (server, number) in self._last.items()
                if held.get((domain, server), -1) < number
            }
        )

    def __le__(self, other: MariaDbPosition) -> bool:
        return not self - other

    def __ge__(self, other: MariaDbPosition) -> bool:
        return other <= self

    def _reaches(self, domain: int, last: tuple[int, int]) -> bool:
        mine = self._last.get(domain)
        # The same number of another server is another transaction: the histories have parted.
        return mine is not None and (mine[1] > last[1] or mine == last)


def _parsed(text: str) -> Iterator[tuple[int, int, int]]:
    for part in "".join(text.split()).split(","):
        if not part:
            continue
        match = _GTID.fullmatch(part)
        numbers = (int(match[1]), int(match[2]), int(match[3])) if match else (_MAX_64, 0, 0)
        if numbers[0] > _MAX_32 or numbers[1] > _MAX_32 or numbers[2] > _MAX_64:
            raise ValueError(f"not a GTID of MariaDB: {part[:60]!r} (expected e.g. 0-1-100)")
        yield numbers
