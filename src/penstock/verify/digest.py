"""What is known of one side of a comparison: for each bucket of keys, its rows and the sum of their hashes.

Digests of parts of a table add up to the digest of the whole, in any order, so every task has one of its own.
A bucket is the low bits of the hash of the key: all rows of a key are in one, on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.verify import sip_kernels as kernels
from penstock.verify.canonical import RowHashes
from penstock.verify.sip_kernels import Hashes

BUCKETS_MIN = 64
BUCKETS_MAX = 1 << 16  # of 24 bytes each
ROWS_PER_BUCKET = 32  # that is read again if a row of it differs; more where the table is longer
Buckets = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Digest:
    rows: NDArray[np.int64]
    high: Hashes
    low: Hashes

    @classmethod
    def empty(cls, buckets: int) -> Digest:
        assert buckets & (buckets - 1) == 0, "a power of two"
        return cls(np.zeros(buckets, np.int64), np.zeros(buckets, np.uint64), np.zeros(buckets, np.uint64))

    def add(self, hashes: RowHashes) -> None:
        kernels.add_rows(hashes.key_high, hashes.row_high, hashes.row_low, self.rows, self.high, self.low)

    def merge(self, other: Digest) -> None:
        self.rows[:] += other.rows
        self.high[:] += other.high
        self.low[:] += other.low

    def without(self, other: Digest) -> Digest:
        """The digest of the rows that are not in `other`, which are all among these."""
        return Digest(self.rows - other.rows, self.high - other.high, self.low - other.low)

    @property
    def total(self) -> int:
        return int(self.rows.sum())

    def differing(self, other: Digest) -> Buckets:
        """The buckets in which two sides differ."""
        differs = (self.rows != other.rows) | (self.high != other.high) | (self.low != other.low)
        return np.flatnonzero(differs)


def buckets_for(rows: int, most: int = BUCKETS_MAX) -> int:
    """How many buckets a table of about so many rows is cut into."""
    wanted = max(1, rows // ROWS_PER_BUCKET)
    return min(most, max(BUCKETS_MIN, 1 << (wanted - 1).bit_length()))


def bucket_of(key_high: Hashes, buckets: int) -> Buckets:
    return (key_high & np.uint64(buckets - 1)).astype(np.int64)
