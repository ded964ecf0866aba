"""One stream's comparison: what is compared, in which columns, cut into tasks.

The columns are those that the table has at the position and the source has too, under the same name and with
the same values; a column that the source has altered since the last change that the log brought is told by
name instead. The key is always among them.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.core.schema import TableSchema
from penstock.lake.session import balanced
from penstock.lake.target import Target
from penstock.sources.base import ChunkReading, HeldTable, ReadingSession, TableReading
from penstock.sources.chunk import ChunkMethod, PlannedChunk
from penstock.sources.tables import SourceLeaf, SourceTable
from penstock.sources.types import common_type, types_of
from penstock.verify.canonical import Secret
from penstock.verify.digest import BUCKETS_MAX, buckets_for
from penstock.verify.sampling import KeyRanges, draw
from penstock.verify.sides import Side, SourceSide, TableFile, TableSide
from penstock.verify.tasks import Hashing
from penstock.verify.view import NotComparableError, View

#: Of so many chunks one is read as the source prints it, which takes it longer; at least one of a table.
PRINTED = 8
LIGHT_TABLES_MAX = 64
LIGHT_ROWS_MAX = 100_000  # of both sides; what is more is worth a Spark session
LIGHT_BYTES_MAX = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides in shares, with how much work each share is."""

    name: str
    source: tuple[Side, ...]
    table: tuple[Side, ...]
    weights: tuple[int, ...]  # of the source's shares, then of the table's
    hashing: Hashing
    target: Target
    columns: tuple[str, ...]
    key: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # columns

    @property
    def sides(self) -> tuple[Side, ...]:
        return (*self.source, *self.table)


@dataclass(frozen=True, slots=True)
class Under:
    """What the source's rows are read under: a snapshot that tasks take over wherever they run, or one that
    sessions of this process hold. `reader`: what connections are called at the source. `rows_per_second`: of
    each share of the rows; None: no limit."""

    reading: TableReading
    snapshot: str = ""
    held: HeldTable | None = None
    reader: str = "penstock verify"
    rows_per_second: float | None = None

    def chunk(self, chunk: PlannedChunk, leaf: SourceLeaf, method: ChunkMethod) -> ChunkReading:
        if self.held is not None:
            return self.held.chunk(chunk)
        return self.reading.chunk(chunk, leaf, method, self.snapshot, reader=self.reader)


@dataclass(frozen=True, slots=True)
class Cut:
    """What is read of the source: chunks, all of them or those of a sample.

    A sample has `ranges` of the key, by which the table is read as well, or is a `share` of the hashed keys.
    """

    chunks: Sequence[PlannedChunk]
    method: ChunkMethod = "ctid"
    ranges: KeyRanges | None = None
    share: float = 1.0

    @classmethod
    def of(
        cls, session: ReadingSession, reading: TableReading, info: SourceTable, rows: int, sample: float
    ) -> Cut:
        """`rows`: of a chunk; `sample`: the part that is wanted."""
        if sample < 1.0 and (drawn := draw(session, reading, info, sample, random.SystemRandom())):
            return cls(drawn[0], "key", drawn[1])
        # Where no snapshot is shared, the table as it lies is one chunk.
        method = reading.method_for(info, "key" if reading.finds_place else "ctid")
        return cls(session.plan_chunks(info, method, rows_per_chunk=rows), method, share=sample)


def is_light(tables: int, rows: int, size: int) -> bool:
    """Whether so many tables, with so many rows, are compared in this process; `size`: at the source."""
    return tables <= LIGHT_TABLES_MAX and rows <= LIGHT_ROWS_MAX and size <= LIGHT_BYTES_MAX


def are_light(views: Iterable[View], source_bytes: int = 0) -> bool:
    held = list(views)
    files = [file for view in held for file in view.files]
    size = max(source_bytes, sum(file.bytes for file in files))
    return is_light(len(held), sum(file.rows for file in files), size)


def compare_with_source(
    info: SourceTable,
    view: View,
    under: Under,
    cut: Cut,
    shares: int,
    *,
    buckets_max: int = BUCKETS_MAX,
    secret: Secret | None = None,
) -> Comparison:
    chunks, sample = cut.chunks, cut.share
    schema, left_out = comparable(view.target.schema, info.schema)
    target = replace(view.target, schema=schema)
    key = tuple(target.key)
    if not key:
        raise NotComparableError("it has no key to tell its rows by")
    columns = (*key, *(name for name in target.names if name not in key))
    leaves = {str(leaf.stream): leaf for leaf in info.leaves}
    # The file nodes that the settled catalog had, as for a load.
    planned = [replace(chunk, filenode=leaves[chunk.leaf].filenode) for chunk in chunks]
    printed = frozenset(random.sample(range(len(planned)), -(-len(planned) // PRINTED)))
    readings = [
        (under.chunk(chunk, leaves[chunk.leaf], cut.method), index in printed)
        for index, chunk in enumerate(planned)
    ]
    readers = shares if under.held is None else under.held.readers
    source_shares = balanced([max(1, chunk.estimated_rows) for chunk in planned], min(readers, len(planned)))
    file_shares = balanced([file.rows for file in view.files], min(shares, len(view.files)))
    rows = max(info.estimated_rows, sum(file.rows for file in view.files))
    return Comparison(
        name=str(info.stream),
        source=tuple(
            SourceSide(
                tuple(readings[index] for index in share),
                target,
                columns,
                len(key),
                is_held=under.held is not None,
                rows_per_second=under.rows_per_second,
            )
            for share in source_shares
        ),
        table=tuple(
            TableSide(_files(view.files, share), view.target, columns, len(key), ranges=cut.ranges)
            for share in file_shares
        ),
        # The source's rows pass a server and a connection.
        weights=(
            *(2 * sum(max(1, planned[index].estimated_rows) for index in share) for share in source_shares),
            *(sum(view.files[index].rows for index in share) for share in file_shares),
        ),
        hashing=Hashing(secret or new_secret(), buckets_for(int(rows * sample), buckets_max), sample),
        target=view.target,
        columns=columns,
        key=key,
        left_out=left_out,
    )


def _files(files: Sequence[TableFile], share: Sequence[int]) -> tuple[TableFile, ...]:
    return tuple(files[index] for index in share)


def new_secret() -> tuple[int, int]:
    return secrets.randbits(64), secrets.randbits(64)


def comparable(held: TableSchema, source: TableSchema) -> tuple[TableSchema, tuple[str, ...]]:
    """The columns of the table's that the source has as well, and the names of those that one of them has
    not, or has otherwise: also of those that took over values of another, which older rows have there."""
    there = {column.attribute_number: column for column in source.columns}
    same, left_out = [], []
    for column in held.columns:
        now = there.pop(column.attribute_number, None)
        is_same = now is not None and now.name == column.name and types_of(now).keeps_values(column, now)
        if is_same and not column.moved_from:
            same.append(column)
        else:
            left_out.append(column.name)
    left_out += [column.name for column in there.values() if column.name not in left_out]
    if left_out:  # what has no place in other columns depends on which there are
        left_out += [column.name for column in same if common_type(column).is_rest]
        same = [column for column in same if not common_type(column).is_rest]
    if lost := [name for name in held.key if name in left_out]:
        raise NotComparableError(
            f"column {lost[0]} of its key changed at the source; run `penstock sync` first"
        )
    return replace(held, columns=tuple(same)), tuple(left_out)
