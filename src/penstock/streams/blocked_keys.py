"""Which keys have dead letters, so that their later events join them (`dead_letter.order: block_key`).

Events without a key have no order to keep, and are never blocked. While no key of a stream is blocked, asking
costs one look-up per batch; else one pass of Arrow's hash over its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.stream import StreamId
from penstock.streams.events import Events

Why = tuple[str, str, int]  # code, reason, attempts
Rows = npt.NDArray[np.intp]

BEHIND = "behind"
BEHIND_ANOTHER: Why = (BEHIND, "An earlier event of its key is a dead letter.", 0)


class BlockedKeys:
    """With `order: skip` (`keeps_order` False) none ever is."""

    def __init__(self, *, keeps_order: bool = True) -> None:
        self.keeps_order = keeps_order
        self._keys: dict[StreamId, set[bytes]] = {}
        self._arrays: dict[StreamId, pa.Array] = {}

    def __len__(self) -> int:
        return sum(map(len, list(self._keys.values())))

    def block(self, stream: StreamId, keys: Iterable[bytes]) -> None:
        if self.keeps_order and (wanted := set(keys)):
            self._keys.setdefault(stream, set()).update(wanted)
            self._arrays.pop(stream, None)

    def clear(self) -> None:
        self._keys.clear()
        self._arrays.clear()

    def unblock(self, stream: StreamId, key: bytes) -> None:
        keys = self._keys.get(stream)
        if keys is not None:
            keys.discard(key)
            self._arrays.pop(stream, None)
            if not keys:
                del self._keys[stream]

    def concerns(self, stream: StreamId) -> bool:
        return stream in self._keys

    def rows(self, events: Events) -> Rows:
        """Which of them are of blocked keys."""
        if not (keys := self._keys.get(events.stream)):
            return np.empty(0, np.intp)
        if (array := self._arrays.get(events.stream)) is None:
            array = self._arrays[events.stream] = pa.array(sorted(keys), events.key.type)
        return np.flatnonzero(pc.is_in(events.key, value_set=array).to_numpy(zero_copy_only=False))

    def fall(self, events: Events, refused: Mapping[int, Why]) -> dict[int, Why]:
        """What of these cannot be sent: `refused`, and behind each whatever has its key; in their order.

        Keys that were blocked before are not asked for: only what is behind these.
        """
        fallen = dict(refused)
        if self.keeps_order and refused:
            first: dict[bytes, int] = {}
            for row in sorted(refused):
                if (key := events.key[row].as_py()) is not None:
                    first.setdefault(key, row)
            self.block(events.stream, first)
            behind = BlockedKeys()
            behind.block(events.stream, first)
            for row in behind.rows(events).tolist():
                if row > first[events.key[row].as_py()]:
                    fallen.setdefault(row, BEHIND_ANOTHER)
        return dict(sorted(fallen.items()))
