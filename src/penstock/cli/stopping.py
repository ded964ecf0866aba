"""SIGTERM ends a command the way Ctrl-C does: what is under way is given up, what is committed stays."""

from __future__ import annotations

import signal
from types import FrameType


def stop_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    # A scheduler may repeat the signal; the clean-up that the first one began must not be cut short.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
