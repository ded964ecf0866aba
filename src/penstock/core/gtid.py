"""GTID sets of MySQL: which transactions of which server a place in the log holds. Pure, exact, immutable.

A set maps a source, `(uuid, tag)`, to intervals of transaction numbers. The text is the server's own:
`uuid:1-5:7`, several joined by commas, spaces and line ends anywhere. Since MySQL 8.3 a tag may stand among
the intervals and holds for those behind it: `uuid:1-3:nightly:1-2` are five transactions of two sources.

Every set is kept in one form only (sources sorted, intervals sorted, apart and never adjacent), so sets that
hold the same transactions are equal and print the same text. All operations walk both lists of intervals
once; a set of a server that ran for years without gaps is one interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

NUMBER_MAX = 2**63 - 2  # the server's own bound
TAG_CHARACTERS_MAX = 32

_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_TAG = re.compile(rf"[a-z_][a-z0-9_]{{0,{TAG_CHARACTERS_MAX - 1}}}")
_INTERVAL = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")

Source = tuple[str, str]  # uuid in small letters with dashes, tag in small letters ("" for none)
Interval = tuple[int, int]  # first and last, both within
Intervals = tuple[Interval, ...]


class GtidSet:
    """A set of transactions. `a <= b`: everything in `a` is in `b`."""

    __slots__ = ("_intervals",)

    def __init__(self, intervals: Mapping[Source, Iterable[Interval]] | None = None) -> None:
        merged = {source: _merged(parts) for source, parts in (intervals or {}).items()}
        self._intervals: dict[Source, Intervals] = {
            source: merged[source] for source in sorted(merged) if merged[source]
        }

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """ValueError if the text is not a set as MySQL prints or takes it."""
        found: dict[Source, list[Interval]] = {}
        for part in "".join(text.split()).lower().split(","):
            if part:
                for source, interval in _parsed(part):
                    found.setdefault(source, []).append(interval)
        return cls(found)

    def __str__(self) -> str:
        """As the server prints it, without its line ends."""
        parts: list[str] = []
        before = ""
        for (uuid, tag), intervals in self._intervals.items():
            numbers = ":".join(
                f"{first}" if first == last else f"{first}-{last}" for first, last in intervals
            )
            if uuid == before:  # tags of one server follow each other, the untagged first
                parts[-1] += f":{tag}:{numbers}"
            else:
                parts.append(f"{uuid}:{tag}:{numbers}" if tag else f"{uuid}:{numbers}")
            before = uuid
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"GtidSet({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and self._intervals == other._intervals

    def __hash__(self) -> int:
        return hash(tuple(self._intervals.items()))

    def __bool__(self) -> bool:
        return bool(self._intervals)

    def __iter__(self) -> Iterator[tuple[Source, Intervals]]:
        return iter(self._intervals.items())

    @property
    def count(self) -> int:
        """How many transactions it holds."""
        return sum(last - first + 1 for intervals in self._intervals.values() for first, last in intervals)

    def __or__(self, other: GtidSet) -> GtidSet:
        sources = self._intervals.keys() | other._intervals.keys()
        return GtidSet({source: (*self._of(source), *other._of(source)) for source in sources})

    def __sub__(self, other: GtidSet) -> GtidSet:
        return GtidSet(
            {source: _without(intervals, other._of(source)) for source, intervals in self._intervals.items()}
        )

    def __and__(self, other: GtidSet) -> GtidSet:
        return self - (self - other)

    def __le__(self, other: GtidSet) -> bool:
        return not self - other

    def __ge__(self, other: GtidSet) -> bool:
        return other <= self

    def holds(self, uuid: str, number: int, tag: str = "") -> bool:
        return any(first <= number <= last for first, last in self._of((uuid, tag)))

    def _of(self, source: Source) -> Intervals:
        return self._intervals.get(source, ())


def _parsed(part: str) -> Iterator[tuple[Source, Interval]]:
    uuid, *rest = part.split(":")
    if _UUID.fullmatch(uuid) is None or not rest:
        raise ValueError(f"not a GTID set: {part[:60]!r} (expected e.g. <uuid>:1-5)")
    plain = uuid.replace("-", "")
    uuid = "-".join((plain[:8], plain[8:12], plain[12:16], plain[16:20], plain[20:]))
    tag, tag_is_used = "", True
    for word in rest:
        match = _INTERVAL.fullmatch(word)
        if match is not None:
            first = int(match[1])
            last = first if match[2] is None else int(match[2])
            if not 1 <= first <= NUMBER_MAX or last > NUMBER_MAX:
                raise ValueError(f"not a transaction number of a GTID set: {word!r}")
            tag_is_used = True
            if first <= last:  # the server takes an interval that ends before it begins for an empty one
                yield (uuid, tag), (first, last)
        elif _TAG.fullmatch(word) is not None and tag_is_used:
            tag, tag_is_used = word, False
        else:
            raise ValueError(f"not an interval of a GTID set: {word[:60]!r} (expected e.g. 1-5)")
    if not tag_is_used:
        raise ValueError(f"a tag of a GTID set is followed by no interval: {tag!r}")


def _merged(parts: Iterable[Interval]) -> Intervals:
    merged: list[Interval] = []
    for first, last in sorted(parts):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _without(intervals: Intervals, removed: Intervals) -> list[Interval]:
    left: list[Interval] = []
    at = 0
    for whole_first, last in intervals:
        first = whole_first
        while at < len(removed) and removed[at][1] < first:
            at += 1
        look = at
        while look < len(removed) and removed[look][0] <= last:
            if first < removed[look][0]:
                left.append((first, removed[look][0] - 1))
            first = removed[look][1] + 1
            look += 1
        if first <= last:
            left.append((first, last))
    return left
