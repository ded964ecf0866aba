"""What the instance that leads says of itself: its `/status`, found by `run.json` in the state directory."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from penstock.ledger.run_file import Running, read_running

TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 64 << 20
#: What an instance says when it listens on every address of its host.
_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104  # nothing is bound here


def running_status(state: Path) -> dict[str, Any] | None:
    """None if no instance leads, or the one that does cannot be reached from here."""
    running = read_running(state)
    if running is None:
        return None
    document = status_at(*_address(running))
    # Its address may be another instance's by now, and on another host another process has its id.
    is_it = document is not None and (document.get("host"), document.get("pid")) == (
        running.host,
        running.pid,
    )
    return document if is_it else None


def status_at(host: str, port: int) -> dict[str, Any] | None:
    """What the instance there says, if there is one."""
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/status")
        answer = connection.getresponse()
        document = json.loads(answer.read(_ANSWER_BYTES_MAX)) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return document if isinstance(document, dict) else None


def _address(running: Running) -> tuple[str, int]:
    host, _, port = running.http.removeprefix("http://").rpartition(":")
    return running.host if host in _ANY_ADDRESS else host, int(port)
