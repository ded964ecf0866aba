"""`penstock verify`: prove that tables, shapes, or what lanes have sent, are right, or say where not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.failure import DIFFERENT, NOT_COMPARED
from penstock.cli.progress import progress_listener
from penstock.cli.settings import Settings, open_pipeline, settings_of
from penstock.cli.tables import count, table
from penstock.cli.verify_page import counts_of, page
from penstock.config.values import share_of
from penstock.core.errors import ConfigError, StorageError
from penstock.core.verify_report import Difference, VerifiedStream, VerifyReport

_NOW, _ALL = "now", "100%"
_SHAPES = "shapes"


def verify(
    context: typer.Context,
    streams: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCHEMA.TABLE", help="May be several; all of them if none. Of shapes: or a handle."
        ),
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            "--at", metavar="LSN", help="Compare the version that tables had there, taken on by the log."
        ),
    ] = _NOW,
    sample: Annotated[
        str,
        typer.Option(
            "--sample", metavar="PART", help="Of the keys, as 5% or 0.05: the rest is not compared."
        ),
    ] = _ALL,
    limit: Annotated[
        int,
        typer.Option("--limit", min=0, metavar="N", help="Tell so many differences of a stream one by one."),
    ] = 20,
    show_values: Annotated[
        bool,
        typer.Option("--show-values", metavar="", help="Show what both sides hold; keys are always shown."),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", metavar="", help="Give rows that differ what the source has, and compare again."
        ),
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the result as a page, too.")
    ] = None,
    lane: Annotated[
        str | None,
        typer.Option(
            "--lane", metavar="NAME", help="Compare what this Kafka lane has sent, or `shapes`; not tables."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="OFFSET", help="With a Kafka lane: only changes from there on."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="OFFSET", help="With a Kafka lane: only changes before that."),
    ] = None,
) -> None:
    """Compare tables with their source at one position, while both are in use; neither is changed.

    With --repair, rows that differ are given what the source has for them, in tables that have a row for each
    of the source's, while no `penstock run` is at work. What is told then is how the tables are afterwards.

    With --lane, what a Kafka lane has sent is compared with the change log: every change is in its topic
    once, says what the log says, and those of a key are in their order. With --lane shapes, the rows of each
    shape of the running instance are compared with what its SELECT gives.

    Exit code 0: equal. 10: there are differences. 11: no difference, but a stream could not be compared.
    """
    settings = settings_of(context)
    of_tables = {"--at": at != _NOW, "--sample": sample != _ALL, "--repair": repair}
    of_lanes = {"--from": start is not None, "--to": end is not None}
    _require_fitting(of_lanes if lane is None else of_tables, lane)
    _require_fitting({_SHAPES: of_lanes, None: {}}.get(lane, {"--show-values": show_values}), lane)
    pipeline = open_pipeline(settings)
    with progress_listener(settings) as listener:
        if lane is None:
            report = pipeline.verify(
                streams or (),
                listener,
                sample=parse_part(sample),
                limit=limit,
                show_values=show_values,
                repair=repair,
                at=None if at == _NOW else at,
            )
        elif lane == _SHAPES:
            report = pipeline.verify_shapes(streams or (), listener, limit=limit, show_values=show_values)
        else:
            report = pipeline.verify_lane(lane, streams or (), listener, start=start, end=end, limit=limit)
    if html is not None:
        _write(html, page(report))
    if settings.json:
        settings.emit_json(report.to_json())
    else:
        _show(settings, report)
    if code := exit_code(report):
        raise typer.Exit(code)


def exit_code(report: VerifyReport) -> int:
    if not report.equal:
        return DIFFERENT
    return 0 if report.complete else NOT_COMPARED


def _require_fitting(options: dict[str, bool], lane: str | None) -> None:
    """None of these, which are for something else, is given."""
    for name, is_given in options.items():
        if is_given:
            what = "a Kafka lane" if name in ("--from", "--to") else "tables, and not for a lane"
            raise ConfigError(
                f"{name} is for {what}.",
                remedy=f"Leave {name} out{'' if lane is not None else ', or name the lane: --lane kafka'}.",
            )


def parse_part(text: str) -> float:
    """`5%` or `0.05`."""
    try:
        return share_of(text)
    except ValueError as error:
        raise ConfigError(f"--sample {error}.", remedy="Write --sample 5% or --sample 0.05.") from error


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Could not write {path}.", remedy="Name another file.") from error


def _show(settings: Settings, report: VerifyReport) -> None:
    counts = counts_of(report)
    rows = []
    for each in report.streams:
        numbers = [count(getattr(each, name)) for name in counts.values()]
        rows.append(
            (
                each.stream,
                each.verdict,
                *(numbers if each.verdict != "not compared" else [""] * len(counts)),
                each.position or "",
                f"{each.seconds:.1f} s" if each.position else "",
            )
        )
    columns = ("stream", "verdict", *counts, "position", "took")
    settings.out.print(table(columns, rows, right=(*counts, "took")))
    for stream in report.streams:
        _show_stream(settings, report, stream)
    part = "" if report.sample >= 1 else f" of {report.sample:.3g} of the keys"
    settings.note(f"Compared{part} in {report.seconds:.1f} s.")


def _show_stream(settings: Settings, report: VerifyReport, stream: VerifiedStream) -> None:
    if stream.reason:
        settings.note(f"{stream.stream} was not compared: {stream.reason}.")
    if stream.dead_letters:
        settings.note(
            f"{stream.stream}: {count(stream.dead_letters)} rows are dead letters, and not in the table."
            if not stream.is_of_records
            else f"{stream.stream}: {count(stream.dead_letters)} records are dead letters, not in the topic."
        )
    if stream.lane and stream.compared_from:
        loaded = f" Beside them are {count(stream.loaded)} loaded rows." if stream.loaded else ""
        between = f"from {stream.compared_from} to {stream.position}"
        settings.note(f"{stream.stream}: changes {between} were compared.{loaded}")
    for note in stream.notes:
        settings.note(f"{stream.stream}: {note}.")
    if stream.columns_not_compared:
        names = ", ".join(stream.columns_not_compared)
        settings.note(f"{stream.stream}: columns that changed at the source were not compared: {names}.")
    if stream.repaired:
        settings.note(f"{stream.stream}: {count(stream.repaired)} rows were repaired.")
    if not stream.differences:
        return
    rows: list[list[str]] = [
        [each.kind, _words(each.key), *_column_words(each, shown=report.shows_values)]
        for each in stream.differences
    ]
    held = "shape" if stream.lane else "table"
    values = ("source", held) if report.shows_values else ()
    settings.out.print(f"{stream.stream}:", markup=False, highlight=False)
    heads = ["record", "key and change"] if stream.is_of_records else ["row", "key", "columns", *values]
    settings.out.print(table(heads, [row[: len(heads)] for row in rows]))
    for line in left_out_lines(stream):
        settings.note(line)


def left_out_lines(stream: VerifiedStream) -> list[str]:
    """What is not told of a stream's differences."""
    lines = []
    if stream.left_out:
        lines.append(f"{stream.stream}: {count(stream.left_out)} more differ; --limit tells more of them.")
    if stream.buckets_looked_into < stream.buckets_differing:
        lines.append(
            f"{stream.stream}: rows differ in {count(stream.buckets_differing)} of {count(stream.buckets)} "
            f"buckets of keys, and {count(stream.buckets_looked_into)} of them were looked into."
        )
    return lines


def _words(key: dict[str, str | None]) -> str:
    return ", ".join(f"{name}={value}" for name, value in key.items())


def _column_words(difference: Difference, *, shown: bool) -> tuple[str, ...]:
    names = "\n".join(column.name for column in difference.columns)
    if not shown:
        return (names,)
    source = "\n".join(_value(column.source) for column in difference.columns)
    return names, source, "\n".join(_value(column.table) for column in difference.columns)


def _value(text: str | None) -> str:
    return "null" if text is None else text
