"""`penstock status`: where the pipeline stands, and what it keeps the source from forgetting."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from penstock.cli.run_view import run_view
from penstock.cli.settings import Settings, open_pipeline, settings_of
from penstock.cli.tables import age, count, percent, size, table, text
from penstock.core.errors import ConfigError
from penstock.core.report import PipelineStatus, StreamStatus

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline

WATCH_INTERVAL_S = 1.0

_COLUMNS = (
    "stream",
    "mode",
    "write",
    "state",
    "rows",
    "files",
    "committed to",
    "chunks left",
    "dead letters",
    "dead keys",
)


_HEALTH = ("stream", "small files", "deleted rows", "delete files", "snapshots", "oldest snapshot")


def status(
    context: typer.Context,
    watch: Annotated[
        bool, typer.Option("--watch", metavar="", help="Show it anew every second until Ctrl-C.")
    ] = False,
) -> None:
    """Show how far each stream is, and how much log the source and Penstock keep.

    While `penstock run` runs, also what its processes, lanes and streams say of themselves.
    """
    settings = settings_of(context)
    pipeline = open_pipeline(settings)
    if watch:
        _watch(settings, pipeline)
        return
    found = pipeline.status()
    if settings.json:
        settings.emit_json(found.to_json())
        return
    settings.out.print(_view(found))
    for message in found.notes:
        settings.note(message)


def _watch(settings: Settings, pipeline: Pipeline) -> None:
    if settings.json:
        raise ConfigError(
            "--watch is for people.",
            remedy="Ask again and again with `penstock --json status`, or `/status`.",
        )

    def view() -> RenderableType:
        running = pipeline.running()
        return _view(pipeline.status()) if running is None else run_view(running)

    out = settings.out
    with contextlib.suppress(KeyboardInterrupt), Live(view(), console=out, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_INTERVAL_S)
            live.update(view(), refresh=True)


def _view(found: PipelineStatus) -> RenderableType:
    right = ("rows", "files", "chunks left", "dead letters", "dead keys")
    parts: list[RenderableType] = [table(_COLUMNS, [_row(stream) for stream in found.streams], right=right)]
    if health := [_health_row(stream) for stream in found.streams if stream.health is not None]:
        parts.append(table(_HEALTH, health, right=_HEALTH[1:]))
    facts = {
        "position": text(found.position),
        "slot": text(found.slot_position),
        "kept by the source for us": size(found.retained_wal_bytes),
        "change log": size(found.log_bytes),
    }
    parts += [Text(f"{name}: {value}") for name, value in facts.items()]
    if found.running is not None:
        parts += [Text(), run_view(found.running)]
    return Group(*parts)


def _row(stream: StreamStatus) -> tuple[str, ...]:
    return (
        stream.stream,
        stream.mode,
        stream.write,
        stream.state,
        count(stream.rows),
        count(stream.files),
        text(stream.committed_to),
        count(stream.chunks_left),
        count(stream.dead_letters),
        count(stream.dead_keys),
    )


def _health_row(stream: StreamStatus) -> tuple[str, ...]:
    health = stream.health
    assert health is not None
    return (
        stream.stream,
        percent(health.small_file_ratio),
        percent(health.delete_ratio),
        count(health.delete_files),
        count(health.snapshots),
        age(health.oldest_snapshot_age_s),
    )
