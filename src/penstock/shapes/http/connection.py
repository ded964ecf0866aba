"""One client's connection: requests are answered one after the other as they come, and written.

What a request may be, `request_parser` bounds. Here: a request is complete within `REQUEST_S` of its first
byte, an idle connection closed after `IDLE_S`. A client that sends further requests before it has its answer
is read no further than `PIPELINED_MAX` of them, or `PIPELINED_BYTES_MAX` and the request that goes beyond.
One that does not read is sent no more than `WRITE_HIGH_BYTES` and a piece beyond what its socket takes; it is
sent away after the door's `send_timeout_s`. Beyond the door's `connections_max` a connection is told so and
closed.

So besides a body, a client pins less than 2 MiB: the request that is answered (512 KiB), those that wait
(256 + 512 KiB and the rest of one read, 256 KB), and what is on its way to it.

A client that has sent its last byte still gets its answers, unless it waits for news: that one has gone.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Coroutine
from typing import Any, cast

from penstock.shapes.http.door import Door
from penstock.shapes.http.longpoll import Poll
from penstock.shapes.http.message import PIECE_BYTES_MAX, Answer, HttpRequest, Stream
from penstock.shapes.http.request_parser import RefusedError, RequestParser

PIPELINED_MAX = 8
PIPELINED_BYTES_MAX = 256 * 1024
REQUEST_S = 30.0
IDLE_S = 75.0
WRITE_HIGH_BYTES = 64 * 1024
COPIED_BYTES_MAX = 16 * 1024  # larger bodies are shared between the clients that get them
_CLOSE = b"connection: close\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(asyncio.Protocol):
    """One client's connection. One request at a time is answered, in the order they came."""

    def __init__(self, door: Door, all_connections: set[Connection]) -> None:
        self._door = door
        self._all = all_connections
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser(door, self)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._requests: deque[_Pending] = deque()
        self._current: _Pending | None = None
        self._poll: Poll | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None  # there while the client does not take more
        self._reading_paused = False
        self._has_ended = False  # the client sends no more
        self._closing = False
        self._deadline = math.inf  # looked at by `Served`, for all connections together

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._all) >= self._door.connections_max:
            self._answer_and_close(self._door.too_many_connections())
            return
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._all.add(self)
        self._expect_within(REQUEST_S)

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._all.discard(self)
        self._forget_bodies()
        self._current = None
        self._requests.clear()
        if self._poll is not None:
            self._door.cancel(self._poll)
            self._poll = None
        if self._task is not None:
            # With the task, we would keep what it was cancelled in, and that keeps us: frames, files, pieces.
            task, self._task = self._task, None
            task.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        if self._current is None and self._requests:
            self._next()

    def eof_received(self) -> bool:
        """Whether there is something to be sent yet."""
        if self._current is None or self._poll is not None or b"live" in self._current.request.query:
            return False
        self._has_ended = True
        return True

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            if not self._parser.feed(data):
                self._last_request()  # what follows is not ours to speak
        except RefusedError as refusal:
            self._refuse(refusal.status, refusal.message)

    # The parser's calls: `RequestListener`.

    @property
    def queued(self) -> int:
        return len(self._requests)

    def request_begun(self) -> None:
        if self._current is None:
            self._expect_within(REQUEST_S)

    def body_awaited(self) -> None:
        if self._current is None:
            self._transport.write(_CONTINUE)

    def body_endless(self) -> None:
        self.abort()

    def request_received(self, request: HttpRequest, *, keeps_alive: bool, is_old: bool) -> None:
        self._requests.append(_Pending(request, _lines(self._door, request), keeps_alive, is_old))
        if self._current is None:
            self._next()
        if self._has_enough() and not self._reading_paused and not self._closing:
            self._reading_paused = True
            self._transport.pause_reading()

    def _has_enough(self) -> bool:
        """Of requests that wait for their turn."""
        queued = sum(each.size for each in self._requests)
        return len(self._requests) >= PIPELINED_MAX or queued > PIPELINED_BYTES_MAX

    def _forget_bodies(self) -> None:
        """Of a connection that has ended: it is collected later, for its parser knows it."""
        self._parser.forget_body()
        for each in (self._current, *self._requests):
            if each is not None and each.request.body is not None:
                each.request.body.drop()

    # Requests.

    def _next(self) -> None:
        """Begin with the next request, if there is one."""
        self._current = None
        # A client that sends on without reading is not answered until it reads.
        while self._requests and self._current is None and self._writable is None and not self._closing:
            self._current = self._requests.popleft()
            self._deadline = math.inf
            reply = self._door.reply(self._current.request, self._delivered)
            if isinstance(reply, Answer):
                self._write(reply)
            elif isinstance(reply, Poll):
                self._poll = reply
            else:
                self._task = self._loop.create_task(self._run(reply))
        if self._reading_paused and not self._has_enough() and not self._closing:
            self._reading_paused = False
            self._transport.resume_reading()
        if self._current is None and not self._closing:
            if self._has_ended and not self._requests:
                self._last_request()
            else:
                self._expect_more()

    def _delivered(self, answer: Answer) -> None:
        """The answer of a poll: what many clients get at the same moment."""
        self._poll = None
        if isinstance(answer.body, Stream):
            self._task = self._loop.create_task(self._send(answer, answer.body))
        elif not self._closing:
            self._write(answer)
            if self._requests or self._reading_paused or self._has_ended:
                self._next()
            else:
                self._expect_more()

    async def _run(self, reply: Coroutine[Any, Any, Answer]) -> None:
        answer = await reply
        if isinstance(answer.body, Stream):
            await self._send(answer, answer.body)
        elif not self._closing:
            self._task = None
            self._write(answer)
            self._next()

    # Answers.

    def _write(self, answer: Answer) -> None:
        """An answer that is whole. The request it is for is done with."""
        current, self._current = self._current, None
        assert current is not None
        assert isinstance(answer.body, bytes)
        ending = b"\r\n" if current.keeps_alive else _CLOSE + b"\r\n"
        body = b"" if current.is_head or not answer.has_body else answer.body
        if len(body) > COPIED_BYTES_MAX:
            self._transport.writelines((answer.head + current.own_lines + ending, body))
        else:
            self._transport.write(b"".join((answer.head, current.own_lines, ending, body)))
        if not current.keeps_alive:
            self._last_request()

    async def _send(self, answer: Answer, body: Stream) -> None:
        """An answer piece by piece, each when the client has taken the one before."""
        current = self._current  # none if the client has gone
        keeps_alive = current is not None and current.keeps_alive and not current.is_old
        try:
            if current is None or self._closing:
                return
            head = answer.head + current.own_lines
            head += b"" if current.is_old else _CHUNKED
            self._transport.write(head + (b"\r\n" if keeps_alive else _CLOSE + b"\r\n"))
            if not current.is_head:
                async for piece in body.pieces:
                    await self._send_piece(piece, chunked=not current.is_old)
                if not current.is_old:
                    self._transport.write(b"0\r\n\r\n")
        except (Exception, asyncio.CancelledError) as error:
            # The client must not take half an answer for a whole one.
            self.abort()
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        finally:
            await body.close()
        self._task = self._current = None
        if keeps_alive:
            self._next()
        else:
            self._last_request()

    async def _send_piece(self, piece: bytes, *, chunked: bool) -> None:
        for start in range(0, len(piece), PIECE_BYTES_MAX):
            part = piece[start : start + PIECE_BYTES_MAX]
            self._transport.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            if self._writable is not None:
                async with asyncio.timeout(self._door.send_timeout_s):
                    await self._writable
            if self._closing:
                raise ConnectionResetError

    # Ends.

    def shut_down(self) -> None:
        """Close when the present answer is sent, at once if there is none."""
        if self._current is None:
            self._last_request()
        else:
            self._current.keeps_alive = False

    def _last_request(self) -> None:
        self._requests.clear()
        if self._current is not None:
            self._current.keeps_alive = False
            return
        self._closing = True
        self._expect_within(self._door.send_timeout_s)  # for what is still to be sent
        self._transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """What was sent is no request of ours; an answer under way is the last."""
        if self._current is not None:
            self._last_request()
        elif self._parser.in_body and status == 400:
            self._answer_and_close(self._door.unreadable())
        else:
            self._answer_and_close(self._door.refused(status, message))

    def _answer_and_close(self, answer: Answer) -> None:
        request = HttpRequest("GET", b"", headers=self._parser.headers)
        self._requests.clear()
        self._current = _Pending(request, _lines(self._door, request), False, False)
        self._write(answer)

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def _expect_more(self) -> None:
        """The next request; but a client that has not taken its answer must do that first."""
        self._expect_within(IDLE_S if self._writable is None else self._door.send_timeout_s)

    def _expect_within(self, seconds: float) -> None:
        """End the connection unless something else is expected by then."""
        self._deadline = self._loop.time() + seconds

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def received_bytes(self) -> int:
        """Of the body that comes now."""
        return self._parser.body_bytes

    @property
    def is_held_back(self) -> bool:
        """Whether it has sent so much ahead of its answers that nothing more is read of it."""
        return self._reading_paused

    def is_late(self, now: float) -> bool:
        return self._deadline < now


class _Pending:
    """A request that waits for its turn, or is being answered. `own_lines`: headers for this client alone."""

    __slots__ = ("is_head", "is_old", "keeps_alive", "own_lines", "request", "size")

    def __init__(self, request: HttpRequest, own_lines: bytes, keeps_alive: bool, is_old: bool) -> None:
        self.request = request
        self.own_lines = own_lines
        self.is_head = request.method == "HEAD"
        self.keeps_alive = keeps_alive
        self.is_old = is_old  # HTTP/1.0: no chunks
        kept = (request.path, request.query, own_lines, *request.headers.values())
        self.size = sum(map(len, kept)) + len(request.body or b"")


def _lines(door: Door, request: HttpRequest) -> bytes:
    return b"".join(name + b": " + value + b"\r\n" for name, value in door.own_headers(request))
