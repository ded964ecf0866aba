"""What a capture process has read, as its change log has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.capture.client import CaptureProcess
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.log.reader import ChangeLog, read_rows
from tests.conftest import WAIT_S


def read_now(capture: CaptureProcess) -> Lsn:
    """Read everything that is committed now."""
    capture.read_to(capture.note_target())
    return capture.wait_reached(WAIT_S)


def log_rows(state: Path, stream: str = "public.orders") -> list[dict[str, Any]]:
    """All that the log has of a stream, in its order."""
    log = ChangeLog(state / "log")
    start, end = log.start(), log.end()
    assert start is not None
    assert end is not None
    files = log.files(StreamId.parse(stream), start, end).files
    return [row for part in read_rows(files, start, end) for row in part.to_pylist()]


def brief(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in ("_op", *columns)) for row in rows]
