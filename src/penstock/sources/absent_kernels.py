"""Rows that were sent without some of their columns: unchanged TOAST, or an image that leaves columns out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.compiling import compiled

Bytes = npt.NDArray[np.uint8]
Lengths = npt.NDArray[np.int32]
Marks = npt.NDArray[np.int32] | npt.NDArray[np.int64]
#: Stands in for the length or place of a value that was not sent, as -1 does for that of a null.
ABSENT = -2


@compiled()
def list_absent(marks: Marks, total: int) -> tuple[Lengths, Lengths, Bytes]:
    """Which columns are absent in each row: list offsets, column numbers, validity bits. `total`: of all.

    `marks` is `ABSENT` where a value was not sent: lengths or places, a row per column.
    """
    columns, rows = marks.shape
    offsets = np.zeros(rows + 1, np.int32)
    numbers = np.empty(total, np.int32)
    validity = np.zeros((rows + 7) // 8, np.uint8)
    found = 0
    for row in range(rows):
        before = found
        for column in range(columns):
            if marks[column, row] == ABSENT:
                numbers[found] = column
                found += 1
        offsets[row + 1] = found
        if found > before:
            validity[row >> 3] |= np.uint8(1 << (row & 7))
    return offsets, numbers, validity
