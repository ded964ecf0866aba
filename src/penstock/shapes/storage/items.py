"""What is appended to shapes' logs: the items of one shape, or of many shapes at once.

Both are columns over a buffer, never an object per item. `json` holds complete JSON objects, `keys` the
key of each (empty for events and control messages), one after the other; `*_ends` say where each ends.
Offsets ascend strictly.

`boundary` says that what was appended for the shape up to and including these items is whole
transactions, and is the offset readers may then see. Without it the items are a part of a transaction
too large for one piece: nothing of it is readable, and after a crash nothing of it is left. A boundary
may come without items (the last piece of a large transaction may hold none for this shape).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.core.offset import LogOffset

Int64s: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class LogItems:
    """Items of one shape, in the order of their offsets."""

    tx: Int64s
    op: Int64s
    kind: npt.NDArray[np.uint8]  #: ord of i, u, d; e for an event or a control message
    key_ends: Int64s
    keys: Bytes
    json_ends: Int64s
    json: Bytes
    boundary: LogOffset | None
    durable_first: bool = False  #: readers see them only after datasync (correctness 41)


@dataclass(frozen=True, slots=True)
class ShapeItems:
    """Items of many shapes, those of one shape side by side: shape n has items
    `item_ends[n - 1]:item_ends[n]`. `whole` is `boundary` for all of them: the items of each shape end a
    transaction, and its boundary is its last item's offset."""

    slots: npt.NDArray[np.int32]
    item_ends: Int64s
    tx: Int64s
    op: Int64s
    kind: npt.NDArray[np.uint8]
    key_ends: Int64s
    keys: Bytes
    json_ends: Int64s
    json: Bytes
    whole: bool
