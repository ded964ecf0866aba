"""Where log lines of Penstock itself go: to stderr, from `warning` up unless `--verbose`."""

from __future__ import annotations

import logging
import sys

import structlog

from penstock.cli.settings import Settings


def configure_logs(settings: Settings) -> None:
    level = logging.DEBUG if settings.verbose else logging.WARNING
    renderer: structlog.types.Processor = structlog.processors.JSONRenderer()
    processors: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.json:
        processors.append(structlog.processors.format_exc_info)
    else:
        # The default formatter shows local variables: rows and passwords among them.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
