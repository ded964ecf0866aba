"""Memory that is used again as soon as nobody holds it.

Batches come and go many times a second, a dozen megabytes each; what the allocator gives back to the system
in between comes back as empty pages, which costs as much as filling them with texts does.

An array is free when its keeper is the only one who knows of it: slices, memoryviews and Arrow's buffers over
an array refer to it, so the count of references tells. It cannot be wrong in the dangerous direction, since
a new reference can only be made from another one. How many references looking itself makes is measured.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
_KEPT_MAX = 64


def _references(arrays: Sequence[Bytes]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


[_ALONE] = _references([np.empty(1, np.uint8)])


class RecycledMemory:
    """At most `bytes_max` are kept, free or not; what does not fit in is left to the allocator."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: list[Bytes] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Bytes:
        """An array of `size` bytes or up to twice as many, with anything in them."""
        with self._lock:
            free = [count == _ALONE for count in _references(self._kept)]
            for number, is_free in enumerate(free):
                if is_free and size <= len(self._kept[number]) <= 2 * size:
                    return self._kept[number]
            array = np.empty(size, np.uint8)
            self._keep(array, free)
            return array

    def _keep(self, array: Bytes, free: Sequence[bool]) -> None:
        """If there is no place for it, those that nobody wanted go first, the oldest of them."""
        if len(array) > self._bytes_max:
            return
        used = sum(map(len, self._kept)) + len(array)
        kept = []
        for other, is_free in zip(self._kept, free, strict=True):
            if is_free and (used > self._bytes_max or len(self._kept) >= _KEPT_MAX):
                used -= len(other)
            else:
                kept.append(other)
        if used <= self._bytes_max and len(kept) < _KEPT_MAX:
            kept.append(array)
        self._kept = kept
