"""`App` as an ASGI application, for servers that speak that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from penstock.shapes.http.app import App
from penstock.shapes.http.longpoll import Poll
from penstock.shapes.http.message import Answer, HttpRequest, Stream

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiApp:
    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope.get("raw_path") or scope["path"].encode()
        request = HttpRequest(scope["method"], path, scope["query_string"], dict(scope["headers"]))
        body = await _read_body(receive, self._app.body_bytes_max)
        if body is None:
            answer = self._app.too_large()
        else:
            request.body = body
            answer = await self._answer(request)
        headers = [*answer.all_headers, *self._app.own_headers(request)]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await _send_body(answer, send, is_head=request.method == "HEAD")

    async def _answer(self, request: HttpRequest) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def deliver(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        reply = self._app.reply(request, deliver)
        if isinstance(reply, Answer):
            return reply
        if not isinstance(reply, Poll):
            return await reply
        try:
            return await answered
        except asyncio.CancelledError:
            self._app.cancel(reply)
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


async def _read_body(receive: Receive, bytes_max: int) -> bytes | None:
    """None: it is longer than allowed."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > bytes_max:
            return None
        if not message.get("more_body"):
            return b"".join(pieces)
