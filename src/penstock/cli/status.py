"""`penstock status`: where the pipeline stands, and what it keeps the source from forgetting."""

from __future__ import annotations

import typer

from penstock.cli.settings import open_pipeline, settings_of
from penstock.cli.tables import age, count, percent, size, table, text
from penstock.core.report import StreamStatus

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


def status(context: typer.Context) -> None:
    """Show how far each stream is, and how much log the source and Penstock keep."""
    settings = settings_of(context)
    found = open_pipeline(settings).status()
    if settings.json:
        settings.emit_json(found.to_json())
        return
    out = settings.out
    right = ("rows", "files", "chunks left", "dead letters", "dead keys")
    out.print(table(_COLUMNS, [_row(stream) for stream in found.streams], right=right))
    if health := [_health_row(stream) for stream in found.streams if stream.health is not None]:
        out.print(table(_HEALTH, health, right=_HEALTH[1:]))
    facts = {
        "position": text(found.position),
        "slot": text(found.slot_position),
        "kept by the source for us": size(found.retained_wal_bytes),
        "change log": size(found.log_bytes),
    }
    for name, value in facts.items():
        out.print(f"{name}: {value}", markup=False, highlight=False)
    for message in found.notes:
        settings.note(message)


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
