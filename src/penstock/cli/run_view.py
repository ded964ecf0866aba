"""A running instance on a screen, from what its `/status` says: for `penstock status` and `penstock run`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from penstock.cli.tables import age, count, plural, size, table, text

#: A screen has so many lines, a pipeline may have a thousand streams: the latest are shown.
STREAMS_SHOWN = 20
_ROLE_STYLES = {"leading": "bold green", "standby": "bold cyan"}
_ALARMING = "yellow"


def run_view(status: dict[str, Any], streams_max: int = STREAMS_SHOWN) -> RenderableType:
    """`status`: the document of `/status`. Streams that are furthest behind come first."""
    parts: list[RenderableType] = [_headline(status)]
    parts += [Text(f"! {reason}", style=_ALARMING) for reason in status["health"]["reasons"]]
    parts.append(_processes(status["processes"]))
    if status["lanes"]:
        parts.append(_lanes(status["lanes"]))
    if status["streams"]:
        parts += _streams(status["streams"], streams_max)
    facts = _source(status["source"]) | _capture(status.get("capture") or {})
    parts += [Text(f"{name}: {value}") for name, value in facts.items()]
    return Group(*parts)


def _headline(status: dict[str, Any]) -> Text:
    role = str(status["role"])
    where = f"  {status['host']}, process {status['pid']}, for {_since(status['since'])}"
    return Text.assemble((role, _ROLE_STYLES.get(role, f"bold {_ALARMING}")), (where, "dim"))


def _processes(processes: Sequence[dict[str, Any]]) -> RenderableType:
    rows = [
        (
            each["name"],
            each["state"],
            _since(each["since"]),
            str(each["pid"] or "–"),
            count(each["restarts"]),
            size(each["memory_bytes"]),
            each["reason"],
        )
        for each in processes
    ]
    columns = ("process", "state", "for", "pid", "restarts", "memory", "")
    return table(columns, rows, right=("for", "pid", "restarts", "memory"))


def _lanes(lanes: Iterable[dict[str, Any]]) -> RenderableType:
    rows = [
        (
            each["lane"],
            size(each["lag_bytes"]),
            _seconds(each["lag_seconds"]),
            _seconds(each.get("freshness_s")),
            count(each.get("events")),
            _seconds(each.get("commit_s")),
            _lane_note(each),
        )
        for each in lanes
    ]
    columns = ("lane", "behind", "behind for", "freshness", "events", "a commit", "")
    return table(columns, rows, right=columns[1:-1])


def _lane_note(lane: dict[str, Any]) -> str:
    notes = [] if lane["known"] else ["has not said how far it is; the source forgets nothing until then"]
    if lane.get("paused"):
        notes.append("paused")
    if lane.get("loading"):
        notes.append(f"loads {plural(lane['loading'], 'stream')}")
    if lane.get("gaps"):
        notes.append(f"{plural(lane['gaps'], 'stream')} with missing changes")
    if lane.get("retries"):
        notes.append(f"tried again {plural(lane['retries'], 'time')}")
    if lane.get("dead_letters"):
        notes.append(plural(lane["dead_letters"], "dead letter"))
    if not lane.get("configured", True):
        notes.append(f"not in the pipeline file: `penstock lane drop {lane['lane']} --yes` gives it up")
    return "; ".join(notes)


def _streams(streams: Sequence[dict[str, Any]], streams_max: int) -> list[RenderableType]:
    latest = sorted(streams, key=lambda each: (-(each["lag_s"] or 0.0), each["stream"]))
    rows = [
        (
            each["stream"],
            _seconds(each["freshness_s"]),
            size(each.get("lag_bytes")),
            _seconds(each["lag_s"]),
            count(each["rows_applied"]),
            count(each["dead_letters"]),
        )
        for each in latest[:streams_max]
    ]
    columns = ("stream", "freshness", "behind", "behind for", "rows applied", "dead letters")
    shown: list[RenderableType] = [table(columns, rows, right=columns[1:])]
    if len(streams) > streams_max:
        shown.append(Text(f"and {plural(len(streams) - streams_max, 'stream')} less far behind", style="dim"))
    return shown


def _source(source: dict[str, Any]) -> dict[str, str]:
    slot = {None: "–", True: "the source keeps all it needs", False: "lost, or lacks log that it needs"}
    pressure = "; acknowledged by the change log alone" if source["wal_pressure"] else ""
    limit = source["safe_wal_bytes"]
    kept = size(source["retained_wal_bytes"]) + (
        f", {size(limit)} until its limit" if limit is not None else ""
    )
    lag_s = source.get("capture_lag_s")
    failures = source.get("checkpoint_failures")
    unsaved = f"; {plural(failures, 'checkpoint')} could not be saved" if failures else ""
    return {
        "slot": slot[source["slot_healthy"]] + pressure,
        "kept by the source for us": kept,
        "not yet received": size(source["capture_lag_bytes"]) if lag_s is None else _seconds(lag_s),
        "acknowledged": text(source["acknowledged"]),
        "ahead of the last checkpoint for": _seconds(source["checkpoint_age_s"]) + unsaved,
        "term": text(source["epoch"]),
    }


def _capture(capture: dict[str, Any]) -> dict[str, str]:
    """Nothing while capture has said nothing, as on an instance that stands by."""
    if capture.get("rows") is None:
        return {}
    rows, transactions, steps, times = (
        plural(capture.get(name) or 0, noun)
        for name, noun in (
            ("rows", "row"),
            ("transactions", "transaction"),
            ("steps_sealed", "step"),
            ("reconnects", "time"),
        )
    )
    sealed_in = _seconds(capture.get("seal_s"))
    lost = f"; the connection was lost {times}" if capture.get("reconnects") else ""
    return {
        "read from the source": f"{rows} in {transactions}, {size(capture.get('bytes'))}{lost}",
        "change log": f"{size(capture.get('log_bytes'))}; {steps} sealed, {sealed_in} each",
        "not yet sealed": size(capture.get("unsealed_bytes")),
        "transactions in progress on disk": size(capture.get("spilled_bytes")),
        "newest changes in memory": size(capture.get("tail_bytes")),
    }


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if 0 < value < 0.1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 60 else age(value)


def _since(moment: str) -> str:
    try:
        begun = datetime.fromisoformat(moment)
    except ValueError:
        return "–"
    return age(max(0.0, (datetime.now(UTC) - begun).total_seconds()))
