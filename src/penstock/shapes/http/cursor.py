"""`electric-cursor`: a number that live requests repeat, so that a cache tells their rounds apart.

All clients of a round get the same number, the end of the present interval of one poll's length: a cache
collapses their next requests into one. A client that already has this number has been answered twice within
an interval, and gets one further on, so that it does not meet its own cached answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime

EPOCH_S = datetime(2024, 10, 9, tzinfo=UTC).timestamp()
_AHEAD_MAX = 3600


def next_cursor(
    now_s: float,
    long_poll_s: float,
    given: int | None,
    choose: Callable[[int, int], int] = random.randint,
) -> int:
    interval = int(long_poll_s)
    if interval < 1:
        return 0
    cursor = math.ceil((now_s - EPOCH_S) / interval) * interval
    return cursor if given is None or cursor > given else given + choose(1, _AHEAD_MAX)
