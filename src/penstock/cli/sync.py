"""`penstock sync`: one bounded round, to the position noted at its start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli.progress import progress_listener
from penstock.cli.settings import Settings, open_pipeline, settings_of
from penstock.cli.tables import count, table
from penstock.core.report import PlannedStream, SyncReport

_COUNTS = ("loaded", "inserts", "updates", "deletes", "truncates", "dead letters")


def sync(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Say what would be done; change nothing.")
    ] = False,
) -> None:
    """Bring every stream up to where the source stands now, then exit.

    Stop it when you like: what is committed stays, and the same command goes on from there.
    """
    settings = settings_of(context)
    pipeline = open_pipeline(settings)
    if dry_run:
        _show_plan(settings, pipeline.plan())
        return
    with progress_listener(settings) as listener:
        report = pipeline.sync(listener)
    show_report(settings, report)


def _show_plan(settings: Settings, plan: Sequence[PlannedStream]) -> None:
    if settings.json:
        settings.emit_json({"plan": [planned.to_json() for planned in plan]})
        return
    rows = [
        (planned.stream, planned.action, count(planned.rows_estimated), planned.detail) for planned in plan
    ]
    columns = ("stream", "would", "rows (estimated)", "")
    settings.out.print(table(columns, rows, right=("rows (estimated)",)))
    settings.note("Nothing was changed.")


def show_report(settings: Settings, report: SyncReport) -> None:
    if settings.json:
        settings.emit_json(report.to_json())
        return
    repaired = any(stream.rows_repaired for stream in report.streams)
    columns = _COUNTS if not repaired else ("repaired", *_COUNTS)
    rows = [
        (
            stream.stream,
            *([count(stream.rows_repaired)] if repaired else []),
            count(stream.rows_loaded),
            count(stream.inserts),
            count(stream.updates),
            count(stream.deletes),
            count(stream.truncates),
            count(stream.dead_letters),
        )
        for stream in report.streams
    ]
    settings.out.print(table(("stream", *columns), rows, right=columns))
    settings.out.print(f"Up to {report.position} in {report.seconds:.1f} s.", highlight=False)
    if dead := sum(stream.dead_letters for stream in report.streams):
        settings.note(
            f"{count(dead)} rows hold values the destination cannot; they are kept as dead letters."
        )
