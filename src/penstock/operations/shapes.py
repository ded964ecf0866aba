"""Shapes of the instance that leads: asked of its live lane, over the socket that only this user can open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.config import Config, PostgresSourceConfig
from penstock.core.errors import ConfigError, SourceError
from penstock.core.report import ProgressListener
from penstock.core.verify_report import VerifyReport
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


def compare(
    config: Config, names: Sequence[str], listener: ProgressListener, limit: int, *, show_values: bool
) -> VerifyReport:
    """With the source, those of these handles or tables; all if none is named."""
    if config.lanes.shapes is None or not isinstance(config.source, PostgresSourceConfig):
        raise ConfigError(
            "There is no lane of shapes in the pipeline file.", remedy="`lanes.shapes` configures it."
        )
    from penstock.shapes.comparison.run import ShapeOptions, compare_shapes

    options = ShapeOptions(tuple(names), limit, show_values)
    url = config.source.url.get_secret_value()
    return compare_shapes(url, _admin(config.state), listener, options)


def _ask(state: Path, request: dict[str, Any]) -> dict[str, Any]:
    return ask(_admin(state), request)


def _admin(state: Path) -> Path:
    """Where the live lane of the instance that leads answers."""
    running = read_running(state)
    if running is None or running.admin is None:
        raise SourceError(
            f"No instance that serves shapes leads with the state in {state}.",
            remedy="Start `penstock shapes serve`, or `penstock run` with `lanes.shapes`; or say which one "
            "is meant: --config, or --storage-dir.",
        )
    return Path(running.admin)
