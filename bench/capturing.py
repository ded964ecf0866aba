"""Capture (slot to sealed change log) against `pg_recvlogical`, over copies of one slot.

The measuring itself is `bench.capture`'s, which can also be run alone. Penstock's time runs from the request
to read until everything up to the end is sealed in the log and durable; starting the capture process (once
per sync) is not part of it, but is part of `changes`.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bench import capture
from bench.comparison import Bars, Comparison, Run
from bench.references import ReceiveLogical
from bench.resources import Usage
from penstock.sources.postgres.embedded import EmbeddedPostgres

BARS = Bars(ratio_min=capture.RATIO_MIN)
PUBLICATION = "penstock"  # of `bench.capture`


def compare(
    server: EmbeddedPostgres, rows: int, rounds: int, directory: Path, console: Console
) -> Comparison:
    console.log(f"inserting {rows:,} rows behind a slot")
    source = capture.Measured(server, rows)
    reference = ReceiveLogical(server, source.connection, PUBLICATION)
    comparison = Comparison("capture", f"capture of {rows:,} inserted rows", reference.name, BARS)
    console.log("capture: a warm-up round, not counted")
    for number in range(rounds + 1):
        theirs = reference.read(source.copy_slot(f"receive_{number}"), source.end, rows)
        ours = _capture(source, f"capture_{number}", directory)
        if number:
            console.log(comparison.add_round(theirs, ours))
        for slot in (f"receive_{number}", f"capture_{number}"):
            source.drop_slot(slot)
    source.drop()
    return comparison


def _capture(source: capture.Measured, slot: str, directory: Path) -> Run:
    run = source.capture(source.copy_slot(slot), directory / slot)
    return Run(source.rows, Usage(run.seconds, run.cpu_s, round(run.peak_mib * 2**20)))
