"""When a table is put right where it differs, and when it is better loaded."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.verify import differences
from penstock.verify.digest import Digest
from penstock.verify.outcome import Digests


def digests(rows: int, buckets: int, differing: int) -> Digests:
    """Tables of so many rows, spread evenly, of which so many buckets differ in one row."""
    source, table = Digest.empty(buckets), Digest.empty(buckets)
    for side in (source, table):
        side.rows[:] = rows // buckets
    source.high[:differing] += np.uint64(1)
    return Digests(source, table, 0)


@pytest.mark.parametrize(
    ("rows", "buckets", "differing", "bytes_per_row", "why"),
    [
        (65_536, 2048, 2048, 100, None),  # a small table, all of it
        (1 << 24, 1 << 19, 1000, 100, None),
        (1 << 24, 1 << 19, 30_000, 100, None),
        (1 << 24, 1 << 19, 40_000, 100, "too many to look into"),
        (1 << 24, 1 << 19, 1 << 19, 100, "more than a third"),
        (1 << 19, 1 << 14, 1 << 14, 100, "more than a third"),
        (1 << 24, 1 << 19, 30_000, 100_000, "its rows are long"),
        (65_536, 2048, 2048, 100_000, "its rows are long"),
        (1 << 24, 1 << 19, 0, 100_000, None),
    ],
)
def test_what_is_looked_into_is_bounded(
    rows: int, buckets: int, differing: int, bytes_per_row: int, why: str | None
) -> None:
    found = digests(rows, buckets, differing)
    told = differences.too_much(found, found.source.differing(found.table), rows * bytes_per_row)
    assert told is None if why is None else why in str(told)
