"""Names of events that are in the stream, as the tail told them."""

from __future__ import annotations

import base64
import threading
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.core.position import Lsn
from penstock.streams.events import Events
from penstock.streams.kinesis.records import Group, Name, group_of, identities

_Texts = npt.NDArray[np.bytes_]


class Found:
    """Filled by several threads, asked by several. Sixteen bytes a name."""

    def __init__(self) -> None:
        self._names: dict[Group, array[int]] = {}
        self._sorted: dict[Group, _Texts] = {}
        self._lock = threading.Lock()

    def add(self, names: Iterable[Name]) -> None:
        with self._lock:
            for name in names:
                self._names.setdefault(name.group, array("Q")).extend(name.identity)
                self._sorted.pop(name.group, None)

    def holds(self, events: Events) -> npt.NDArray[np.bool_]:
        with self._lock:
            group = group_of(events)
            if group not in self._names:
                return np.zeros(len(events), np.bool_)
            if group not in self._sorted:
                words = np.array(self._names[group], np.uint64).reshape(-1, 2)
                self._sorted[group] = np.unique(_texts(words))
            names = self._sorted[group]
        wanted = _texts(identities(events))
        places = np.searchsorted(names, wanted)
        is_held: npt.NDArray[np.bool_] = names[np.minimum(places, len(names) - 1)] == wanted
        return is_held

    def newest_change(self) -> Lsn:
        """The greatest `tx`; 0, if there are loaded rows only."""
        with self._lock:
            changes = [names[::2] for (_, _, chunk), names in self._names.items() if not chunk]
            return Lsn(max((max(each) for each in changes), default=0))

    def clear(self) -> None:
        with self._lock:
            self._names, self._sorted = {}, {}

    def to_json(self) -> list[dict[str, Any]]:
        with self._lock:
            return [
                {"group": group, "names": base64.b64encode(np.array(names, "<u8").tobytes()).decode()}
                for group, names in self._names.items()
            ]

    def read_json(self, told: Iterable[dict[str, Any]]) -> None:
        """Add what another one wrote."""
        with self._lock:
            for each in told:
                stream, route, chunk = each["group"]
                words = np.frombuffer(base64.b64decode(each["names"]), "<u8")
                self._names.setdefault((stream, route, chunk), array("Q")).extend(words.tolist())
                self._sorted.pop((stream, route, chunk), None)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._names.values())) // 2


def _texts(words: npt.NDArray[np.uint64]) -> _Texts:
    """As sixteen bytes, which compare as the two numbers do."""
    texts: _Texts = np.ascontiguousarray(words, ">u8").view("S16").ravel()
    return texts
