"""Removing what a table no longer needs, without pulling anything from under a reader or a writer.

Kept, always: the version `current` shows and the newest record names, the newest records, the files of the
newest record and of the pending load. Kept for the grace: versions superseded less than that ago, counted
from the record that superseded them, since a reader may have resolved `current` just before. Kept for the
safety age: files and directories that no record names, since a writer may be about to commit them, or a
comparison read what it wrote for itself. That age is an hour, or the grace if it is longer.
"""

from __future__ import annotations

import secrets
import shutil
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from penstock import durable
from penstock.destinations.parquet_layout import TableLayout
from penstock.destinations.records import TableRecord

RECORDS_KEPT = 100
ABANDONED_AFTER_S = 3600.0  # of files that no record names; longer where readers are given longer


@dataclass(frozen=True, slots=True)
class Swept:
    versions: int = 0
    files: int = 0
    records: int = 0


def sweep(layout: TableLayout, grace_s: float, abandoned_after_s: float) -> Swept:
    numbers = layout.versions()
    if not numbers:
        return Swept()
    now = time.time()
    records = {number: layout.read_record(number) for number in numbers}
    moments = {number: layout.record_path(number).stat().st_mtime for number in numbers}
    newest = records[numbers[-1]]
    # A record counts as in use until the grace after its successor.
    in_use = [newest] + [
        records[number] for number, successor in pairwise(numbers) if moments[successor] > now - grace_s
    ]
    versions = _sweep_versions(layout, in_use, moments, now, grace_s, abandoned_after_s)
    files = _sweep_files(layout, in_use, now - abandoned_after_s)
    old = numbers[:-RECORDS_KEPT]
    for number in old:
        layout.record_path(number).unlink(missing_ok=True)
    _sweep_temporaries(layout, now - abandoned_after_s)
    return Swept(versions, files, len(old))


def drop(layout: TableLayout) -> None:
    """Remove the table: out of sight in one step, then from disk."""
    if not layout.directory.exists():
        return
    namespace = layout.directory.parent
    layout.directory.rename(namespace / f".dropped-{secrets.token_hex(8)}")
    durable.sync_directory(namespace)
    for dropped in namespace.glob(".dropped-*"):  # this one, and any that was cut short
        shutil.rmtree(dropped, ignore_errors=True)


def _sweep_versions(
    layout: TableLayout,
    in_use: list[TableRecord],
    moments: dict[int, float],
    now: float,
    grace_s: float,
    abandoned_after_s: float,
) -> int:
    kept = {name for record in in_use for name in (record.directory, record.letters_directory)}
    kept.add(layout.current_version())
    removed = 0
    for name, number in layout.version_directories().items():
        if name in kept:
            continue
        later = [moment for other, moment in moments.items() if other > number]
        modified = (layout.directory / name).stat().st_mtime
        # Named by no record in use. With a later record, it was superseded by that one at the latest, or it
        # lost its number; without one, a writer may be about to commit it.
        limit = now - grace_s if later else now - abandoned_after_s
        if max(modified, min(later, default=modified)) <= limit:
            layout.remove_version(name)
            removed += 1
    return removed


def _sweep_files(layout: TableLayout, in_use: list[TableRecord], modified_before: float) -> int:
    named: set[str] = set()
    for record in in_use:
        named.update(file.name for file in record.files)
        named.update(record.dead_letters.names)
        if record.load is not None:
            named.update(file.name for file in record.load.files)
            named.update(record.load.dead_letters.files)
    removed = 0
    for directory in (layout.files, layout.dead_letters):
        for path in directory.iterdir() if directory.exists() else ():
            if path.name not in named and _is_older(path, modified_before):
                path.unlink(missing_ok=True)
                removed += 1
    return removed


def _sweep_temporaries(layout: TableLayout, modified_before: float) -> None:
    leftovers = [*layout.directory.glob(".current.*"), *layout.commits.glob(".*.tmp")]
    for path in leftovers:
        if _is_older(path, modified_before):
            path.unlink(missing_ok=True)
    for path in layout.staging.iterdir() if layout.staging.exists() else ():
        if _is_older(path, modified_before):
            shutil.rmtree(path, ignore_errors=True)


def _is_older(path: Path, moment: float) -> bool:
    try:
        return path.lstat().st_mtime <= moment
    except FileNotFoundError:
        return False
