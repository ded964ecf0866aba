"""How long to wait before something is tried again."""

from __future__ import annotations

import random

_DOUBLINGS_MAX = 30  # of a pause that has long been the longest


def pause_s(times: int, least_s: float, most_s: float) -> float:
    """Any part of a pause that doubles each time, so that instances do not come back all at once."""
    return random.uniform(0, min(most_s, least_s * 2 ** min(times, _DOUBLINGS_MAX)))  # noqa: S311
