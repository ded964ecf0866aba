"""What was found of each stream, counted over all buckets, and the first of each kind by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest

import numpy as np

from penstock.core.verify_report import Difference, DifferenceKind
from penstock.streams.comparison.judging import Judged, Places
from penstock.streams.comparison.spilled import Rows

_KINDS: Mapping[str, DifferenceKind] = {
    "missing": "missing",
    "doubled": "doubled",
    "out_of_order": "out of order",
    "different": "different",
    "extra": "extra",
}
_COUNTED = (*_KINDS, "gone", "dead")


class Tally:
    """Of all streams, by their numbers. `limit`: so many differences of a stream are told one by one."""

    def __init__(self, streams: int, topics: Sequence[str], limit: int) -> None:
        self.expected = np.zeros(streams, np.int64)
        self.found = np.zeros(streams, np.int64)
        self._counts = {kind: np.zeros(streams, np.int64) for kind in _COUNTED}
        self._told: dict[tuple[int, str], list[Difference]] = {}
        self._topics = topics
        self._limit = limit

    def add(self, judged: Judged) -> None:
        self.expected += self._by_stream(judged.expected)
        self.found += self._by_stream(judged.found)
        for kind in _COUNTED:
            places: Places = getattr(judged, kind)
            if len(places):
                rows = judged.expected if kind in ("missing", "gone", "dead") else judged.found
                self._counts[kind] += self._by_stream(rows, places)
                if kind in _KINDS:
                    self._tell(kind, rows, places, is_found=rows is judged.found)

    def count(self, kind: str, stream: int) -> int:
        return int(self._counts[kind][stream])

    def differing(self, stream: int) -> int:
        return sum(self.count(kind, stream) for kind in _KINDS)

    def differences(self, stream: int) -> tuple[Difference, ...]:
        """Some of each kind, as many as the limit allows."""
        lists = (self._told.get((stream, kind), ()) for kind in _KINDS)
        mixed = (each for each in chain.from_iterable(zip_longest(*lists)) if each is not None)
        chosen = list(islice(mixed, self._limit))
        order = list(_KINDS.values())
        return tuple(sorted(chosen, key=lambda each: order.index(each.kind)))

    def _by_stream(
        self, rows: Rows, places: Places | None = None
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        numbers = rows.stream if places is None else rows.stream[places]
        return np.bincount(numbers, minlength=len(self.expected))

    def _tell(self, kind: str, rows: Rows, places: Places, *, is_found: bool) -> None:
        for stream in np.unique(rows.stream[places]).tolist():
            told = self._told.setdefault((stream, kind), [])
            for place in places[rows.stream[places] == stream][: self._limit - len(told)].tolist():
                told.append(Difference(_KINDS[kind], dict(self._names(rows, place, is_found=is_found))))

    def _names(self, rows: Rows, place: int, *, is_found: bool) -> Iterator[tuple[str, str | None]]:
        """The row's key, which change it was, and where it lies."""
        yield from _key(rows.key[place].as_py())
        tombstone = " (tombstone)" if rows.is_tombstone[place] else ""
        yield "change", f"{rows.tx[place]}_{rows.op[place]}{tombstone}"
        if is_found:
            topic = self._topics[rows.route[place]]
            yield "record", f"{topic}[{rows.place[place]}]@{rows.at[place]}"


def _key(content: bytes | None) -> Iterator[tuple[str, str | None]]:
    if content is None:
        return
    try:
        key = json.loads(content)
    except ValueError:
        yield "key", f"0x{content.hex()}"
        return
    if isinstance(key, dict) and isinstance(key.get("payload"), dict) and "schema" in key:
        key = key["payload"]
    if isinstance(key, dict):
        for name, value in key.items():
            yield name, None if value is None else value if isinstance(value, str) else json.dumps(value)
    else:
        yield "key", content.decode()
