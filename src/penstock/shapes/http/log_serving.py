"""The log of a shape from an offset on: what there is, or, for live requests, what comes next.

What a client is told to have seen (`global_last_seen_lsn`) is read before the shape's newest offset is: it is
then never ahead of something that the client could still get with a lower one. Where a shape has something
that must be durable before it is read (`storage`), that is not counted as seen until it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from penstock.core.offset import LogOffset
from penstock.shapes.http import answers
from penstock.shapes.http.admission import Admission
from penstock.shapes.http.asked import Asked, OutOfBoundsError, RefetchError
from penstock.shapes.http.bodies import array, read_small, whole_array
from penstock.shapes.http.compression import Body
from penstock.shapes.http.delivery import Delivery
from penstock.shapes.http.longpoll import Deliver, LongPolls, Poll
from penstock.shapes.http.lookup import ShapeLookup
from penstock.shapes.http.message import Answer, Stream
from penstock.shapes.http.sse import event_stream
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import Shape, ShapeApi, SnapshotProblem, seen_lsn


class LogServing:
    """Used in the loop's thread. It is also what answers `LongPolls`."""

    def __init__(
        self,
        api: ShapeApi,
        lookup: ShapeLookup,
        delivery: Delivery,
        admission: Admission,
        settings: ShapeSettings,
    ) -> None:
        self._api = api
        self._lookup = lookup
        self._delivery = delivery
        self._admission = admission
        self._settings = settings
        self._long_poll_s = settings.long_poll_timeout.total_seconds()
        self.polls = LongPolls(self, self._long_poll_s)
        self._deliveries: set[asyncio.Task[None]] = set()

    def now(self, asked: Asked, shape: Shape) -> Answer:
        lsn = seen_lsn(self._api, shape)
        return self._delivery.unchanged(asked, shape, shape.last_offset, lsn)

    async def after(self, asked: Asked, shape: Shape, start: LogOffset) -> Answer:
        if not is_within(shape, start, self._api.global_last_seen_lsn):
            await self._appears(shape, start)
        lsn = seen_lsn(self._api, shape)
        request, last = asked.request, shape.last_offset
        if request.sse:
            return self._events(asked, shape, start)
        if last <= start:
            if request.live:
                return await self._next(asked, shape, start)
            return self._delivery.unchanged(asked, shape, start, max(lsn, last.tx))
        return await self._between(asked, shape, start, last, lsn)

    async def _between(
        self, asked: Asked, shape: Shape, start: LogOffset, last: LogOffset, lsn: int
    ) -> Answer:
        """From `start` to the end of its chunk, or to `last`."""
        end = min(shape.storage.get_chunk_end_log_offset(start) or last, last)
        is_level = end >= last
        known = self._delivery.not_modified(asked, shape, end, up_to_date=is_level)
        if known is not None:
            return known
        seen = end.tx if asked.request.live else max(lsn, end.tx)
        closing = answers.up_to_date(seen) if is_level else None
        bodies = self._delivery.bodies
        if shape.storage.is_buffered(start):
            found = read_small(shape, start, end)
        else:
            found = await bodies.off_loop(lambda: read_small(shape, start, end))
        if isinstance(found, bytes):
            body = Body(whole_array(found, closing))
            has_data = bool(found)
            return await self._delivery.whole(asked, shape, end, body, up_to_date=is_level, has_data=has_data)
        pieces = array(bodies.blocks(found), closing)
        return self._delivery.streamed(asked, shape, end, pieces, up_to_date=is_level)

    async def _appears(self, shape: Shape, start: LogOffset) -> None:
        """Wait for an offset that is ahead of us: a restart or a hand-over may be the reason."""
        appeared = await self._lookup.until(
            shape,
            lambda: is_within(shape, start, self._api.global_last_seen_lsn),
            self._long_poll_s / 2,
        )
        if appeared:
            return
        if not self._api.replayed:
            raise SnapshotProblem(503, "Timeout waiting for the changes up to this offset", 5)
        raise OutOfBoundsError

    def _events(self, asked: Asked, shape: Shape, start: LogOffset) -> Answer:
        stream = event_stream(
            shape,
            start,
            self._delivery.bodies,
            timeout_s=self._settings.sse_timeout.total_seconds(),
            keep_alive_s=self._settings.sse_keep_alive.total_seconds(),
        )
        has_data = shape.last_offset > start  # nothing is awaited until the stream looks itself
        maker, body = self._delivery.maker, Stream(stream)
        return maker.of_sse(shape, asked.request, body, has_data=has_data, post=asked.post)

    # Waiting.

    def poll(
        self, asked: Asked, shape: Shape, start: LogOffset, deliver: Deliver, *, is_counted: bool = False
    ) -> Poll:
        self._api.touch(shape)
        poll = Poll(shape, asked, start, deliver, is_counted)
        self.polls.wait(poll)
        return poll

    async def _next(self, asked: Asked, shape: Shape, start: LogOffset) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def deliver(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        poll = self.poll(asked, shape, start, deliver)
        try:
            return await answered
        finally:
            self.polls.cancel(poll)

    def changed(self, shape: Shape, polls: list[Poll]) -> None:
        try:
            self._answer_all(shape, polls)
        except Exception:  # its files are gone, for instance: these polls fail, and no others
            for poll in polls:
                self.deliver(poll, self.gone(poll) if shape.state == "gone" else answers.internal_error())

    def _answer_all(self, shape: Shape, polls: list[Poll]) -> None:
        asked, start, last = polls[0].asked, polls[0].start, shape.last_offset
        end = min(shape.storage.get_chunk_end_log_offset(start) or last, last)
        is_level = end >= last
        body = self._live_body(shape, start, end, is_level)
        if body is None:
            for poll in polls:
                self._later(self._deliver_own(poll))
        elif self._delivery.is_at_hand(asked, body):
            self._deliver_all(polls, self._delivery.at_once(asked, shape, end, body, up_to_date=is_level))
        else:
            self._later(self._deliver_encoded(polls, end, body, is_level))

    def _deliver_all(self, polls: list[Poll], answer: Answer) -> None:
        """An answer that is whole, to all who waited for it."""
        self._admission.leave("existing", sum(poll.is_counted for poll in polls))
        for poll in polls:
            poll.deliver(answer)

    async def _deliver_encoded(self, polls: list[Poll], end: LogOffset, body: Body, is_level: bool) -> None:
        first = polls[0]
        try:
            answer = await self._delivery.whole(first.asked, first.shape, end, body, up_to_date=is_level)
        except Exception:  # nobody waits for ever
            answer = answers.internal_error()
        self._deliver_all(polls, answer)

    def _later(self, delivering: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(delivering)
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    def _live_body(self, shape: Shape, start: LogOffset, end: LogOffset, is_level: bool) -> Body | None:
        """If it is in memory, and one piece."""
        key = (shape.handle, ("live", start), (end, is_level))
        body = self._delivery.bodies.made(key)
        if body is None and shape.storage.is_buffered(start):
            found = read_small(shape, start, end)
            if isinstance(found, bytes):
                body = Body(whole_array(found, answers.up_to_date(end.tx) if is_level else None))
                self._delivery.bodies.keep(key, body)
        return body

    async def _deliver_own(self, poll: Poll) -> None:
        """Of what has to be read from files, or is long, each has its own."""
        try:
            answer = await self.after(poll.asked, poll.shape, poll.start)
        except RefetchError as error:
            answer = answers.must_refetch(error.handle)
        except Exception:
            answer = self.gone(poll) if poll.shape.state == "gone" else answers.internal_error()
        self.deliver(poll, answer)

    def unchanged(self, poll: Poll) -> Answer:
        return self._delivery.unchanged(poll.asked, poll.shape, poll.start, seen_lsn(self._api, poll.shape))

    def gone(self, poll: Poll) -> Answer:
        return answers.must_refetch(self._lookup.replacement(poll.shape))

    def deliver(self, poll: Poll, answer: Answer) -> None:
        if poll.is_counted:
            self._admission.leave_after(answer, "existing")
        poll.deliver(answer)


def is_within(shape: Shape, start: LogOffset, lsn: int) -> bool:
    """Whether a client can have this offset, if all shapes have seen `lsn`: streams of events end with one
    that is one above their last transaction (correctness 45)."""
    last = shape.last_offset
    return start <= last or start.tx <= max(last.tx, lsn) + 1
