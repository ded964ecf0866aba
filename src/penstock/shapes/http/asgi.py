"""`Door` as an ASGI application, for servers that speak that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from penstock.shapes.http.door import Door
from penstock.shapes.http.longpoll import Poll
from penstock.shapes.http.message import HEADERS_READ, Answer, HttpRequest, Stream
from penstock.shapes.http.sent_body import SentBody

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiApp:
    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope.get("raw_path") or scope["path"].encode()
        headers = {name: value for name, value in scope["headers"] if name in HEADERS_READ}
        request = HttpRequest(scope["method"], path, scope["query_string"], headers)
        request.body = self._door.body_of(request)
        if request.body is not None:
            await _read_body(receive, request.body)
        answer = await self._answer(request)
        lines = [*answer.all_headers, *self._door.own_headers(request)]
        await send({"type": "http.response.start", "status": answer.status, "headers": lines})
        await _send_body(answer, send, is_head=request.method == "HEAD")

    async def _answer(self, request: HttpRequest) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def deliver(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        reply = self._door.reply(request, deliver)
        if isinstance(reply, Answer):
            return reply
        if not isinstance(reply, Poll):
            return await reply
        try:
            return await answered
        except asyncio.CancelledError:
            self._door.cancel(reply)
            raise


async def _send_body(answer: Answer, send: Send, *, is_head: bool) -> None:
    last = b""
    if isinstance(answer.body, Stream):
        try:
            if not is_head:
                async for piece in answer.body.pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            await answer.body.close()
    elif not is_head:
        last = answer.body
    await send({"type": "http.response.body", "body": last})


async def _read_body(receive: Receive, body: SentBody) -> None:
    """To its end, or until it is refused."""
    more = True
    while more and body.refusal is None:
        message = await receive()
        body.add(message.get("body", b""))
        more = message.get("more_body", False)
