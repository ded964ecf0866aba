"""The least a server can do for clients that wait: `python -m bench.bare_push`, the measure of fan-out.

It reads an answer (base64) from stdin and prints its port. Whoever sends a request waits; a connection that
sends `push` has the answer written to all who wait.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import cast

import uvloop

from bench.shapes_service import HOST

PUSH = b"push"


class Waiting(asyncio.Protocol):
    answer = b""
    transports: list[asyncio.Transport] = []  # noqa: RUF012 - those of all connections that wait

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        if data != PUSH:
            self.transports.append(self._transport)
            return
        for transport in self.transports:
            transport.write(self.answer)
        self.transports.clear()


async def serve() -> None:
    loop = asyncio.get_running_loop()
    Waiting.answer = base64.b64decode(await loop.run_in_executor(None, sys.stdin.readline))
    server = await loop.create_server(Waiting, HOST, 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)  # until whoever started it goes


if __name__ == "__main__":
    uvloop.run(serve())
