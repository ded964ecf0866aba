"""The console as a process of `penstock run`.

An address that is taken, by a predecessor that is ending or by another instance on the machine, is no fault
that somebody must look at before it is tried again: the console waits and says so, and serves when the
address is free.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock import logs
from penstock.channel import Channel
from penstock.config import Config
from penstock.console.serving import Console, said_in
from penstock.core.backoff import pause_s
from penstock.core.errors import AddressError, PenstockError, told_of
from penstock.supervisor.asking import status_at

_BACKOFF_S = (1.0, 30.0)


def main() -> int:
    channel = Channel()
    logs.configure("json")
    try:
        path = Path(channel.spec["config"])
        host, _, port = str(channel.spec["http"]).rpartition(":")
        shown = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104  # nothing is bound here

        def ask() -> dict[str, Any] | None:
            return status_at(shown, int(port))

        config = Config.load(path)

        def make() -> Console:
            """By the file as it is now: while its address is taken, somebody may name another."""
            nonlocal config
            with suppress(PenstockError):
                config = Config.load(path)
            return Console(config, path, ask)

        console = _opened(channel, make)
        if console is None:
            return 0
        with said_in(config.state, console.url):
            channel.state("running", console.url)
            channel.note(
                f"The console is at {console.url}; `penstock console` prints the link that opens it."
            )
            if console.warning:
                channel.note(console.warning)
            channel.stop_asked.wait()
            channel.state("stopping")
        console.stop()
    except Exception as error:
        logs.log_unexpected("the console", error)
        channel.failed(told_of("the console", error).to_json())
        return 1
    return 0


def _opened(channel: Channel, make: Callable[[], Console]) -> Console | None:
    """When its address is free; None if the end was asked for before."""
    said, times = "", 0
    while not channel.stop_asked.is_set():
        try:
            return make()
        except AddressError as error:
            if str(error) != said:
                said = str(error)
                channel.state("waiting", said)
        least_s, most_s = _BACKOFF_S
        channel.stop_asked.wait(max(least_s, pause_s(times, least_s, most_s)))
        times += 1
    return None


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a browser that stays connected holds nothing up
