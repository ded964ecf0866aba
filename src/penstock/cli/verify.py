"""`penstock verify`: prove that tables hold what their source holds, or say where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.failure import DIFFERENT, NOT_COMPARED
from penstock.cli.progress import progress_listener
from penstock.cli.settings import Settings, open_pipeline, settings_of
from penstock.cli.tables import count, table
from penstock.cli.verify_page import page
from penstock.config.values import share_of
from penstock.core.errors import ConfigError, StorageError
from penstock.core.verify_report import Difference, VerifiedStream, VerifyReport

_COUNTS = ("source rows", "table rows", "missing", "extra", "different")


def verify(
    context: typer.Context,
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="SCHEMA.TABLE", help="May be several; all of them if none.")
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            "--at", metavar="LSN", help="Compare the version that tables had there, taken on by the log."
        ),
    ] = "now",
    sample: Annotated[
        str,
        typer.Option(
            "--sample", metavar="PART", help="Of the keys, as 5% or 0.05: the rest is not compared."
        ),
    ] = "100%",
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
) -> None:
    """Compare tables with their source at one position, while both are in use; neither is changed.

    With --repair, rows that differ are given what the source has for them, in tables that have a row for each
    of the source's, while no `penstock run` is at work. What is told then is how the tables are afterwards.

    Exit code 0: equal. 10: there are differences. 11: no difference, but a stream could not be compared.
    """
    settings = settings_of(context)
    pipeline = open_pipeline(settings)
    with progress_listener(settings) as listener:
        report = pipeline.verify(
            streams or (),
            listener,
            sample=parse_part(sample),
            limit=limit,
            show_values=show_values,
            repair=repair,
            at=None if at == "now" else at,
        )
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
    rows = [
        (
            each.stream,
            each.verdict,
            *((count(number) for number in _numbers(each)) if each.verdict != "not compared" else [""] * 5),
            each.position or "",
            f"{each.seconds:.1f} s" if each.position else "",
        )
        for each in report.streams
    ]
    columns = ("stream", "verdict", *_COUNTS, "position", "took")
    settings.out.print(table(columns, rows, right=(*_COUNTS, "took")))
    for stream in report.streams:
        _show_stream(settings, report, stream)
    part = "" if report.sample >= 1 else f" of {report.sample:.3g} of the keys"
    settings.note(f"Compared{part} in {report.seconds:.1f} s.")


def _numbers(stream: VerifiedStream) -> tuple[int, ...]:
    return stream.source_rows, stream.table_rows, stream.missing, stream.extra, stream.different


def _show_stream(settings: Settings, report: VerifyReport, stream: VerifiedStream) -> None:
    if stream.reason:
        settings.note(f"{stream.stream} was not compared: {stream.reason}.")
    if stream.dead_letters:
        settings.note(
            f"{stream.stream}: {count(stream.dead_letters)} rows are dead letters, and not in the table."
        )
    if stream.columns_not_compared:
        names = ", ".join(stream.columns_not_compared)
        settings.note(f"{stream.stream}: columns that changed at the source were not compared: {names}.")
    if stream.repaired:
        settings.note(f"{stream.stream}: {count(stream.repaired)} rows were repaired.")
    if not stream.differences:
        return
    rows = [
        (each.kind, _words(each.key), *_column_words(each, shown=report.shows_values))
        for each in stream.differences
    ]
    values = ("source", "table") if report.shows_values else ()
    settings.out.print(f"{stream.stream}:", markup=False, highlight=False)
    settings.out.print(table(("row", "key", "columns", *values), rows))
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
