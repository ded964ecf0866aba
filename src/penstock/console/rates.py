"""How fast counters rise: over the last seconds, from what the instance says once a second.

A counter that falls has begun anew with its process; what it has then is what it has risen by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

WINDOW_S = 10.0
_MOMENTS_MAX = 32

Key = tuple[str, str]


class Rates:
    """Of counters by kind and name. `add` at each moment; then `of` and `total` say what is risen a
    second.
    """

    def __init__(self) -> None:
        self._moments: deque[tuple[float, Mapping[Key, float]]] = deque(maxlen=_MOMENTS_MAX)
        self._rates: dict[Key, float] = {}

    def add(self, at: float, counters: Mapping[Key, float]) -> None:
        while self._moments and self._moments[0][0] < at - WINDOW_S:
            self._moments.popleft()
        self._rates = {}
        for key, value in counters.items():
            # The earliest that has it: what has just begun has a rate before the window is over.
            known = next(((then, found[key]) for then, found in self._moments if key in found), None)
            if known is not None:
                then, before = known
                self._rates[key] = (value - before if value >= before else value) / max(at - then, 1e-3)
        self._moments.append((at, counters))

    def forget(self) -> None:
        """Nothing is said any more: nobody knows."""
        self._moments.clear()
        self._rates = {}

    def of(self, kind: str, name: str) -> float | None:
        return self._rates.get((kind, name))

    def total(self, kind: str) -> float | None:
        found = [value for (each, _), value in self._rates.items() if each == kind]
        return sum(found) if found else None


def counters_of(status: dict[str, object]) -> dict[Key, float]:
    """All counters in what an instance says."""
    counters: dict[Key, float] = {}
    capture = status.get("capture")
    if isinstance(capture, dict):
        for name in ("rows", "bytes", "transactions"):
            if capture.get(name) is not None:
                counters["capture", name] = float(capture[name])
    for stream in _each(status, "streams"):
        counters["applied", str(stream["stream"])] = float(stream["rows_applied"])
        if stream.get("load_rows") is not None:
            counters["loaded", str(stream["stream"])] = float(stream["load_rows"])
    for lane in _each(status, "lanes"):
        if lane.get("events") is not None:
            counters["events", str(lane["lane"])] = float(lane["events"])
    return counters


def _each(status: dict[str, object], name: str) -> list[dict[str, float]]:
    found = status.get(name)
    return found if isinstance(found, list) else []
