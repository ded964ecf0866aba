"""`penstock compact`: keep Iceberg tables in order, by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.progress import progress_listener
from penstock.cli.settings import open_pipeline, settings_of
from penstock.cli.tables import age, count, percent, size, table
from penstock.core.report import CompactedStream

_DONE = ("data files", "bytes", "delete files", "snapshots", "expired", "orphans")
_DUE = ("data files", "small files", "delete files", "deleted rows", "snapshots", "oldest snapshot")


def compact(
    context: typer.Context,
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="SCHEMA.TABLE", help="May be several; all of them if none.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Say what is due; change nothing.")
    ] = False,
) -> None:
    """Merge small files, apply deletes, and let old snapshots and orphans go, where that is due.

    For Iceberg tables; syncs do the same by the `maintenance` section of the pipeline file. It gives way to
    other writers. Stop it when you like: what is committed stays.
    """
    settings = settings_of(context)
    pipeline = open_pipeline(settings)
    with progress_listener(settings) as listener:
        report = pipeline.compact(streams or (), listener, dry_run=dry_run)
    if settings.json:
        settings.emit_json(report.to_json())
        return
    if report.streams:
        columns, row = (("stream", *_DUE, "due"), _due) if dry_run else (("stream", *_DONE), _done)
        settings.out.print(table(columns, map(row, report.streams), right=(*_DUE, *_DONE)))
    for message in report.notes:
        settings.note(message)
    settings.note("Nothing was changed." if dry_run else f"Done in {report.seconds:.1f} s.")


def _due(stream: CompactedStream) -> tuple[str, ...]:
    health = stream.before
    return (
        stream.stream,
        count(health.data_files),
        percent(health.small_file_ratio),
        count(health.delete_files),
        percent(health.delete_ratio),
        count(health.snapshots),
        age(health.oldest_snapshot_age_s),
        ", ".join(stream.due),
    )


def _done(stream: CompactedStream) -> tuple[str, ...]:
    before, after = stream.before, stream.after or stream.before
    return (
        stream.stream,
        f"{count(before.data_files)} → {count(after.data_files)}",
        f"{size(before.file_bytes)} → {size(after.file_bytes)}",
        f"{count(before.delete_files)} → {count(after.delete_files)}",
        f"{count(before.snapshots)} → {count(after.snapshots)}",
        count(stream.snapshots_expired),
        count(stream.orphans_removed),
    )
