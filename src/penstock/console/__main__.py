"""The console as a process of `penstock run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from penstock import logs
from penstock.channel import Channel
from penstock.config import Config
from penstock.console.serving import Console, said_in
from penstock.core.errors import told_of
from penstock.supervisor.asking import status_at


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
        console = Console(config, path, ask)
        with said_in(config.state, console.url):
            channel.state("running", console.url)
            channel.note(
                f"The console is at {console.url}; `penstock console` prints the link that opens it."
            )
            channel.stop_asked.wait()
            channel.state("stopping")
        console.stop()
    except Exception as error:
        logs.log_unexpected("the console", error)
        channel.failed(told_of("the console", error).to_json())
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a browser that stays connected holds nothing up
