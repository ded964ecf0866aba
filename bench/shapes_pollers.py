"""Many HTTP clients in one process that ask the same and wait: `python -m bench.shapes_pollers PORT COUNT`.

Each line on stdin is a path. Every connection asks for it; `waiting` is printed when all have. When all have
their answers a JSON line says when each was whole (seconds of the machine's monotonic clock) and what one of
them was, byte by byte. Answers are not parsed beyond finding their end: what is measured is the server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from typing import cast

import uvloop

from bench.shapes_service import HOST

_LAST_CHUNK = b"0\r\n\r\n"


class Poller(asyncio.Protocol):
    def __init__(self) -> None:
        self._answered: asyncio.Future[float] | None = None
        self._transport: asyncio.Transport | None = None
        self.answer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def ask(self, request: bytes) -> asyncio.Future[float]:
        assert self._transport is not None
        self.answer.clear()
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answered

    def data_received(self, data: bytes) -> None:
        self.answer += data
        if self._answered is not None and self._is_whole() and not self._answered.done():
            self._answered.set_result(time.monotonic())

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or ConnectionError("closed by the server"))

    def _is_whole(self) -> bool:
        end = self.answer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self.answer[:end]).lower()
        at = head.find(b"content-length:")
        if at < 0:
            return self.answer.endswith(_LAST_CHUNK)
        return len(self.answer) >= end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])


async def poll(port: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    pollers = [(await loop.create_connection(Poller, HOST, port))[1] for _ in range(count)]
    while path := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
        answers = [poller.ask(request) for poller in pollers]
        print("waiting", flush=True)
        times = await asyncio.gather(*answers)
        first = base64.b64encode(pollers[0].answer).decode()
        print(json.dumps({"times": times, "answer": first}), flush=True)


if __name__ == "__main__":
    uvloop.run(poll(int(sys.argv[1]), int(sys.argv[2])))
