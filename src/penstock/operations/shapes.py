"""Shapes of the instance that leads: asked of its live lane, over the socket that only this user can open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.core.errors import ConfigError, SourceError
from penstock.ledger.run_file import read_running
from penstock.shapes.admin import ask


def shapes(state: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _ask(state, {"request": "list"})["shapes"]
    return sorted(found, key=lambda shape: (shape["table"], shape["handle"]))


def drop(state: Path, *, handle: str | None = None, table: str | None = None) -> list[str]:
    """Drop one shape, or all of a table; their handles. Their clients fetch anew."""
    dropped: list[str] = _ask(state, {"request": "drop", "handle": handle, "table": table})["dropped"]
    if not dropped:
        what = f"no shape with the handle {handle}" if handle else f"no shape of {table}"
        raise ConfigError(f"There is {what}.", remedy="`penstock shapes list` shows those there are.")
    return dropped


def _ask(state: Path, request: dict[str, Any]) -> dict[str, Any]:
    running = read_running(state)
    if running is None or running.admin is None:
        raise SourceError(
            f"No instance that serves shapes leads with the state in {state}.",
            remedy="Start `penstock shapes serve`, or `penstock run` with `lanes.shapes`; or say which one "
            "is meant: --config, or --storage-dir.",
        )
    return ask(Path(running.admin), request)
