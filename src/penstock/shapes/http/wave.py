"""A wave of answers: one change, for all who waited for it.

What a client waits for is that those before it are written to. So everything else is done before or after:
sockets and headers of all clients are looked up first, then compiled code writes to one socket after the
other, past their transports and without the interpreter, and only then each connection turns to what is
next. In a wave to 1,000 clients that is as much as a bare loop of `transport.write` takes, where a call for
each that wrote and went on took half as much again.

That a transport is passed by cannot be noticed. It is only where it has nothing to send, so the order of
bytes is kept; what a socket does not take at once, be it full or broken, is given to the transport, which
deals with either. A socket is not closed, nor its number given to another one, before the connection is told
that it is lost, in the loop's thread, where waves are too: its poll is cancelled then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np

from penstock.shapes.http.longpoll import Poll
from penstock.shapes.http.message import Answer
from penstock.shapes.http.wave_kernels import send_to_all

FEW = 8  # below, it is not worth it


class Line(Protocol):
    """A client's connection, while it waits for the answer of a poll."""

    def place(self) -> tuple[int, bytes] | None:
        """Its socket, and the lines of the answer's head that are its own; None if the answer must be given
        to it in the usual way."""

    def sent(self, unsent: bytes) -> None:
        """The answer was written to its socket, all but `unsent`."""


def deliver_to_all(polls: Sequence[Poll], answer: Answer) -> None:
    """In the loop's thread. The answer is whole."""
    rest = answer.rest if len(polls) >= FEW else None
    if rest is None:
        for poll in polls:
            poll.deliver(answer)
    else:
        _deliver_to_many(polls, answer, rest)


def _deliver_to_many(polls: Sequence[Poll], answer: Answer, rest: bytes) -> None:
    lines: list[Line] = []
    sockets: list[int] = []
    own: list[bytes] = []
    others: list[Poll] = []
    for poll in polls:
        line = poll.line
        place = None if line is None else line.place()
        if line is None or place is None:
            others.append(poll)
        else:
            lines.append(line)
            sockets.append(place[0])
            own.append(place[1])
    unsent = send_to_all(
        np.array(sockets, np.int32),
        np.frombuffer(answer.head, np.uint8),
        np.frombuffer(b"".join(own), np.uint8),
        np.fromiter(accumulate(map(len, own), initial=0), np.int64, len(own) + 1),
        np.frombuffer(rest, np.uint8),
    )
    for line, lines_of_its_own, size in zip(lines, own, unsent.tolist(), strict=True):
        line.sent((answer.head + lines_of_its_own + rest)[-size:] if size else b"")
    for poll in others:
        poll.deliver(answer)
