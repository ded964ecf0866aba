"""What keeps the source from forgetting its log, in words: a function of values.

The source may forget what every lane holds, so the slot stands where the slowest lane does; and a lane
stands where its slowest stream does. What does not go on until somebody acts is said before who is behind: it
may be level today and hold all of tomorrow. Said as pieces of a sentence, so that the page can show times and
names as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

Level = Literal["good", "busy", "bad"]
#: A lane that is no further behind than that is at work and holds nothing in a way worth a word.
NEAR_BYTES = 64 << 20
NEAR_S = 60.0
_LINE_MAX = 300

Piece = dict[str, Any]


def what_holds(
    status: dict[str, Any] | None,
    streams: list[dict[str, Any]],
    lanes: list[dict[str, Any]],
    *,
    has_slot: bool = True,
) -> dict[str, Any]:
    """`pieces` with `text`, `stream`, `lane` or `time` each, and how bad it is. Without a slot, the source
    keeps its log for as long as its own settings say, and not for this pipeline."""
    if status is None:
        kept = (
            "the source keeps its log until one does"
            if has_slot
            else "what is new is read later, if the source still has it then"
        )
        return _said("bad", _text(f"No instance runs: {kept}."))
    capture = next((each for each in status["processes"] if each["name"] == "capture"), None)
    if status["role"] == "standby":
        return _said("good", _text("This instance stands by; another one leads and acknowledges."))
    if status["source"]["slot_healthy"] is False:
        needed = "the slot needs" if has_slot else "is still to be read"
        return _said(
            "bad",
            _text(f"The server no longer keeps all that {needed}: tables must be loaded again."),
        )
    if status["role"] != "leading":
        why = (capture or {}).get("reason") or (capture or {}).get("state") or "it is not there"
        kept = "the source keeps all that is new" if has_slot else "what is new is read later"
        return _said("bad", _text(f"Capture does not read ({_one_line(why)}): {kept}."))
    return _of_lanes(streams, lanes, has_slot=has_slot)


def _of_lanes(
    streams: list[dict[str, Any]], lanes: list[dict[str, Any]], *, has_slot: bool
) -> dict[str, Any]:
    """What will not go on by itself comes first, however little it is behind yet; then who is behind."""
    if not lanes:
        return _said("busy", _text("Nothing is known of the lanes yet."))
    if left := [lane for lane in lanes if not lane["configured"]]:
        return _of_left(max(left, key=_lag), has_slot=has_slot)
    if (said := _first_of(_STANDING, lanes)) is not None:
        return said
    if (said := _of_paused(streams)) is not None:
        return said
    if (said := _first_of(_PASSING, lanes)) is not None:
        return said
    lane = max(lanes, key=_lag)
    if lane["lane"] == "lake" and (said := _of_loading(streams)) is not None:
        return said
    with_gaps = [lane for lane in lanes if lane.get("gaps")]
    if with_gaps:
        return _of_gaps(with_gaps[0])
    if (lane["lag_bytes"] or 0) > NEAR_BYTES or (lane["lag_seconds"] or 0) > NEAR_S:
        return _of_lane("busy", lane, " lane is the furthest behind, and catches up.")
    letters = sum(each.get("dead_letters") or 0 for each in (*streams, *lanes))
    if letters:
        few = "1 dead letter waits" if letters == 1 else f"{letters:,} dead letters wait"
        level = "Nothing holds the slot back" if has_slot else "Every lane is up to date"
        return _said("busy", _text(f"{level}, but {few} for somebody to look at."))
    free = "Nothing holds the slot back: every" if has_slot else "Every"
    return _said("good", _text(f"{free} lane is up to date."))


def _first_of(cases: _Cases, lanes: list[dict[str, Any]]) -> dict[str, Any] | None:
    for is_so, words in cases:
        found = [lane for lane in lanes if is_so(lane)]
        if found:
            return words(max(found, key=_lag))
    return None


def _lag(lane: dict[str, Any]) -> float:
    """A lane that has not said how far it is may be at the very beginning."""
    return float("inf") if lane["lag_bytes"] is None else float(lane["lag_bytes"])


def _is_down(lane: dict[str, Any]) -> bool:
    return (lane.get("state") or "running") not in ("running", *_BEGINNING)


def _is_beginning(lane: dict[str, Any]) -> bool:
    return (lane.get("state") or "running") in _BEGINNING


def _is_in_trouble(lane: dict[str, Any]) -> bool:
    """What it lacks is told of where gaps are."""
    return bool(lane.get("reason")) and not lane.get("gaps")


def _of_left(lane: dict[str, Any], *, has_slot: bool) -> dict[str, Any]:
    held = "the slot" if has_slot else "the change log"
    return _said(
        "bad",
        _text("The lane "),
        {"lane": lane["lane"]},
        _text(f" is not in the pipeline file and holds {held} until it is dropped."),
    )


def _of_paused_lane(lane: dict[str, Any]) -> dict[str, Any]:
    reason = f" ({_one_line(lane['paused_reason'])})" if lane["paused_reason"] else ""
    since = _since(lane["paused_since"])
    return _said("bad", _text("The "), {"lane": lane["lane"]}, _text(" lane is paused"), *since, _end(reason))


def _of_down(lane: dict[str, Any]) -> dict[str, Any]:
    return _of_lane("bad", lane, f" lane is {lane['state']}{_why(lane)}.")


def _of_waiting(lane: dict[str, Any]) -> dict[str, Any]:
    """Its process is well; what it waits for may not be: a target that takes nothing is tried for ever."""
    return _of_lane("bad", lane, f" lane waits: {_one_line(lane['reason'])}.")


def _of_beginning(lane: dict[str, Any]) -> dict[str, Any]:
    return _of_lane("busy", lane, f" lane is {lane['state']}{_why(lane)}.")


def _of_silent(lane: dict[str, Any]) -> dict[str, Any]:
    return _said(
        "busy",
        _text("Nothing is let go yet: the "),
        {"lane": lane["lane"]},
        _text(f" lane has not said how far it is{_why(lane)}."),
    )


#: States of a lane that end by themselves. Not `reconnecting`: it failed, and may go on failing for ever.
_BEGINNING = ("starting", "waiting", "stopping")
_Cases = tuple[tuple[Callable[[dict[str, Any]], bool], Callable[[dict[str, Any]], dict[str, Any]]], ...]
_STANDING: _Cases = (
    (lambda lane: bool(lane["paused"]), _of_paused_lane),
    (_is_down, _of_down),
    (lambda lane: lane["known"] and not _is_beginning(lane) and _is_in_trouble(lane), _of_waiting),
)
#: What nobody needs to act on yet: said when nothing waits for somebody.
_PASSING: _Cases = (
    (lambda lane: not lane["known"], _of_silent),
    (_is_beginning, _of_beginning),
)


def _of_gaps(lane: dict[str, Any]) -> dict[str, Any]:
    few = "1 stream stands" if lane["gaps"] == 1 else f"{lane['gaps']:,} streams stand"
    return _said(
        "bad",
        _text("Changes are missing in the "),
        {"lane": lane["lane"]},
        _text(f" lane: {few} still until loaded again{_why(lane)}."),
    )


def _of_lane(level: Level, lane: dict[str, Any], text: str) -> dict[str, Any]:
    return _said(level, _text("The "), {"lane": lane["lane"]}, _text(text))


def _of_paused(streams: list[dict[str, Any]]) -> dict[str, Any] | None:
    paused = [stream for stream in streams if stream["paused"] is not None]
    if not paused:
        return None
    stream = min(paused, key=lambda each: str(each["paused"]["since"] or "~"))
    others = f", and for {len(paused) - 1} more" if len(paused) > 1 else ""
    reason = f" ({_one_line(stream['paused']['reason'])})" if stream["paused"]["reason"] else ""
    return _said(
        "bad",
        _text("The "),
        {"lane": "lake"},
        _text(" lane waits for "),
        {"stream": stream["stream"]},
        _text(", paused"),
        *_since(stream["paused"]["since"]),
        _end(f"{reason}{others}"),
    )


def _of_loading(streams: list[dict[str, Any]]) -> dict[str, Any] | None:
    loading = [stream for stream in streams if stream["state"] == "loading"]
    if not loading:
        return None
    others = f" and {len(loading) - 1} more" if len(loading) > 1 else ""
    return _said(
        "busy",
        _text("The "),
        {"lane": "lake"},
        _text(" lane waits for the load of "),
        {"stream": loading[0]["stream"]},
        _end(others),
    )


def _since(moment: Any) -> list[Piece]:
    return [_text(" since "), {"time": moment}] if moment else []


def _end(text: str) -> Piece:
    return _text(f"{text}.")


def _why(lane: dict[str, Any]) -> str:
    return f" ({_one_line(lane['reason'])})" if lane.get("reason") else ""


def _one_line(text: Any) -> str:
    line = next(iter(str(text).strip().splitlines()), "")
    return line.rstrip(".") if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX].rpartition(' ')[0]} …"


def _text(text: str) -> Piece:
    return {"text": text}


def _said(level: Level, *pieces: Piece) -> dict[str, Any]:
    return {"level": level, "pieces": list(pieces)}
