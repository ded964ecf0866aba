"""A stream lane as a process of the supervisor's: `python -m penstock.streams`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

import pyarrow as pa

from penstock import logs
from penstock.channel import Channel
from penstock.streams.service import run

_M_ARENA_MAX = -8  # malloc.h


def main() -> int:
    channel = Channel()
    logs.configure("json")
    _keep_memory_together()
    return run(channel)


def _keep_memory_together() -> None:
    """Batches are made by one thread and let go by another: a heap for each keeps a multiple of what is used.

    So does Arrow's own pool, once a large transaction has gone through.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(OSError, AttributeError):  # a C library without it
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Threads of gRPC and of clients may still wait for somebody; nothing of theirs is needed any more.
    os._exit(status)
