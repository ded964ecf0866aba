"""`penstock resync`: load tables again, while readers keep the old ones until the new ones are complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.progress import progress_listener
from penstock.cli.settings import Settings, open_pipeline, settings_of
from penstock.cli.sync import show_report
from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.locking import is_locked_by_run

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline


def resync(
    context: typer.Context,
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="SCHEMA.TABLE", help="May be several; all of them if none.")
    ] = None,
    lane: Annotated[
        str | None,
        typer.Option("--lane", metavar="NAME", help="Into a stream lane (kafka, kinesis, file), not tables."),
    ] = None,
    diff: Annotated[
        bool,
        typer.Option("--diff", metavar="", help="Compare with the source; write only the rows that differ."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Yes, load everything again.")] = False,
) -> None:
    """Load these streams again and go on from there; without a name, all of them under a new slot.

    Readers see the old tables until each new one is complete. While `penstock run` is at work, named
    streams are loaded by it. With --diff the tables are compared with the source, and only rows that differ
    are written, in one commit; the way to go on after a lost slot (stop `penstock run` before). With --lane
    the rows go into that lane's stream, as events with `op` `r`, while `penstock run` runs; a stream of which
    it sends changes alone goes on from where it stands.
    """
    settings = settings_of(context)
    if lane is not None and diff:
        raise ConfigError(
            "What a stream lane has sent cannot be compared with the source.", remedy="Leave out --diff."
        )
    if lane is not None:
        _resync_lane(settings, lane, tuple(streams or ()), yes=yes)
        return
    pipeline = open_pipeline(settings)
    if not yes:
        _require_yes(pipeline, streams or [], diff=diff)
    if streams and not diff and is_locked_by_run(pipeline.config.state):
        _order(settings, pipeline.config, streams)
        return
    with progress_listener(settings) as listener:
        report = pipeline.resync(streams or (), listener, diff=diff)
    show_report(settings, report)


def _require_yes(pipeline: Pipeline, streams: list[str], *, diff: bool) -> None:
    """For what concerns every stream of the pipeline."""
    if not streams:
        does = "compares every table with the source" if diff else "loads every stream of the pipeline again"
        raise ConfigError(
            f"This drops the slot and the change log, and {does}.",
            remedy="Name the streams that are meant, or add --yes for all of them.",
        )
    if diff and pipeline.config.source.type == "postgres" and pipeline.has_lost_slot():
        raise ConfigError(
            "The slot is lost. Under a new one, streams that are not named here are loaded again.",
            remedy="Add --yes if that is what you want; `penstock resync --diff --yes` compares all of them.",
        )


def _order(settings: Settings, config: Config, streams: list[str]) -> None:
    """Have the run that is at work do it."""
    from penstock.operations import streams as operations

    told = operations.resync(config, streams)
    if settings.json:
        settings.emit_json({"resync": streams, "told": told})
        return
    begins = "is loaded again by the run that is at work." if told == "done" else "will be, after its turn."
    for stream in streams:
        settings.out.print(f"{stream} {begins}", markup=False, highlight=False, soft_wrap=True)


def _resync_lane(settings: Settings, lane: str, streams: tuple[str, ...], *, yes: bool) -> None:
    if not yes:
        raise ConfigError(
            f"This has the lane {lane} send the rows there are again: consumers see them a second time. "
            "Where it sends changes alone, it goes on although some may be missing.",
            remedy="Add --yes if that is what you want.",
        )
    from penstock.operations import lanes

    lanes.resync(Config.load(settings.config_path), lane, streams)
    what = ", ".join(streams) or "all its streams"
    if settings.json:
        settings.emit_json({"lane": lane, "resync": list(streams)})
    else:
        settings.out.print(f"The lane {lane} begins with {what} anew.", markup=False, highlight=False)
