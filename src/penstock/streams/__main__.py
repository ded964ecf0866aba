"""A stream lane as a process of the supervisor's: `python -m penstock.streams`."""

from __future__ import annotations

import os
import sys

from penstock import logs
from penstock.channel import Channel
from penstock.streams.service import run


def main() -> int:
    channel = Channel()
    logs.configure("json")
    return run(channel)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Threads of gRPC and of clients may still wait for somebody; nothing of theirs is needed any more.
    os._exit(status)
