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


def _references(arrays: Sequence[Bytes], number: int) -> int:
    return sys.getrefcount(arrays[number])


_ALONE = _references([np.empty(1, np.uint8)], 0)


class RecycledMemory:
    """At most `bytes_max` are kept, free or not; what does not fit in is left to the allocator."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: list[Bytes] = []
        self._sizes: list[int] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Bytes:
        """An array of `size` bytes or up to twice as many, with anything in them."""
        with self._lock:
            size_max = 2 * size
            for number, kept in enumerate(self._sizes):
                if size <= kept <= size_max and _references(self._kept, number) == _ALONE:
                    return self._kept[number]
            array = np.empty(size, np.uint8)
            self._keep(array)
            return array

    def _keep(self, array: Bytes) -> None:
        """If there is no place for it, those that nobody holds go first, the oldest of them."""
        if len(array) > self._bytes_max:
            return
        used = sum(self._sizes) + len(array)
        number = 0
        while number < len(self._kept) and (used > self._bytes_max or len(self._kept) >= _KEPT_MAX):
            if _references(self._kept, number) == _ALONE:
                used -= self._sizes.pop(number)
                del self._kept[number]
            else:
                number += 1
        if used <= self._bytes_max and len(self._kept) < _KEPT_MAX:
            self._kept.append(array)
            self._sizes.append(len(array))
