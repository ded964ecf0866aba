"""`penstock check`: is everything there that a sync needs?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from penstock.cli.settings import Settings, open_pipeline, settings_of
from penstock.cli.tables import plural

if TYPE_CHECKING:
    from penstock.sources.finding import Finding

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


def check(context: typer.Context) -> None:
    """Look at everything a sync needs at the source; say what is missing and how to mend it."""
    settings = settings_of(context)
    findings = open_pipeline(settings).check()
    errors = [finding for finding in findings if finding.level == "error"]
    if settings.json:
        settings.emit_json({"ok": not errors, "findings": [finding.to_json() for finding in findings]})
    else:
        _print(settings, findings)
    if errors:
        raise typer.Exit(errors[0].exit_code)


def _print(settings: Settings, findings: Sequence[Finding]) -> None:
    out = settings.out
    for finding in findings:
        mark, style = _MARKS[finding.level]
        line = Text.assemble((mark, style), " ", (f"{finding.stream}: " if finding.stream else "", "bold"))
        line.append(finding.message)
        out.print(line, soft_wrap=True)
        if finding.remedy and finding.level != "ok":
            out.print(Text(f"  What to do: {finding.remedy}"), soft_wrap=True)
    counts = {level: sum(finding.level == level for finding in findings) for level in _MARKS}
    warnings, errors = (plural(counts[level], level) for level in ("warning", "error"))
    out.print(f"\n{counts['ok']} ok, {warnings}, {errors}", highlight=False)
