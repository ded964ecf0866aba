"""`penstock shapes list` and `drop`: a line of JSON each way over a socket that only this user can open.

Not on the HTTP port: whoever can reach that is a client, or a proxy that clients are behind, and the address
a request comes from says nothing about who sends it.

    {"request": "list"}                     {"shapes": [{"handle": …, "table": …, …}, …]}
    {"request": "drop", "handle": …}        {"dropped": [handle, …]}
    {"request": "drop", "table": "s.t"}     likewise; inner shapes of subqueries go with their outer ones;
                                            without a schema, `public` is meant

What `penstock verify` asks is in `comparison.parts`; an answer to that may have bytes behind its line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from penstock.core.errors import CaptureAwayError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.shapes.comparison.parts import Part, cut, definitions, part, watch
from penstock.shapes.shape import Shape, ShapeApi

_REQUEST_BYTES_MAX = 64 << 10
_ANSWER_BYTES_MAX = 256 << 20
_REQUEST_S = 10.0
_ANSWER_S = 60.0
_logger = structlog.get_logger("penstock.shapes")


async def serve_admin(
    path: Path, api: ShapeApi, want: Callable[[Lsn], None] = lambda _position: None
) -> asyncio.Server:
    """Answer there until the server is closed. Called in the loop's thread. `want` has all shapes come to a
    position soon, also if nothing happens at the source; it returns at once."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), _REQUEST_S)
            head, content = await _carry_out(api, want, json.loads(line))
            writer.write(json.dumps(head).encode() + b"\n" + content)
            await asyncio.wait_for(writer.drain(), _ANSWER_S)
        except (OSError, ValueError, KeyError, TimeoutError):
            pass  # whoever asked has gone, or asks for nothing that there is
        except Exception as error:
            _logger.error("request not answered", kind=type(error).__name__)
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    path.unlink(missing_ok=True)  # of a process that was killed
    server = await asyncio.start_unix_server(answer, path, limit=_REQUEST_BYTES_MAX)
    os.chmod(path, 0o600)  # noqa: PTH101 - the directory is this user's alone already
    return server


async def _carry_out(api: ShapeApi, want: Callable[[Lsn], None], request: dict[str, Any]) -> Part:
    if request.get("request") == "list":
        return Part({"shapes": [described(shape) for shape in api.all()]}, b"")
    if request.get("request") == "definitions":
        return Part(definitions(api), b"")
    if request.get("request") == "part":
        return await part(api, want, request)
    if request.get("request") == "watch":
        return Part(await watch(api, request), b"")
    if request.get("request") == "cut":
        return Part(await cut(api, request), b"")
    if request.get("request") == "drop":
        handle, table = request.get("handle"), request.get("table")
        chosen = [
            shape
            for shape in api.all()
            if not shape.hidden and (shape.handle == handle or is_named(shape.definition.table, table))
        ]
        for shape in chosen:
            await api.drop(shape, "dropped")
        return Part({"dropped": [shape.handle for shape in chosen]}, b"")
    raise ValueError("unknown request")


def is_named(table: StreamId, name: str | None) -> bool:
    """Whether that is how people name it."""
    return name == str(table) or (table.namespace == "public" and name == table.name)


def described(shape: Shape) -> dict[str, Any]:
    """A shape for people. Its condition is what clients sent, and shown to whoever runs the service."""
    definition, where = shape.definition, shape.definition.where
    return {
        "handle": shape.handle,
        "table": str(definition.table),
        "where": None if where is None else where.text,
        "columns": list(definition.columns),
        "replica": definition.replica,
        "log": definition.log,
        "state": shape.state,
        "hidden": shape.hidden,
        "offset": str(shape.last_offset),
        "waiting": shape.waiting,
        "bytes_on_disk": shape.storage.bytes_on_disk,
        "last_read": shape.last_read,
    }


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """From another process of this user. `CaptureAwayError` if nobody answers there."""
    return ask_part(path, request)[0]


def ask_part(path: Path, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The same, with the bytes that the answer says come behind it."""
    with _asked(path, request) as answers:
        head: dict[str, Any] = json.loads(answers.readline(_ANSWER_BYTES_MAX))
        size = head.get("bytes", 0)
        content = answers.read(size)
        if len(content) < size:
            raise ValueError("the answer is not whole")
        return head, content


@contextlib.contextmanager
def _asked(path: Path, request: dict[str, Any]) -> Iterator[BinaryIO]:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as answers:
                yield answers
    except (OSError, ValueError) as error:
        raise CaptureAwayError(
            "The live lane does not answer.", remedy="See the log of the instance that serves shapes."
        ) from error
