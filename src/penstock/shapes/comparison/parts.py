"""What the service answers a comparison: which shapes are there, and one chunk of one of them at a time.

    {"request": "definitions"}                    {"shapes": [{"handle": …, "state": …, "definition": …}, …]}
    {"request": "part", "handle": …, "chunk": 0}  {"bytes": n, "chunks": …}, then n bytes: first rows
    {"request": "part", …, "after": "0_inf",      {"bytes": n, "offset": …, "is_all": …}, then n bytes:
     "up_to": position}                           changes
    {"request": "part", …, "after": "0_inf",      the same; `is_all`: there are no others up to `until`
     "until": offset}

Items are as clients get them. `is_all`: up to that offset is everything that was committed below `up_to`. Of
a shape that is gone the answer is `{"bytes": 0, "gone": true}`.

Of a shape with subqueries (`subquery.watch`):

    {"request": "watch", "handle": …, "after":    {"watch": name}, or null: it is not possible yet
     the name of another, or null}
    {"request": "cut", "handle": …, "watch":      {"cut": {…}}, or {"no_cut": why}
     name, "point": [xmin, xmax, [xid, …], lsn]}
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.core.offset import LogOffset
from penstock.core.position import Lsn
from penstock.shapes.shape import Shape, ShapeApi, SnapshotPoint, seen_lsn


class Part(NamedTuple):
    head: dict[str, Any]
    content: bytes


_GONE = Part({"bytes": 0, "gone": True}, b"")


def definitions(api: ShapeApi) -> dict[str, Any]:
    """Of those that clients can have."""
    return {
        "shapes": [
            {"handle": shape.handle, "state": _state(shape), "definition": shape.definition.to_json()}
            for shape in api.all()
            if not shape.hidden
        ]
    }


def _state(shape: Shape) -> str:
    """A shape is `ready` when it is known what its first rows show, before the last of them is written."""
    is_written = shape.state != "ready" or shape.storage.snapshot_state == "complete"
    return shape.state if is_written else "creating"


async def watch(api: ShapeApi, request: dict[str, Any]) -> dict[str, Any]:
    shape = api.find(request["handle"])
    if shape is None or _is_gone(shape):
        return {"gone": True}
    return {"watch": await api.watch(shape, request["after"])}


async def cut(api: ShapeApi, request: dict[str, Any]) -> dict[str, Any]:
    shape = api.find(request["handle"])
    if shape is None or _is_gone(shape):
        return {"gone": True}
    xmin, xmax, running, lsn = request["point"]
    found = await api.cut(request["watch"], SnapshotPoint(xmin, xmax, tuple(running), lsn))
    return {"no_cut": found} if isinstance(found, str) else {"cut": found.to_json()}


async def part(api: ShapeApi, want: Callable[[Lsn], None], request: dict[str, Any]) -> Part:
    shape = api.find(request["handle"])
    if shape is None or shape.state == "gone":
        return _GONE
    try:
        return await _part(api, want, shape, request)
    except OSError:
        if _is_gone(shape):  # its files went while they were read
            return _GONE
        raise


async def _part(api: ShapeApi, want: Callable[[Lsn], None], shape: Shape, request: dict[str, Any]) -> Part:
    if "chunk" in request:
        content = await asyncio.to_thread(_first_rows, shape, int(request["chunk"]))
        return Part({"bytes": len(content), "chunks": shape.storage.snapshot_chunks}, content)
    start = LogOffset.parse(request["after"])
    if "until" in request:
        return await _part_until(shape, start, LogOffset.parse(request["until"]))
    up_to = Lsn(request["up_to"])
    # Before the newest offset is looked at: so it has all up to there. The commit at `seen` itself is seen.
    is_reached = seen_lsn(api, shape) >= up_to - 1
    if not is_reached:
        want(up_to)
    last = shape.last_offset
    if last <= start:
        return Part({"bytes": 0, "offset": str(start), "is_all": is_reached}, b"")
    end = min(shape.storage.get_chunk_end_log_offset(start) or last, last)
    content = await asyncio.to_thread(_changes, shape, start, end)
    if _is_gone(shape):
        return _GONE
    return Part({"bytes": len(content), "offset": str(end), "is_all": is_reached and end >= last}, content)


async def _part_until(shape: Shape, start: LogOffset, until: LogOffset) -> Part:
    """Nothing before readers may have it all, which is a commit away."""
    if start >= until or shape.last_offset < until:
        return Part({"bytes": 0, "offset": str(start), "is_all": start >= until}, b"")
    end = min(shape.storage.get_chunk_end_log_offset(start) or until, until)
    content = await asyncio.to_thread(_changes, shape, start, end)
    if _is_gone(shape):
        return _GONE
    return Part({"bytes": len(content), "offset": str(end), "is_all": end >= until}, content)


def _first_rows(shape: Shape, number: int) -> bytes:
    chunk = shape.storage.snapshot_chunk(number)
    return b"" if chunk is None else b"".join(chunk.blocks())


def _changes(shape: Shape, start: LogOffset, end: LogOffset) -> bytes:
    return b"".join(shape.storage.get_log_stream(start, end))


def _is_gone(shape: Shape) -> bool:
    return shape.state == "gone"
