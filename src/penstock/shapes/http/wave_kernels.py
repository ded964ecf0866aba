"""Compiled: one answer written to many sockets, which differs in a few bytes from client to client.

As with other kernels, the entry has a signature and holds no GIL: whoever has something to do for the same
change, such as making it durable, does not take turns with it. 8 µs for each client, which are the system's.
"""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
from numba.core import types

from penstock.compiling import compiled
from penstock.text_kernels import Bytes, Indices, Ints, copy_bytes

_send: Any = types.ExternalFunction("send", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
#: Without waiting, and with an error rather than a signal where nobody is there any more.
_FLAGS = int(socket.MSG_DONTWAIT) | int(getattr(socket, "MSG_NOSIGNAL", 0))


@compiled((types.int32[::1], _BYTES, _BYTES, types.int64[::1], _BYTES))
def send_to_all(sockets: Indices, head: Bytes, own: Bytes, own_ends: Ints, rest: Bytes) -> Ints:
    """Send to each `head`, its part of `own`, and `rest`; how many bytes of that each has not taken. After an
    error that is all of them: whoever tries again hears of it."""
    longest = np.int64(0)
    for index in range(len(sockets)):
        longest = max(longest, own_ends[index + 1] - own_ends[index])
    whole = np.empty(len(head) + longest + len(rest), np.uint8)
    own_at = copy_bytes(head, whole, np.int64(0))
    rest_at = np.int64(-1)
    unsent = np.empty(len(sockets), np.int64)
    for index in range(len(sockets)):
        end = copy_bytes(own[own_ends[index] : own_ends[index + 1]], whole, own_at)
        if end != rest_at:  # mostly they are equally long
            rest_at = end
            copy_bytes(rest, whole, rest_at)
        size = rest_at + len(rest)
        sent = np.int64(_send(sockets[index], whole.ctypes.data, size, _FLAGS))
        unsent[index] = size - max(sent, np.int64(0))
    return unsent
