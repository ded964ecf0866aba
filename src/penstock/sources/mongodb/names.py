"""Names of fields and their numbers, as compiled code looks them up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.sources.mongodb import column_kernels as kernels
from penstock.text_kernels import Bytes, Indices, Ints

_SLOTS_PER_NAME = 4


class Names:
    """Numbered from 0 in the order they were added."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._bytes: Bytes = np.empty(0, np.uint8)
        self._ends: Ints = np.empty(0, np.int64)
        self._slots: Indices = np.full(64, -1, np.int32)
        for name in names:
            self.add(np.frombuffer(name.encode(), np.uint8))

    @property
    def arrays(self) -> tuple[Bytes, Ints, Indices]:
        """The bytes of all names, where each ends, and a table of their hashes."""
        return self._bytes, self._ends, self._slots

    def add(self, name: Bytes) -> None:
        self._bytes = np.concatenate([self._bytes, name])
        self._ends = np.append(self._ends, len(self._bytes))
        first = len(self._ends) - 1
        if len(self._slots) < _SLOTS_PER_NAME * len(self._ends):
            self._slots, first = np.full(2 * len(self._slots), -1, np.int32), 0
        for number in range(first, len(self._ends)):
            kernels.enter_name(self._bytes, self._ends, number, self._slots)
