"""An HTTP/1.1 server for a `Door`, on httptools' parser: a `Connection` for each client.

Why not a general server: a live answer goes to thousands of clients at the same moment, and its bytes are the
same for all of them. Here that is one `write` of ready bytes for each; a server that formats each answer anew
takes five times as long as the writes themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource

from penstock.core.errors import AddressError
from penstock.shapes.http.connection import Connection
from penstock.shapes.http.door import Door

SWEEP_S = 1.0
BACKLOG = 4096
FILES_RESERVED = 2048  # of the shapes, connections to the source, answers that are read from files


class Served:
    """A server that listens."""

    def __init__(self, server: asyncio.Server, door: Door, connections: set[Connection]) -> None:
        self._server = server
        self._door = door
        self.connections = connections
        self.port: int = server.sockets[0].getsockname()[1]
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        """End the connections whose clients let us wait."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = loop.time()
            for connection in [each for each in self.connections if each.is_late(now)]:
                connection.abort()

    async def shut_door(self, grace_s: float = 2.0) -> None:
        """There are no shapes any more: answer who is here, end the rest after `grace_s`, and listen on."""
        present = list(self.connections)
        for connection in present:
            connection.shut_down()
        self._door.shut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while not self.connections.isdisjoint(present):
                    await asyncio.sleep(0.01)
        for connection in self.connections.intersection(present):
            connection.abort()

    async def close(self, grace_s: float = 2.0) -> None:
        """Take no more requests, answer those that wait, and end the rest after `grace_s`."""
        self._server.close()
        self._sweeping.cancel()
        await self.shut_door(grace_s)
        await self._server.wait_closed()


async def serve(door: Door, host: str, port: int) -> Served:
    """Listen in the running loop; port 0 takes a free one. An `AddressError` if nobody can listen there."""
    connections: set[Connection] = set()
    door.connections_max = min(door.connections_max, connections_possible())
    try:
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(door, connections), host, port, backlog=BACKLOG, reuse_address=True
        )
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else "no such address"
        raise AddressError(
            f"Shapes cannot be served at port {port} of {host}: {reason}.",
            remedy="End what listens there, or name another port: --port, ELECTRIC_PORT or "
            "`lanes.shapes.port` (the address: `host`).",
        ) from error
    return Served(server, door, connections)


def connections_possible() -> int:
    """As many as this process may have open, less what it needs itself. It asks for all it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems have a limit of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return soft - min(FILES_RESERVED, soft // 2)
