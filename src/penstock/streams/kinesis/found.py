"""Names of events that are in the stream, as the tail told them."""

from __future__ import annotations

import base64
import threading
from array import array
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.core.position import Lsn
from penstock.streams.events import Events
from penstock.streams.kinesis.records import Group, Name, group_of, identities

_Texts = npt.NDArray[np.bytes_]
#: So many names of a group wait for others before they are sorted in, at least.
_UNSORTED_MIN = 4_096


class _Names:
    """Of one group: each once, sorted, but for those that came since."""

    def __init__(self) -> None:
        self._sorted: _Texts = _texts(np.empty((0, 2), np.uint64))
        self._unsorted = array("Q")

    def extend(self, words: Iterable[int]) -> None:
        """Two of each name. Names that come time and again take no more room than twice what there is."""
        self._unsorted.extend(words)
        if len(self._unsorted) > 2 * max(_UNSORTED_MIN, len(self._sorted)):
            self.sorted()

    def sorted(self) -> _Texts:
        if self._unsorted:
            words = np.array(self._unsorted, np.uint64).reshape(-1, 2)
            self._sorted = np.unique(np.concatenate([self._sorted, _texts(words)]))
            self._unsorted = array("Q")
        return self._sorted

    def words(self) -> npt.NDArray[np.uint64]:
        words: npt.NDArray[np.uint64] = self.sorted().view(">u8").reshape(-1, 2).astype(np.uint64)
        return words


class Found:
    """Filled by several threads, asked by several. Sixteen bytes a name, however often it is found."""

    def __init__(self) -> None:
        self._groups: defaultdict[Group, _Names] = defaultdict(_Names)
        self._lock = threading.Lock()

    def add(self, names: Iterable[Name]) -> None:
        with self._lock:
            for name in names:
                self._groups[name.group].extend(name.identity)

    def holds(self, events: Events) -> npt.NDArray[np.bool_]:
        with self._lock:
            group = group_of(events)
            if group not in self._groups:
                return np.zeros(len(events), np.bool_)
            names = self._groups[group].sorted()
        wanted = _texts(identities(events))
        places = np.searchsorted(names, wanted)
        is_held: npt.NDArray[np.bool_] = names[np.minimum(places, len(names) - 1)] == wanted
        return is_held

    def newest_change(self) -> Lsn:
        """The greatest `tx`; 0, if there are loaded rows only."""
        with self._lock:
            changes = [names.words()[-1, 0] for (_, _, chunk), names in self._groups.items() if not chunk]
            return Lsn(max(map(int, changes), default=0))

    def clear(self) -> None:
        with self._lock:
            self._groups.clear()

    def to_json(self) -> list[dict[str, Any]]:
        with self._lock:
            return [
                {"group": group, "names": base64.b64encode(names.words().astype("<u8").tobytes()).decode()}
                for group, names in self._groups.items()
            ]

    def read_json(self, told: Iterable[dict[str, Any]]) -> None:
        """Add what another one wrote."""
        with self._lock:
            for each in told:
                stream, route, chunk = each["group"]
                words = np.frombuffer(base64.b64decode(each["names"]), "<u8")
                self._groups[stream, route, chunk].extend(words.tolist())

    def __len__(self) -> int:
        with self._lock:
            return sum(len(names.sorted()) for names in self._groups.values())


def _texts(words: npt.NDArray[np.uint64]) -> _Texts:
    """As sixteen bytes, which compare as the two numbers do."""
    texts: _Texts = np.ascontiguousarray(words, ">u8").view("S16").ravel()
    return texts
