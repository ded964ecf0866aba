"""What holds for every command: the pipeline file, the form of the output, how much is said.

Results go to stdout, everything else (progress, notes, errors for people) to stderr. With `--json`,
stdout carries exactly one JSON document, also when the command fails; of a command that says more than one
thing (`json_lines`), a line for each.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.console import Console

from penstock.logs import LogFormat

if TYPE_CHECKING:
    from penstock.pipeline import Pipeline

LogChoice = Literal["auto", "json", "console"]

#: Piped output has no width of its own; rich would fold tables at 80 columns.
_PIPED_WIDTH = 200


@dataclass(frozen=True, slots=True)
class Settings:
    config_path: Path = Path("penstock.yaml")
    json: bool = False
    verbose: bool = False
    log_format: LogChoice = "auto"
    json_lines: bool = False

    @property
    def log_form(self) -> LogFormat:
        if self.log_format != "auto":
            return self.log_format
        return "json" if self.json else "console"

    @property
    def out(self) -> Console:
        return _console(stderr=False)

    @property
    def err(self) -> Console:
        return _console(stderr=True)

    def emit_json(self, value: Any) -> None:
        indent = None if self.json_lines else 2
        sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False, default=str) + "\n")
        sys.stdout.flush()

    def note(self, message: str) -> None:
        """A sentence for people, beside the result."""
        self.err.print(message, markup=False, highlight=False, soft_wrap=True)


def settings_of(context: typer.Context) -> Settings:
    settings = context.find_root().obj
    assert isinstance(settings, Settings)
    return settings


def open_pipeline(settings: Settings) -> Pipeline:
    from penstock.pipeline import Pipeline

    return Pipeline.from_yaml(settings.config_path)


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_PIPED_WIDTH)
