"""`run.json` in the state directory: which instance of `penstock run` leads, and how to reach it.

For people, and for commands that want to ask the running instance. Nothing rests on it: leadership is
decided at the source. The instance that led last stays in it while its source is away, until it stands by or
ends: whether it leads is for it to say. `keep` is called again and again and mends what a crash, or two
instances that each took the other for gone, left there.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock import durable

NAME = "run.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Running:
    """`capture` has the `address` of its service and, over TCP, the path of its `certificate`; no secrets.

    `admin`: the socket at which the live lane takes orders, if it is served.
    """

    pid: int
    host: str
    http: str
    capture: dict[str, str]
    since: str
    admin: str | None = None


def read_running(state: Path) -> Running | None:
    """The instance that leads, or did last, if its file is there and, on this host, its process."""
    running = _read(state / NAME)
    if running is not None and running.host == socket.gethostname() and not _is_alive(running.pid):
        return None
    return running


class RunFile:
    """Our own `run.json`, there from our first lead until we stand by."""

    def __init__(self, state: Path, own: Running) -> None:
        self._path = state / NAME
        self._own = own

    def keep(self, *, leading: bool) -> None:
        """Have the file say that we lead, or no longer say so.

        In a container every life has the same host and process id: what an earlier one left is ours too.
        """
        found = _read(self._path)
        names_us = found is not None and (found.host, found.pid) == (self._own.host, self._own.pid)
        if leading and found != self._own:
            document = {"format_version": FORMAT_VERSION, **asdict(self._own)}
            durable.replace(self._path, durable.to_json_bytes(document))
        elif names_us and not leading:
            self._path.unlink(missing_ok=True)


def _read(path: Path) -> Running | None:
    try:
        document: Any = json.loads(path.read_bytes())
        if document.pop("format_version") != FORMAT_VERSION:
            return None
        return Running(**document)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
