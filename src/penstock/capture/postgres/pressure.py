"""How near the source is to giving the slot up, and what is done about it. Decisions only.

Log that the source keeps for a slot is compared with the lesser of two limits: `wal.max_retained`, and nine
tenths of what the server itself allows (`max_slot_wal_keep_size`), since a slot that has passed that is lost.
People are told when half and when four fifths are used. At the limit `on_wal_pressure` decides: `hold` tells
people again and waits for the lanes; `acknowledge_log` lets the source forget what the change log
holds, until less than half of the limit is used.
"""

from __future__ import annotations

from penstock.capture.spec import OnWalPressure
from penstock.sources.postgres.slots import SlotInfo

_SERVER_SHARE = 0.9
_LEVELS = (0.5, 0.8, 1.0)
_FALLS_BELOW = 0.9  # of a level, so that a value that moves about it is told once
_MIB = 1 << 20


def used_share(slot: SlotInfo, retained_max: int) -> float:
    """The part of the limit that is used; 1 and more means that something must be done."""
    if slot.retained_bytes is None:
        return 0.0
    limit = float(retained_max)
    if slot.safe_wal_size is not None:
        limit = min(limit, _SERVER_SHARE * (slot.retained_bytes + max(0, slot.safe_wal_size)))
    share = slot.retained_bytes / limit if limit > 0 else 1.0
    return max(share, 1.0) if slot.wal_status == "unreserved" else share


class WalPressure:
    """Is shown the slot again and again. `acknowledge_log`: whether the log's end may be acknowledged now."""

    def __init__(self, slot: str, retained_max: int, on_pressure: OnWalPressure) -> None:
        self._slot = slot
        self._retained_max = retained_max
        self._on_pressure = on_pressure
        self._level = 0
        self.acknowledge_log = False

    def look(self, slot: SlotInfo) -> str | None:
        """Take note of where the slot is; a sentence for people, if it has come to another level."""
        share = used_share(slot, self._retained_max)
        before, self._level = self._level, self._level_of(share)
        if self._level == len(_LEVELS):
            self.acknowledge_log = self._on_pressure == "acknowledge_log"
        elif self._level == 0:
            self.acknowledge_log = False
        return self._sentence(slot, share) if self._level > before else None

    def _level_of(self, share: float) -> int:
        reached = sum(share >= level for level in _LEVELS)
        kept = sum(share >= level * _FALLS_BELOW for level in _LEVELS)
        return max(reached, min(self._level, kept))

    def _sentence(self, slot: SlotInfo, share: float) -> str:
        size = f"{(slot.retained_bytes or 0) / _MIB:,.0f} MiB of log for slot {self._slot}"
        if self._level < len(_LEVELS):
            return f"The source keeps {size}, {share:.0%} of what it may: a lane is behind or down."
        if self.acknowledge_log:
            return f"The source keeps {size}: from now on it may forget what the change log holds."
        return (
            f"The source keeps {size}, which is all it may: the slot will be lost if the server limits it. "
            "Bring the lane that is behind back, drop it (`penstock lane drop`; not the lake), or "
            "set `wal.on_wal_pressure: acknowledge_log`."
        )
