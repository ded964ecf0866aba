"""The live lane as a process of the supervisor's: `python -m penstock.shapes`."""

from __future__ import annotations

import os
import sys

import pyarrow as pa

from penstock import logs
from penstock.channel import Channel
from penstock.heap import set_heap
from penstock.shapes.service import run

_SWITCH_INTERVAL_S = 0.001  # the loop should not wait 5 ms for a thread that computes


def main() -> int:
    channel = Channel()
    logs.configure("json")
    _give_memory_back()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return run(channel)


def _give_memory_back() -> None:
    """What a large transaction took is the system's again after it.

    Memory that many threads take and give in pieces of all sizes is hardly ever given back by itself: Arrow's
    own pool and one heap for each thread keep a multiple of what is in use.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    set_heap(arenas=2, mapped_from=256 << 10, trimmed_from=8 << 20)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Threads of gRPC and of pools may still wait for somebody; nothing of theirs is needed any more.
    os._exit(status)
