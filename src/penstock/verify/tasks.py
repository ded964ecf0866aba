"""What Spark tasks do for a comparison: digest a share of one side, and pick the rows of buckets that differ.

Cost of a digest per million rows of 11 columns: see `bench/verify.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.lake.session import of_this_attempt
from penstock.sources.chunk import TableRewrittenError
from penstock.verify.canonical import RowHashes, Secret, hash_rows
from penstock.verify.digest import Digest, bucket_of
from penstock.verify.sides import Block, Side, UnreadableFileError
from penstock.verify.sip_kernels import Flags, Hashes

_EVERYTHING = 1 << 64


@dataclass(frozen=True, slots=True)
class Hashing:
    """How rows are hashed, the same on both sides. `share` of the keys counts: a sample, by their hash."""

    secret: Secret
    buckets: int
    share: float = 1.0

    def rows(self, block: Block, key_width: int) -> tuple[RowHashes, Flags | None]:
        """The hashes of the rows that count, and which those are; None: all."""
        hashes = hash_rows(block.columns, key_width, self.secret)
        if self.share >= 1.0:
            return hashes, None
        kept = hashes.key_low < np.uint64(int(self.share * _EVERYTHING))
        return (
            RowHashes(
                hashes.key_high[kept], hashes.key_low[kept], hashes.row_high[kept], hashes.row_low[kept]
            ),
            kept,
        )


@dataclass(frozen=True, slots=True)
class DigestTask:
    side: Side
    hashing: Hashing


@dataclass(frozen=True, slots=True)
class DigestResult:
    digest: Digest
    unfit: int = 0
    table_rewritten: bool = False  # the source moved its rows: another snapshot is needed
    unreadable: str = ""  # a file of the table is; what to say of it


def digest_side(task: DigestTask) -> DigestResult:
    digest = Digest.empty(task.hashing.buckets)
    unfit = 0
    try:
        for block in task.side.blocks():
            unfit += block.unfit
            if block.rows:
                digest.add(task.hashing.rows(block, task.side.key_width)[0])
    except TableRewrittenError:
        return DigestResult(Digest.empty(task.hashing.buckets), table_rewritten=True)
    except UnreadableFileError as error:  # other tables are compared beside this one
        return DigestResult(Digest.empty(task.hashing.buckets), unreadable=str(error))
    return DigestResult(digest, unfit)


@dataclass(frozen=True, slots=True)
class PickTask:
    side: Side
    hashing: Hashing
    wanted: NDArray[np.bool_]  # of each bucket, whether its rows are picked
    path: Path
    keys: Path | None = None  # only hashes, of the rows of keys with one that is there (the low word)


@dataclass(frozen=True, slots=True)
class PickResult:
    """`path`: where the picked rows are, with their hashes; None: there were none."""

    path: Path | None
    is_void: bool = False  # the source rewrote the table, or a file of ours is gone: to be compared anew


HASH_COLUMNS = 4  # behind the columns of the comparison: key high and low, row high and low


def pick_rows(task: PickTask) -> PickResult:
    path = of_this_attempt(task.path)
    keys: Hashes | None = None if task.keys is None else np.load(task.keys)
    writer: pa.ipc.RecordBatchFileWriter | None = None
    try:
        for block in task.side.blocks():
            batch = _picked(block, task, keys)
            if batch is None:
                continue
            if writer is None:
                writer = pa.ipc.new_file(str(path), batch.schema)
            writer.write_batch(batch)
    except (TableRewrittenError, UnreadableFileError):
        return PickResult(None, is_void=True)
    finally:
        if writer is not None:
            writer.close()
    return PickResult(None if writer is None else path)


def _picked(block: Block, task: PickTask, keys: Hashes | None) -> pa.RecordBatch | None:
    if not block.rows:
        return None
    hashes, counted = task.hashing.rows(block, task.side.key_width)
    wanted = task.wanted[bucket_of(hashes.key_high, task.hashing.buckets)]
    if keys is not None:
        wanted &= np.isin(hashes.key_low, keys)
    if not wanted.any():
        return None
    names, columns = (task.side.columns, block.columns) if keys is None else ((), [])
    columns = columns if counted is None else _only(columns, counted)
    words = (hashes.key_high, hashes.key_low, hashes.row_high, hashes.row_low)
    arrays = [*_only(columns, wanted), *(pa.array(each[wanted]) for each in words)]
    names = (*names, *(f"penstock.hash.{number}" for number in range(HASH_COLUMNS)))
    return pa.RecordBatch.from_arrays(arrays, list(names))


def _only(columns: Sequence[pa.Array], kept: Flags) -> list[pa.Array]:
    mask = pa.array(kept)
    return [column.filter(mask) for column in columns]
