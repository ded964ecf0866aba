"""An array that grows at its end, for compiled code to read: what is appended stays where it is.

What is dropped leaves a hole; its owner packs the array when holes are most of it, and is told the new
places. So an addition costs its own length, and a removal too in the long run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Arena:
    def __init__(self, kind: npt.DTypeLike, fields: int | None = None) -> None:
        self._array = np.empty(64 if fields is None else (64, fields), kind)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    @property
    def view(self) -> npt.NDArray[Any]:
        return self._array[: self._used]

    def append(self, items: npt.ArrayLike) -> int:
        """Where the first of the items is."""
        added = np.asarray(items, self._array.dtype)
        at, end = self._used, self._used + len(added)
        if end > len(self._array):
            grown = np.empty((max(end, 2 * len(self._array)), *self._array.shape[1:]), self._array.dtype)
            grown[:at] = self._array[:at]
            self._array = grown
        self._array[at:end] = added
        self._used = end
        return at

    def keep(self, chosen: npt.NDArray[np.int64]) -> None:
        """Only these items, in this order."""
        kept = self._array[chosen]
        self._array = np.empty((max(64, len(kept)), *kept.shape[1:]), kept.dtype)
        self._array[: len(kept)] = kept
        self._used = len(kept)


def ranges(
    starts: npt.NDArray[Any], lengths: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All numbers of these ranges, one range after the other; where each then begins."""
    begins = np.cumsum(lengths, dtype=np.int64) - lengths
    shift = np.asarray(starts, np.int64) - begins
    return np.repeat(shift, lengths) + np.arange(lengths.sum(), dtype=np.int64), begins
