"""Where log lines of Penstock itself go: to stderr, from `warning` up unless `--verbose`."""

from __future__ import annotations

import logging

from penstock import logs
from penstock.cli.settings import Settings


def configure_logs(settings: Settings, level: int = logging.WARNING) -> None:
    logs.configure(settings.log_form, logging.DEBUG if settings.verbose else level)
