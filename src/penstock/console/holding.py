"""What keeps the source from forgetting its log, in words: a function of values.

The source may forget what every lane holds, so the slot stands where the slowest lane does; and a lane
stands where its slowest stream does. Said as pieces of a sentence, so that the page can show times and
names as such."""

from __future__ import annotations

from typing import Any, Literal

Level = Literal["good", "busy", "bad"]
#: A lane that is no further behind than that is at work and holds nothing in a way worth a word.
NEAR_BYTES = 64 << 20
NEAR_S = 60.0

Piece = dict[str, Any]


def what_holds(
    status: dict[str, Any] | None, streams: list[dict[str, Any]], lanes: list[dict[str, Any]]
) -> dict[str, Any]:
    """`pieces` with `text`, `stream`, `lane` or `time` each, and how bad it is."""
    if status is None:
        return _said("bad", _text("No instance runs: the source keeps its log until one does."))
    capture = next((each for each in status["processes"] if each["name"] == "capture"), None)
    if status["role"] == "standby":
        return _said("good", _text("This instance stands by; another one leads and acknowledges."))
    if status["role"] != "leading":
        why = (capture or {}).get("reason") or (capture or {}).get("state") or "it is not there"
        return _said(
            "bad", _text(f"Capture does not read ({_one_line(why)}): the source keeps all that is new.")
        )
    if status["source"]["slot_healthy"] is False:
        return _said(
            "bad", _text("The server no longer keeps all that the slot needs: tables must be loaded again.")
        )
    return _of_lanes(streams, lanes)


def _of_lanes(streams: list[dict[str, Any]], lanes: list[dict[str, Any]]) -> dict[str, Any]:
    silent = [lane for lane in lanes if not lane["known"]]
    if silent:
        lane = silent[0]
        return _said(
            "busy",
            _text("The source forgets nothing yet: the "),
            {"lane": lane["lane"]},
            _text(f" lane has not said how far it is{_why(lane)}."),
        )
    behind = [lane for lane in lanes if lane["lag_bytes"] is not None]
    if not behind:
        return _said("busy", _text("Nothing is known of the lanes yet."))
    lane = max(behind, key=lambda each: each["lag_bytes"])
    if not lane["configured"]:
        return _said(
            "bad",
            _text("The lane "),
            {"lane": lane["lane"]},
            _text(" is not in the pipeline file and holds the slot until it is dropped."),
        )
    if lane["paused"]:
        since = [{"time": lane["paused_since"]}] if lane["paused_since"] else []
        reason = f" ({lane['paused_reason']})" if lane["paused_reason"] else ""
        return _said(
            "bad",
            _text("The "),
            {"lane": lane["lane"]},
            _text(" lane is paused since "),
            *since,
            _text(f"{reason}."),
        )
    if lane["lane"] == "lake" and (said := _of_streams(streams)) is not None:
        return said
    state = lane.get("state") or ""
    if state not in ("running", ""):
        return _said("bad", _text("The "), {"lane": lane["lane"]}, _text(f" lane is {state}{_why(lane)}."))
    if lane["lag_bytes"] > NEAR_BYTES or (lane["lag_seconds"] or 0) > NEAR_S:
        return _said(
            "busy",
            _text("The "),
            {"lane": lane["lane"]},
            _text(" lane is the furthest behind, and catches up."),
        )
    return _said("good", _text("Nothing holds the slot back: every lane is up to date."))


def _of_streams(streams: list[dict[str, Any]]) -> dict[str, Any] | None:
    paused = [stream for stream in streams if stream["paused"] is not None]
    if paused:
        stream = min(paused, key=lambda each: str(each["paused"]["since"]))
        others = f", and for {len(paused) - 1} more" if len(paused) > 1 else ""
        reason = f" ({_one_line(stream['paused']['reason'])})" if stream["paused"]["reason"] else ""
        return _said(
            "bad",
            _text("The "),
            {"lane": "lake"},
            _text(" lane waits for "),
            {"stream": stream["stream"]},
            _text(", paused since "),
            {"time": stream["paused"]["since"]},
            _text(f"{reason}{others}."),
        )
    loading = [stream for stream in streams if stream["state"] == "loading"]
    if loading:
        others = f" and {len(loading) - 1} more" if len(loading) > 1 else ""
        return _said(
            "busy",
            _text("The "),
            {"lane": "lake"},
            _text(" lane waits for the load of "),
            {"stream": loading[0]["stream"]},
            _text(f"{others}."),
        )
    return None


def _why(lane: dict[str, Any]) -> str:
    return f" ({_one_line(lane['reason'])})" if lane.get("reason") else ""


def _one_line(text: Any) -> str:
    return str(text).splitlines()[0][:200].rstrip(".") if str(text).strip() else ""


def _text(text: str) -> Piece:
    return {"text": text}


def _said(level: Level, *pieces: Piece) -> dict[str, Any]:
    return {"level": level, "pieces": list(pieces)}
