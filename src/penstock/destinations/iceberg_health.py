"""How well an Iceberg table is, and what is due to it: figures in, decisions out.

The figures are Iceberg's own: the totals in the newest snapshot's summary and, for tables of more than a few
files, its sums per partition. No data file is opened.

A file is *spare* if the rows of its partition would fit into files of the least size that compaction leaves
alone (`LEFT_ALONE` of the target) without it. `SPARE_MIN` spare files mean that at least as many are below
that size, and from that many on Iceberg's planner takes them: so what is called due here is never refused
there, and what is done is not due again. The same for deletes: if a part `delete_ratio` of all rows is
deleted, some file has that part of its own deleted, and from that bound on the planner takes a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.core.report import TableHealth
from penstock.destinations.iceberg import IcebergTable
from penstock.destinations.iceberg_java import each_of, iceberg_errors
from penstock.destinations.iceberg_staging import MAIN

Work = Literal["data files", "delete files", "manifests", "snapshots", "orphans"]

#: Compaction leaves a file alone from this part of the target size on (Iceberg's own default).
LEFT_ALONE = 0.75
#: Fewer files than that are worth no commit of their own.
SPARE_MIN = 5
#: ... nor are fewer bytes of deleted rows, as a part of the target size.
WASTE_MIN = 0.25
SPARE_MANIFESTS_MIN = 20
MANIFEST_BYTES = 8 * 1024 * 1024
#: By schedule, snapshots go when the oldest is that much too old, or there are that many: many in one turn.
EXPIRY_SLACK = 1.2

_MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """What is left alone."""

    target_file_bytes: int
    small_file_ratio: float
    delete_ratio: float
    snapshot_age_max_s: float
    snapshots_min: int
    orphan_age_s: float
    snapshots_max: int
    readers_grace_s: float  # before that no snapshot goes for there being too many


def due(health: TableHealth, limits: Limits, *, by_hand: bool, orphans_s: float | None) -> tuple[Work, ...]:
    """What should be done. `orphans_s`: since when nobody looked for orphans; None: not known.

    By hand, snapshots go as soon as they may, and orphans are looked for always.
    """
    work: list[Work] = []
    if files_are_due(health, limits):
        work.append("data files")
    elif deletes_are_due(health, limits):
        work.append("delete files")
    if health.spare_manifests >= SPARE_MANIFESTS_MIN:
        work.append("manifests")
    if health.snapshots > limits.snapshots_min and _may_expire(
        health, limits, 1 if by_hand else EXPIRY_SLACK
    ):
        work.append("snapshots")
    if by_hand or (orphans_s is not None and orphans_s >= limits.orphan_age_s):
        work.append("orphans")
    return tuple(work)


def _may_expire(health: TableHealth, limits: Limits, slack: float) -> bool:
    too_old = health.oldest_snapshot_age_s >= slack * limits.snapshot_age_max_s
    too_many = health.snapshots > slack * limits.snapshots_max
    return too_old or (too_many and health.oldest_snapshot_age_s >= slack * limits.readers_grace_s)


def files_are_due(health: TableHealth, limits: Limits) -> bool:
    small = health.small_file_ratio > 0 and health.small_file_ratio >= limits.small_file_ratio
    return small or _has_many_deletes(health, limits)


def deletes_are_due(health: TableHealth, limits: Limits, rewritten: int | None = None) -> bool:
    """Whether files of deletes should be merged, and those that concern no file any more dropped.

    After so many data files were `rewritten`, deletes of theirs may be left over: few enough are looked
    through at once, the rest when they are many. If none had to be, many deletes concern no file any more.
    """
    files = health.delete_files
    too_many = files >= SPARE_MIN and files >= 2 * health.data_files
    if rewritten is None:
        return too_many
    return 0 < files <= rewritten or too_many or _has_many_deletes(health, limits)


def _has_many_deletes(health: TableHealth, limits: Limits) -> bool:
    wasted = health.delete_ratio * health.file_bytes >= WASTE_MIN * limits.target_file_bytes
    return health.delete_ratio >= limits.delete_ratio and (health.delete_files >= SPARE_MIN or wasted)


def small_file_ratio(partitions: Iterable[tuple[int, int]], target_file_bytes: int) -> float:
    """The part of all files that compaction would spare, by files and bytes of each partition."""
    total = spare = 0
    for files, size in partitions:
        total += files
        needed = math.ceil(size / (LEFT_ALONE * target_file_bytes))
        spare += files - needed if files - needed >= SPARE_MIN else 0
    return spare / total if total else 0.0


def spare_manifests(lengths: Sequence[int]) -> int:
    return len(lengths) - math.ceil(sum(lengths) / MANIFEST_BYTES)


def read_health(table: IcebergTable, target_file_bytes: int, now_s: float) -> TableHealth | None:
    """The figures of what readers see; None if there is no table to see."""
    metadata = table.handle.metadata()
    head = None if metadata is None else metadata.head(MAIN)
    if metadata is None or head is None:
        return None
    with iceberg_errors("looking at the table", table.stream):
        snapshot = metadata.java.snapshot(head)
        total = _totals(snapshot.summary())
        # A few files have none to spare: their partitions are not asked for.
        partitions = _partitions(table) if total["data-files"] > SPARE_MIN else ()
        snapshots = metadata.java.snapshots()
        oldest_s = int(snapshots.get(0).timestampMillis()) / _MILLISECONDS
        lengths = [int(each.length()) for each in snapshot.allManifests(table.handle.table.io())]
        return TableHealth(
            data_files=total["data-files"],
            file_bytes=total["files-size"],
            small_file_ratio=small_file_ratio(partitions, target_file_bytes),
            delete_files=total["delete-files"],
            delete_ratio=total["position-deletes"] / max(total["records"], 1),
            spare_manifests=spare_manifests(lengths),
            snapshots=int(snapshots.size()),
            oldest_snapshot_age_s=round(max(now_s - oldest_s, 0.0), 3),
        )


def _totals(summary: Any) -> dict[str, int]:
    names = ("data-files", "files-size", "delete-files", "records", "position-deletes")
    return {name: int(summary.get(f"total-{name}") or 0) for name in names}


def _partitions(table: IcebergTable) -> list[tuple[int, int]]:
    """Files and bytes of each partition, summed by Iceberg from its manifests."""
    java = table.catalog.java
    kind = java.iceberg("MetadataTableType").PARTITIONS
    sums = java.iceberg("MetadataTableUtils").createMetadataTableInstance(table.handle.table, kind)
    columns = [str(field.name()) for field in sums.schema().columns()]
    of_files, of_bytes = columns.index("file_count"), columns.index("total_data_file_size_in_bytes")
    any_type = java.jvm.java.lang.Class.forName("java.lang.Object")
    found: list[tuple[int, int]] = []
    with each_of(sums.newScan().planFiles()) as tasks:
        for task in tasks:
            with each_of(task.asDataTask().rows()) as rows:
                found += [
                    (int(row.get(of_files, any_type)), int(row.get(of_bytes, any_type))) for row in rows
                ]
    return found
