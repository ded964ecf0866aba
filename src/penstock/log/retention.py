"""Removes what no lane needs any more, and what crashes left behind.

Manifests go first and data after them: a crash in between leaves data that no manifest names, which
the next sweep removes. The other way round a manifest would name files that are gone. The newest
step always stays, since it says where the log ends. Directories of steps that are not sealed
yet belong to a writer, maybe to one that only believes that it still leads: if it is stopped between
writing its files and its manifest, and somebody removes the files and lets it take the number, the
manifest names nothing. So they are removed by whoever has taken that number, after it has.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import shutil
from datetime import datetime
from pathlib import Path

from penstock import durable, failpoints
from penstock.core.position import Lsn
from penstock.log.manifest import DATA_DIRECTORY, list_sequence, manifest_path, read_manifest


def bound(directory: Path, least: Lsn, kept_s: float, now: float) -> Lsn:
    """Up to where the log may go: what every lane holds, and what was sealed more than `kept_s` ago."""
    numbers = list_sequence(directory)
    young = bisect.bisect_left(numbers, now - kept_s, key=lambda seq: _sealed_at(directory, seq))
    return least if young == len(numbers) else min(least, read_manifest(directory, numbers[young]).start)


def apply_retention(directory: Path, keep_after: Lsn) -> int:
    """Remove steps that end at or before `keep_after`; how many there were."""
    removed = 0
    numbers = list_sequence(directory)
    for seq in numbers[:-1]:
        if read_manifest(directory, seq).end > keep_after:
            break
        manifest_path(directory, seq).unlink()
        removed += 1
    if removed:
        durable.sync_directory(directory)
        failpoints.reach("log.retention")
    for path in _step_directories(directory):
        if numbers and _sequence_of(path) < numbers[removed]:
            shutil.rmtree(path, ignore_errors=True)
    return removed


def sweep(directory: Path, first: int = 0) -> int:
    """Remove what no manifest names of the sealed steps from number `first` on; how many there were."""
    directories = [path for path in _step_directories(directory) if _sequence_of(path) >= first]
    # Listed before the manifests are read: a step that is sealed meanwhile is then beyond the newest.
    numbers = list_sequence(directory)
    named = {
        Path(file.path).parts[1]
        for seq in numbers[bisect.bisect_left(numbers, first) :]
        for table in read_manifest(directory, seq).tables
        for file in table.files
    }
    newest = numbers[-1] if numbers else 0
    left = [path for path in directories if path.name not in named and _sequence_of(path) <= newest]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return len(left)


def size(directory: Path) -> int:
    """Bytes of all files of a log, while others may write or remove some."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(root, name).stat().st_size
    return total


def _step_directories(directory: Path) -> list[Path]:
    data = directory / DATA_DIRECTORY
    return sorted(path for path in data.iterdir() if path.is_dir()) if data.is_dir() else []


def _sequence_of(step: Path) -> int:
    return int(step.name.partition("-")[0])


def _sealed_at(directory: Path, seq: int) -> float:
    return datetime.fromisoformat(read_manifest(directory, seq).sealed_at).timestamp()
