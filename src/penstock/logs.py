"""What log lines of every process look like: one JSON object each, or a line for people.

A process that the supervisor started always writes JSON to its stderr; the supervisor hands each line on in
the form it was asked for, with the name of the process. What a library prints becomes a line of the same
form, so that whoever collects logs meets no other. Tracebacks never show values of variables: rows and
passwords are among them.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal

import structlog
from structlog.typing import Processor

from penstock.core.errors import PenstockError

LogFormat = Literal["json", "console"]

#: A line is cut there when it is handed on; a library may print a whole query plan.
LINE_CHARACTERS_MAX = 8192
_logger = structlog.get_logger("penstock")
_TIME = structlog.processors.TimeStamper(fmt="iso", utc=True)


def configure(form: LogFormat, level: int = logging.INFO) -> None:
    """Have every logger of this process write to stderr in this form, from `level` up."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _TIME,
            *([structlog.processors.format_exc_info] if form == "json" else []),
            _renderer(form),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )


def handed_on(process: str, line: str, form: LogFormat) -> str:
    """A line that a process wrote, as the supervisor writes it."""
    line, render = line.rstrip("\r\n"), _renderer(form)
    try:
        return str(render(None, "", {**_fields(line), "process": process}))
    except Exception:  # it looks like a line of ours, and has something odd in it
        return str(render(None, "", {**_without_fields(line), "process": process}))


def _fields(line: str) -> dict[str, Any]:
    """What the line says; what is no JSON object of ours is an event without fields."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict) and "event" in fields and len(line) <= LINE_CHARACTERS_MAX:
        return fields
    return _without_fields(line)


def _without_fields(line: str) -> dict[str, Any]:
    return dict(_TIME(None, "", {"event": line[:LINE_CHARACTERS_MAX], "level": "info"}))


def _renderer(form: LogFormat) -> Processor:
    if form == "json":
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )


def log_unexpected(who: str, error: BaseException) -> None:
    """Say where an error of no kind of ours came from: places only, since messages may quote rows."""
    if isinstance(error, PenstockError):
        return
    places = [f"{Path(at.filename).name}:{at.lineno} {at.name}" for at in extract_tb(error.__traceback__)]
    event = f"{who} failed unexpectedly"
    _logger.error(event, kind=type(error).__name__, places=places)
