"""The command line that both benchmark programs share, and the end of a run: table, JSON, exit code."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench.comparison import (
    Comparison,
    Figure,
    figures_markdown,
    figures_table,
    markdown_table,
    results_table,
)
from bench.tables import ManyTables

LOAD_ROWS = 5_000_000
CHANGE_ROWS = 1_000_000
ROUNDS = 3


def new_console() -> Console:
    # Lines in a log file stay whole: without a terminal rich would wrap them at 80 columns.
    return Console(log_path=False, width=None if sys.stdout.isatty() else 140)


def warn_if_busy(console: Console) -> None:
    load = os.getloadavg()[0]
    if load > (os.cpu_count() or 1) / 2:
        console.print(
            f"[yellow]This machine is busy[/yellow] (load average {load:.1f}): Penstock uses several "
            "processes where the reference uses one, so a busy machine lowers the ratios."
        )


def parse_arguments(program: str, description: str, names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(names)} (all)")
    parser.add_argument("--rows", type=int, default=LOAD_ROWS, help="rows of a full load (%(default)s)")
    parser.add_argument("--changes", type=int, default=CHANGE_ROWS, help="rows of a CDC run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="counted rounds of each (%(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with 1 below a bar (or set CHECK=1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as well")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to FILE as Markdown")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    arguments.names = arguments.names or list(names)
    arguments.check = arguments.check or os.environ.get("CHECK", "") not in ("", "0")
    if not sys.platform.startswith("linux"):
        parser.error("the benchmarks read /proc and run on Linux only")
    return arguments


def finish(
    console: Console,
    comparisons: Sequence[Comparison],
    arguments: argparse.Namespace,
    many: Sequence[ManyTables] = (),
    figures: Sequence[Figure] = (),
) -> int:
    """Print and write the results; the exit code."""
    if comparisons:
        console.print(results_table(comparisons))
    for each in many:
        console.print(each.results_table())
    if figures:
        console.print(figures_table(figures))
    console.print(
        "Excluded: starting Spark (5–10 s once per process). The server runs with fsync off. "
        "CPU and memory are those of everything but the database."
    )
    if arguments.json is not None:
        document = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"cores": os.cpu_count(), "architecture": platform.machine()},
            "comparisons": [comparison.to_json() for comparison in comparisons],
            "tables": [each.to_json() for each in many],
            "figures": [asdict(figure) for figure in figures],
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    if arguments.markdown is not None:
        both = markdown_table(comparisons), figures_markdown(figures)
        arguments.markdown.write_text("\n".join(both if figures else both[:1]))
    parts: list[Comparison | ManyTables | Figure] = [*comparisons, *many, *figures]
    failures = [failure for part in parts for failure in part.failures()]
    for failure in failures:
        console.print(f"[red]below the bar[/red]  {failure}")
    return 1 if failures and arguments.check else 0
