"""Runs, their medians, single figures, and whether a bar is met.

A comparison is a list of rounds; in each round the reference and Penstock do the same work one after the
other. Its ratio is the median over the rounds of (seconds of the reference / seconds of Penstock), so that
a machine that grows slower during the run slows down both sides of each quotient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from rich.table import Table

from bench.resources import Usage

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Run:
    rows: int
    usage: Usage

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.usage.seconds

    @property
    def cpu_s_per_million(self) -> float:
        return self.usage.cpu_s / self.rows * _MILLION


@dataclass(frozen=True, slots=True)
class Bars:
    """What has to be met. `cheaper`: less CPU than the reference."""

    ratio_min: float
    cpu_s_per_million_max: float | None = None
    cheaper: bool = False

    def __str__(self) -> str:
        parts = [f"≥ {self.ratio_min:g}"]
        if self.cpu_s_per_million_max is not None:
            parts.append(f"≤ {self.cpu_s_per_million_max:g} CPU-s")
        if self.cheaper:
            parts.append("less CPU")
        return ", ".join(parts)


@dataclass(slots=True)
class Comparison:
    name: str
    title: str
    reference_name: str
    bars: Bars
    ours: list[Run] = field(default_factory=list)
    reference: list[Run] = field(default_factory=list)

    def add_round(self, reference: Run, ours: Run) -> str:
        """Take a round; it is told in one line."""
        assert reference.rows == ours.rows, "both sides of a round do the same work"
        self.reference.append(reference)
        self.ours.append(ours)
        return (
            f"{self.name}, round {len(self.ours)}: {self.reference_name} {reference.usage.seconds:.2f} s, "
            f"Penstock {ours.usage.seconds:.2f} s and {ours.cpu_s_per_million:.2f} CPU-s per million: "
            f"ratio {reference.usage.seconds / ours.usage.seconds:.2f}"
        )

    @property
    def ratio(self) -> float:
        pairs = zip(self.reference, self.ours, strict=True)
        return median(theirs.usage.seconds / own.usage.seconds for theirs, own in pairs)

    def failures(self) -> list[str]:
        """Each bar that is not met, in words."""
        problems = []
        own_cpu, their_cpu = _cpu(self.ours), _cpu(self.reference)
        if self.ratio < self.bars.ratio_min:
            problems.append(f"{self.title}: ratio {self.ratio:.2f} is below {self.bars.ratio_min:g}")
        limit = self.bars.cpu_s_per_million_max
        if limit is not None and own_cpu > limit:
            problems.append(f"{self.title}: {own_cpu:.2f} CPU-s per million rows is above {limit:g}")
        if self.bars.cheaper and own_cpu >= their_cpu:
            problems.append(
                f"{self.title}: {own_cpu:.2f} CPU-s per million rows is not below "
                f"{self.reference_name}'s {their_cpu:.2f}"
            )
        return problems

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "reference": self.reference_name,
            "bars": asdict(self.bars),
            "ratio": self.ratio,
            "passed": not self.failures(),
            "penstock": _summary(self.ours),
            "beside": _summary(self.reference),
        }


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, not to be above its bar, or with `at_least` not below it; without a bar it is told."""

    title: str
    value: float
    limit: float | None
    unit: str = ""
    at_least: bool = False

    def __str__(self) -> str:
        return f"{self.value:,.2f} {self.unit}".rstrip()

    @property
    def bar(self) -> str:
        if self.limit is None:
            return "none"
        return f"{'≥' if self.at_least else '≤'} {self.limit:,g} {self.unit}".rstrip()

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "missed" if self.failures() else "met"

    def failures(self) -> list[str]:
        if self.limit is None:
            return []
        if self.value < self.limit if self.at_least else self.value > self.limit:
            return [f"{self.title}: {self}, and the bar is {self.bar}"]
        return []


def figures_table(figures: Sequence[Figure]) -> Table:
    table = Table(title="Bars that are no ratio to a reference")
    for heading in ("", "figure", "bar"):
        table.add_column(heading, justify="right" if heading == "figure" else "left")
    for figure in figures:
        colour = "red" if figure.failures() else "green"
        verdict = f": [{colour}]{figure.verdict}[/{colour}]" if figure.verdict else ""
        table.add_row(figure.title, str(figure), f"{figure.bar}{verdict}")
    return table


def figures_markdown(figures: Sequence[Figure]) -> str:
    lines = ["| | figure | bar |", "|---|--:|---|"]
    for figure in figures:
        verdict = f": {figure.verdict}" if figure.verdict else ""
        lines.append(f"| {figure.title} | {figure} | {figure.bar}{verdict} |")
    return "\n".join(lines) + "\n"


def results_table(comparisons: Sequence[Comparison]) -> Table:
    table = Table(title="Medians; ratio = rows/s of Penstock ÷ rows/s of the reference")
    table.add_column("")
    for heading in ("rows/s", "CPU-s per million", "peak memory", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("bar")
    for comparison in comparisons:
        table.add_row(comparison.title, end_section=False)
        table.add_row(f"  {comparison.reference_name}", *_cells(comparison.reference), "", "")
        verdict = "[red]below[/red]" if comparison.failures() else "[green]met[/green]"
        table.add_row(
            "  Penstock",
            *_cells(comparison.ours),
            f"[bold]{comparison.ratio:.2f}[/bold]",
            f"{comparison.bars}: {verdict}",
            end_section=True,
        )
    return table


def markdown_table(comparisons: Sequence[Comparison]) -> str:
    """The same table as it stands in docs/benchmarks.md."""
    lines = ["| | rows/s | CPU-s per million | peak memory | ratio | bar |", "|---|--:|--:|--:|--:|---|"]
    for comparison in comparisons:
        verdict = "missed" if comparison.failures() else "met"
        lines += [
            f"| **{comparison.title}** | | | | | |",
            f"| {comparison.reference_name} | {' | '.join(_cells(comparison.reference))} | | |",
            f"| Penstock | {' | '.join(_cells(comparison.ours))} | **{comparison.ratio:.2f}** "
            f"| {comparison.bars}: {verdict} |",
        ]
    return "\n".join(lines) + "\n"


def _cells(runs: Sequence[Run]) -> tuple[str, str, str]:
    memory = max(run.usage.memory_peak_bytes for run in runs) / 2**20
    return f"{median(run.rows_per_s for run in runs):,.0f}", f"{_cpu(runs):.2f}", f"{memory:,.0f} MiB"


def _cpu(runs: Sequence[Run]) -> float:
    return median(run.cpu_s_per_million for run in runs)


def _summary(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "rows": runs[0].rows,
        "rows_per_s": median(run.rows_per_s for run in runs),
        "cpu_s_per_million": _cpu(runs),
        "memory_peak_bytes": max(run.usage.memory_peak_bytes for run in runs),
        "seconds": [run.usage.seconds for run in runs],
    }
