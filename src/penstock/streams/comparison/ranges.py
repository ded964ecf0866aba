"""Which changes of each stream are compared: from where on and up to where the lane has told them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.core.position import Lsn
from penstock.core.stream import MESSAGES, StreamId
from penstock.streams.load_state import LoadState
from penstock.streams.publisher import Standing

_BEGINNING = Lsn(0)
#: Of emitted messages the lane has no state: they are told from its first position on.
_WITHOUT_STATE = frozenset({MESSAGES})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for: changes with `start <= tx < end`."""

    start: Lsn = _BEGINNING
    end: Lsn | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Changes with `start <= tx < end`. Without `is_certain` the lane may have begun later than `start`."""

    start: Lsn
    end: Lsn
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class NotComparable:
    reason: str
    is_final: bool = False  # nothing that anybody does now changes it


def ranges_of(
    streams: Collection[StreamId], standing: Standing, log_start: Lsn, log_end: Lsn, wanted: Wanted
) -> dict[StreamId, Range | NotComparable]:
    found: dict[StreamId, Range | NotComparable] = {}
    for stream in streams:
        fields = standing.loads.get(str(stream))
        if fields is None and stream not in _WITHOUT_STATE:
            found[stream] = NotComparable("the lane has not begun with it yet")
            continue
        found[stream] = _range(LoadState.from_json(fields or {}), standing, log_start, log_end, wanted)
    return found


def _range(
    state: LoadState, standing: Standing, log_start: Lsn, log_end: Lsn, wanted: Wanted
) -> Range | NotComparable:
    told_to = state.point if state.is_loading else standing.position
    end = min(told_to, log_end) if wanted.end is None else min(told_to, log_end, wanted.end)
    # Without `since`, `point` is where a stream begins that the lane has not come to yet.
    start = max(state.since, log_start, wanted.start)
    if wanted.start > told_to:
        return NotComparable(f"the lane has sent it up to {told_to}, and not up to {wanted.start} yet")
    if wanted.end is not None and wanted.end < log_start:
        return NotComparable(f"the change log begins at {log_start}: it does not reach back so far")
    return Range(start, max(start, end), is_certain=bool(state.since))


def begun_at(within: Range, load_point: Lsn | None, first_found: int | None) -> Range:
    """A range whose beginning the lane did not write down, by what the topic shows of it."""
    if within.is_certain:
        return within
    shown = load_point if load_point is not None else first_found
    start = within.end if shown is None else max(within.start, Lsn(shown))
    return Range(min(start, within.end), within.end)


def least_start(ranges: Mapping[StreamId, Range]) -> Lsn:
    return min(each.start for each in ranges.values())
