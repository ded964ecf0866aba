"""Removes what no lane needs any more, and what crashes left behind.

Manifests go first and data after them: a crash in between leaves data that no manifest names, which
the next sweep removes. The other way round a manifest would name files that are gone. The newest
step always stays, since it says where the log ends. Directories of steps that are not sealed
yet belong to a writer and are left alone unless the caller is that writer.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from penstock import durable, failpoints
from penstock.core.position import Lsn
from penstock.log.manifest import DATA_DIRECTORY, list_sequence, manifest_path, read_manifest


def apply_retention(directory: Path, keep_after: Lsn) -> int:
    """Remove steps that end at or before `keep_after`; how many there were."""
    removed = 0
    for seq in list_sequence(directory)[:-1]:
        if read_manifest(directory, seq).end > keep_after:
            break
        manifest_path(directory, seq).unlink()
        removed += 1
    if removed:
        durable.sync_directory(directory)
        failpoints.reach("log.retention")
    sweep(directory)
    return removed


def sweep(directory: Path, *, unsealed: bool = False) -> int:
    """Remove data directories that no manifest names; how many there were.

    With `unsealed` also those of steps beyond the newest manifest: only the log's one writer may ask
    for that, before it writes.
    """
    data = directory / DATA_DIRECTORY
    if not data.is_dir():
        return 0
    directories = sorted(path for path in data.iterdir() if path.is_dir())
    # Listed before the manifests are read: a step that is sealed meanwhile is then beyond the newest.
    numbers = list_sequence(directory)
    named = {
        Path(file.path).parts[1]
        for seq in numbers
        for table in read_manifest(directory, seq).tables
        for file in table.files
    }
    newest = numbers[-1] if numbers else 0
    removed = 0
    for path in directories:
        sealed = int(path.name.partition("-")[0]) <= newest
        if path.name not in named and (sealed or unsealed):
            shutil.rmtree(path, ignore_errors=True)
            removed += 1
    return removed
