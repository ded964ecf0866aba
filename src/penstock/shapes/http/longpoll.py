"""Live requests that wait for the next change, without a task each.

A poll is a small object in its shape's group, among those that will get one and the same answer: a thousand
of them cost a thousand writes of the same bytes and little else. Polls time out in the order they came: one
timer for all. One that is over is kept by nothing here: what it knows may be large.

Nothing is missed: the group is subscribed before the shape is looked at for the last time, all of it in the
loop's thread, where changes are told too.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from penstock.core.offset import LogOffset
from penstock.shapes.http.asked import Asked
from penstock.shapes.http.message import Answer
from penstock.shapes.shape import Shape

Deliver = Callable[[Answer], None]


@dataclass(slots=True, eq=False)
class Poll:
    """One waiting request. `deliver` is called once, unless it is cancelled before."""

    shape: Shape
    asked: Asked
    start: LogOffset
    deliver: Deliver
    is_counted: bool = False  # as a request that is admitted, until it is answered
    deadline: float = 0.0
    is_over: bool = False
    key: tuple[object, ...] = field(init=False)  # polls of a shape with the same key get the same answer

    def __post_init__(self) -> None:
        asked, request = self.asked, self.asked.request
        of_client = (asked.encoding, asked.post, asked.if_none_match)
        self.key = (self.start, request.offset, request.cursor, *of_client)


class Answering(Protocol):
    """Makes the answers of polls; those that take a while are delivered later."""

    def changed(self, shape: Shape, polls: list[Poll]) -> None:
        """These polls have one key, and there is something for them."""

    def unchanged(self, poll: Poll) -> Answer:
        """That all transactions up to one are seen, which is looked up before anything else."""

    def gone(self, poll: Poll) -> Answer: ...

    def deliver(self, poll: Poll, answer: Answer) -> None:
        """Hand it out, and count the request no more."""


class LongPolls:
    """All waiting polls. Used in the loop's thread."""

    def __init__(self, answering: Answering, timeout_s: float) -> None:
        self._answering = answering
        self._timeout_s = timeout_s
        self._groups: dict[Shape, _Group] = {}
        self._by_deadline: OrderedDict[Poll, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self.waiting = 0

    def wait(self, poll: Poll) -> None:
        """Have it answered when the shape changes, or when its time is over."""
        group = self._groups.get(poll.shape)
        if group is None:
            group = _Group(poll.shape, self._woken)
            self._groups[poll.shape] = group
            poll.shape.subscribe(group.wake)
        group.polls.setdefault(poll.key, {})[poll] = None
        self.waiting += 1
        loop = asyncio.get_running_loop()
        poll.deadline = loop.time() + self._timeout_s
        self._by_deadline[poll] = None
        if self._timer is None:
            self._timer = loop.call_at(poll.deadline, self._expire)
        if group.has_news(poll.start):
            loop.call_soon(group.wake)

    def cancel(self, poll: Poll) -> None:
        """Its client is gone."""
        if not poll.is_over:
            self._take(poll)

    def close(self) -> None:
        """Answer all that wait, as if their time were over."""
        if self._timer is not None:
            self._timer.cancel()
        while self._by_deadline:
            self._end(self._by_deadline.popitem(last=False)[0])

    def _woken(self, group: _Group) -> None:
        shape = group.shape
        is_gone = group.is_gone()
        for key, among in list(group.polls.items()):
            polls = list(among)
            if not is_gone and not group.has_news(polls[0].start):
                continue
            del group.polls[key]
            self.waiting -= len(polls)
            for poll in polls:
                poll.is_over = True
                self._by_deadline.pop(poll, None)
            if is_gone:
                for poll in polls:
                    self._answering.deliver(poll, self._answering.gone(poll))
            else:
                self._answering.changed(shape, polls)
        self._leave_if_empty(group)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while (first := next(iter(self._by_deadline), None)) is not None and first.deadline <= now:
            del self._by_deadline[first]
            self._end(first)
        self._timer = None if first is None else loop.call_at(first.deadline, self._expire)

    def _end(self, poll: Poll) -> None:
        """Its time is over."""
        if poll.is_over:
            return
        answer = self._answering.unchanged(poll)
        group = self._groups[poll.shape]
        if group.has_news(poll.start):  # after what the answer says was looked up: it may be said no more
            group.wake()
        else:
            self._take(poll)
            self._answering.deliver(poll, answer)

    def _take(self, poll: Poll) -> None:
        poll.is_over = True
        self._by_deadline.pop(poll, None)
        self.waiting -= 1
        group = self._groups[poll.shape]
        among = group.polls[poll.key]
        del among[poll]
        if not among:
            del group.polls[poll.key]
            self._leave_if_empty(group)

    def _leave_if_empty(self, group: _Group) -> None:
        if not group.polls and self._groups.get(group.shape) is group:
            del self._groups[group.shape]
            group.shape.unsubscribe(group.wake)


class _Group:
    """The polls of one shape, by key."""

    __slots__ = ("_last_seen", "polls", "shape", "wake")

    def __init__(self, shape: Shape, woken: Callable[[_Group], None]) -> None:
        self.shape = shape
        self.polls: dict[tuple[object, ...], dict[Poll, None]] = {}
        self.wake: Callable[[], None] = partial(woken, self)
        self._last_seen = shape.last_offset

    def is_gone(self) -> bool:
        """Or has gone back: what clients have is not what it holds."""
        last = self.shape.last_offset
        if self.shape.state == "gone" or last < self._last_seen:
            return True
        self._last_seen = last
        return False

    def has_news(self, start: LogOffset) -> bool:
        last = self.shape.last_offset
        return last > start or self.shape.state == "gone" or last < self._last_seen
