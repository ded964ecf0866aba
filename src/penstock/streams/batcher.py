"""How much goes into one call: as many records and bytes as a call may have, and not before enough waited."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.streams.events import Int64s


@dataclass(frozen=True, slots=True)
class MicroBatcher:
    """`linger_s`: how long a record waits for others, while a call is not full."""

    count_max: int
    bytes_max: int
    linger_s: float = 0.0

    def cut(self, sizes: Int64s) -> int:
        """How many of these, from the first on, go into one call: at least one, if there is one."""
        first = sizes[: self.count_max]
        if not len(first):
            return 0
        return max(1, int(np.searchsorted(np.cumsum(first), self.bytes_max, side="right")))

    def wait_s(self, sizes: Int64s, waited_s: float) -> float:
        """How long to wait before a call is made of these, of which the oldest has waited so long."""
        if len(sizes) >= self.count_max or int(sizes.sum()) >= self.bytes_max:
            return 0.0
        return max(0.0, self.linger_s - waited_s)
