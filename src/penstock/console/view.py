"""All that the page shows of now, as one document: the instance's own words, the state file's, and people's
orders.

A function of what was read; nothing is asked here, and nothing is in it that is a value of a row or a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.config import Config
from penstock.console.holding import what_holds
from penstock.console.rates import Rates
from penstock.core.stream import StreamId
from penstock.ledger.standing import committed_to, state_of
from penstock.ledger.state import StateDocument, StreamState
from penstock.streams.orders import Orders

_STREAM_LANES = {"kafka": "Kafka", "kinesis": "Kinesis", "file": "files"}


@dataclass(frozen=True, slots=True)
class Found:
    """What was read at a moment. `chunks`: how many there are in all, of loads under way. `tables` and
    `letters`: what was said last of streams and lanes (`remembered`)."""

    at: str
    status: dict[str, Any] | None
    document: StateDocument
    chunks: dict[StreamId, int]
    lane_orders: dict[str, Orders]
    orders_waiting: list[tuple[str, str]] = field(default_factory=list)
    problem: str = ""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    letters: dict[str, int] = field(default_factory=dict)


def view_of(config: Config, found: Found, rates: Rates) -> dict[str, Any]:
    status = found.status
    streams = _streams(config, found, rates)
    lanes = _lanes(found, rates)
    every = [*streams, *lanes]
    fresh = _freshness(streams, lanes)
    return {
        "at": found.at,
        "is_stale": False,
        "problem": found.problem,
        "instance": None if status is None else _instance(status),
        "source": _source(config, status),
        "capture": _capture(status, rates),
        "holds": what_holds(status, streams, lanes, has_slot=config.source.type == "postgres"),
        "destination": _destination(config),
        "processes": [] if status is None else status["processes"],
        "lanes": lanes,
        "streams": streams,
        "position": str(found.document.level) if found.document.level is not None else None,
        "totals": {
            "streams": len(streams),
            "states": _counted(streams),
            "rows": _sum_of_known([each["rows"] for each in streams]),
            "dead_letters": sum(each["dead_letters"] for each in every) if _knows_letters(found) else None,
            "known_at": min((each["known_at"] for each in streams if each["known_at"]), default=None),
            "differences": sum(each["differences"] for each in streams),
            "applied_rate": rates.total("applied"),
            "freshness_p50": _percentile(fresh, 0.5),
            "freshness_p99": _percentile(fresh, 0.99),
        },
    }


def _instance(status: dict[str, Any]) -> dict[str, Any]:
    fields = {name: status[name] for name in ("host", "pid", "since", "role", "live")}
    return fields | {"ready": status["health"]["ready"], "reasons": status["health"]["reasons"]}


def _source(config: Config, status: dict[str, Any] | None) -> dict[str, Any]:
    source = config.source
    slot = getattr(source, "slot", None) or getattr(source, "name", "")
    said = {} if status is None else status["source"]
    return {"type": source.type, "slot": slot, **said}


def _capture(status: dict[str, Any] | None, rates: Rates) -> dict[str, Any]:
    said = {} if status is None else status.get("capture", {})
    measured = {f"{name}_rate": rates.of("capture", name) for name in ("rows", "bytes", "transactions")}
    return {**said, **measured}


def _destination(config: Config) -> dict[str, Any]:
    kind = config.destination.type
    return {"type": kind, "name": "Parquet tables" if kind == "parquet" else "Iceberg tables"}


def _lanes(found: Found, rates: Rates) -> list[dict[str, Any]]:
    if found.status is None:
        return []
    processes = {each["name"]: each for each in found.status["processes"]}
    said = {each["lane"]: each for each in found.status["lanes"]}
    waiting = [name for name in processes if name not in ("capture", "console") and name not in said]
    silent: dict[str, Any] = {
        "known": False,
        "lag_bytes": None,
        "lag_seconds": None,
        "freshness_s": None,
        "events": None,
    }
    silent |= {
        "paused": False,
        "loading": 0,
        "gaps": 0,
        "configured": True,
        "dead_letters": 0,
        "retries": None,
    }
    every = [*said.values(), *({"lane": name, **silent} for name in waiting)]
    return [_lane(each, processes.get(each["lane"]), found, rates) for each in every]


def _lane(lane: dict[str, Any], process: dict[str, Any] | None, found: Found, rates: Rates) -> dict[str, Any]:
    name = lane["lane"]
    orders = found.lane_orders.get(name)
    kind = "lake" if name == "lake" else "shapes" if name == "shapes" else "stream"
    rate = rates.total("applied") if kind == "lake" else rates.of("events", name)
    told = orders is not None and orders.is_paused
    is_running = process is not None and process["state"] == "running"
    return {
        **lane,
        "dead_letters": lane.get("dead_letters", 0) or (0 if is_running else found.letters.get(name, 0)),
        "retries": lane.get("retries"),
        "kind": kind,
        "target": _STREAM_LANES.get(name, name) if kind == "stream" else None,
        "paused": bool(lane["paused"]) or told,
        "paused_since": orders.paused_since if orders is not None else None,
        "paused_reason": orders.reason if orders is not None else "",
        "rewind_to": orders.rewind_to if orders is not None else None,
        "resync": list(orders.resync) if orders is not None and orders.resync is not None else None,
        "rate": rate,
        "state": None if process is None else process["state"],
        "reason": "" if process is None else process["reason"],
        "since": None if process is None else process["since"],
        "restarts": None if process is None else process["restarts"],
        "memory_bytes": None if process is None else process["memory_bytes"],
    }


def _streams(config: Config, found: Found, rates: Rates) -> list[dict[str, Any]]:
    said = {} if found.status is None else {each["stream"]: each for each in found.status["streams"]}
    named = {str(each.id): each for each in config.streams if not each.id.is_pattern}
    states = {str(each.stream): each for each in found.document.stream_states}
    ordered: dict[str, list[str]] = {}
    for stream, action in found.orders_waiting:
        ordered.setdefault(stream, []).append(action)
    names = sorted({*said, *named, *states})
    return [_stream(name, said.get(name), states.get(name), config, found, rates, ordered) for name in names]


def _stream(
    name: str,
    said: dict[str, Any] | None,
    entry: StreamState | None,
    config: Config,
    found: Found,
    rates: Rates,
    ordered: dict[str, list[str]],
) -> dict[str, Any]:
    stream = StreamId.parse(name)
    configured = next((each for each in reversed(config.streams) if each.id.matches(stream)), None)
    said = said or {}
    last = {} if said.get("rows") is not None else found.tables.get(name, {})
    return {
        "stream": name,
        "mode": entry.sync_mode if entry is not None else configured.mode if configured else "cdc",
        "write": configured.write if configured else "",
        "configured": configured is not None,
        "state": state_of(found.document, stream),
        "committed_to": committed_to(found.document, stream),
        "rows": last.get("rows", said.get("rows")),
        "files": last.get("files", said.get("files")),
        "known_at": last.get("known_at"),
        "freshness_s": said.get("freshness_s"),
        "lag_s": said.get("lag_s"),
        "rows_applied": said.get("rows_applied", 0),
        "rate": rates.of("applied", name),
        "dead_letters": said.get("dead_letters") or last.get("dead_letters", 0),
        "differences": said.get("differences") or last.get("differences", 0),
        "paused": None
        if entry is None or entry.paused is None
        else {"since": entry.paused.since, "reason": entry.paused.reason},
        "reload": None if entry is None or entry.reload is None else entry.reload.reason,
        "rewind": None if entry is None or entry.rewind is None else str(entry.rewind.to),
        "load": _load(name, said, entry, found, rates),
        "ordered": ordered.get(name, []),
    }


def _load(
    name: str, said: dict[str, Any], entry: StreamState | None, found: Found, rates: Rates
) -> dict[str, Any] | None:
    """How far the load under way is, and when it may be done; None if there is none."""
    left = len(entry.chunks or ()) if entry is not None else 0
    read, estimated = said.get("load_rows"), said.get("load_rows_estimated")
    if not left and read is None:
        return None
    total = found.chunks.get(StreamId.parse(name))
    rate = rates.of("loaded", name)
    part = None
    if read is not None and estimated:
        part = min(read / estimated, 0.99)
    elif total:
        part = 1 - left / total
    eta_s = None
    if rate and read is not None and estimated and estimated > read:
        eta_s = (estimated - read) / rate
    return {
        "chunks_left": left,
        "chunks": total,
        "rows": read,
        "rows_estimated": estimated,
        "rate": rate,
        "part": part,
        "eta_s": eta_s,
    }


def _sum_of_known(numbers: list[int | None]) -> int | None:
    """None: nobody has said any of them."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _knows_letters(found: Found) -> bool:
    """Whether somebody says how many there are, or has said it."""
    if found.status is None:
        return False
    runs = any(each["name"] == "lake" and each["state"] == "running" for each in found.status["processes"])
    return runs or bool(found.status["streams"]) or bool(found.tables)


def _counted(streams: list[dict[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for stream in streams:
        counts[stream["state"]] = counts.get(stream["state"], 0) + 1
    return counts


def _freshness(streams: list[dict[str, Any]], lanes: list[dict[str, Any]]) -> list[float]:
    """Of each table: that of its newest round, or how long a change waits by now, if that is longer. What a
    lane that does not run said last is old; then how far it is behind counts for all its tables.
    """
    lake = next((lane for lane in lanes if lane["kind"] == "lake"), None)
    behind = lake["lag_seconds"] if lake is not None and lake["state"] != "running" else None
    found = ((each["freshness_s"], each["lag_s"], behind) for each in streams)
    known = ([value for value in values if value is not None] for values in found)
    return sorted(max(values) for values in known if values)


def _percentile(found: list[float], part: float) -> float | None:
    return found[min(len(found) - 1, int(part * len(found)))] if found else None
