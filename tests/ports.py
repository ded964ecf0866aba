"""Ports for servers of tests: below those of outgoing connections and of embedded servers.

Each worker has a range of its own and hands one out again only when it has handed out all, so that a port
which is bound seconds later is still free.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from itertools import cycle

_FIRST, _PER_WORKER, _WORKERS = 10_000, 625, 8
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_ports: list[int] = [*range(_FIRST + _worker * _PER_WORKER, _FIRST + (_worker + 1) * _PER_WORKER)]
random.SystemRandom().shuffle(_ports)
_next_port = cycle(_ports)


def free_port() -> int:
    while True:
        port = next(_next_port)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
