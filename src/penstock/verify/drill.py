"""From buckets that differ to rows and columns: what is missing, what is extra, what differs and where.

Rows of both sides are paired by their keys. Equal ones cancel each other first, so that of a key that the
table holds twice the wrong row is left, or one of two right ones. Then a key that is left on both sides is a
row that differs, and one that is left on a single side is missing or extra.

Only so many buckets are looked into that they have about `ROWS_MAX` rows; those stay on disk, mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.verify_report import ColumnDifference, Difference
from penstock.lake.keys import flat
from penstock.lake.printing import print_values
from penstock.verify.canonical import RowHashes, Secret, hash_values
from penstock.verify.digest import Buckets, Digest
from penstock.verify.sip_kernels import Hashes
from penstock.verify.tasks import HASH_COLUMNS

ROWS_MAX = 100_000
Places = NDArray[np.int64]


def to_look_into(source: Digest, table: Digest, differing: Buckets) -> Buckets:
    """As many of the buckets that differ as have about `ROWS_MAX` rows, at least one."""
    rows = np.maximum(source.rows, table.rows)[differing]
    fitting = int(np.searchsorted(np.cumsum(rows), ROWS_MAX, side="right"))
    return differing[: max(1, fitting)]


@dataclass(frozen=True, slots=True)
class Picked:
    """Rows of one side, with their hashes."""

    rows: pa.Table
    hashes: RowHashes

    @classmethod
    def read(cls, paths: Sequence[Path], columns: Sequence[str], types: Sequence[pa.DataType]) -> Picked:
        parts = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in paths]
        if not parts:
            nothing = np.zeros(0, np.uint64)
            empty = pa.table([pa.array([], kind) for kind in types], names=list(columns))
            return cls(empty, RowHashes(*[nothing] * HASH_COLUMNS))
        whole = pa.concat_tables(parts)
        words = [flat(whole.column(len(columns) + n)).to_numpy() for n in range(HASH_COLUMNS)]
        return cls(whole.select(list(range(len(columns)))), RowHashes(*words))


@dataclass(frozen=True, slots=True)
class Found:
    """Places of rows: of the source's, of the table's, and of both in pairs."""

    missing: Places
    extra: Places
    different: tuple[Places, Places]


def pair(source: RowHashes, table: RowHashes) -> Found:
    rows_left = _cancel(_numbers(source, table, whole=True), len(source))
    keys = _numbers(source, table, whole=False)
    left, right = (np.flatnonzero(part) for part in (rows_left[: len(source)], rows_left[len(source) :]))
    left_keys, right_keys = keys[left], keys[len(source) + right]
    # Of a key that is left several times, the first here is paired with the first there.
    left_marks = left_keys * (len(keys) + 1) + _rank(left_keys)
    right_marks = right_keys * (len(keys) + 1) + _rank(right_keys)
    _, here, there = np.intersect1d(left_marks, right_marks, assume_unique=True, return_indices=True)
    return Found(
        np.delete(left, here),
        np.delete(right, there),
        (left[here].astype(np.int64), right[there].astype(np.int64)),
    )


def _numbers(source: RowHashes, table: RowHashes, *, whole: bool) -> NDArray[np.int64]:
    """A number for each row of both sides, equal where the row is, or its key."""
    names = ("key_high", "key_low", "row_high", "row_low") if whole else ("key_high", "key_low")
    return _numbered([np.concatenate([getattr(source, n), getattr(table, n)]) for n in names])


def _numbered(columns: Sequence[Hashes]) -> NDArray[np.int64]:
    """A number for each row of these words, equal where all of them are."""
    words = np.stack(columns, axis=1)
    if not words.size:
        return np.zeros(0, np.int64)
    row = np.dtype((np.void, words.itemsize * len(columns)))
    as_bytes = np.ascontiguousarray(words).view(row).reshape(-1)
    return np.unique(as_bytes, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _cancel(numbers: NDArray[np.int64], split: int) -> NDArray[np.bool_]:
    """Which rows are left when each row of one side has taken an equal one of the other with it."""
    count = int(numbers.max()) + 1 if numbers.size else 0
    here, there = numbers[:split], numbers[split:]
    common = np.minimum(np.bincount(here, minlength=count), np.bincount(there, minlength=count))
    return np.concatenate([_rank(here) >= common[here], _rank(there) >= common[there]])


def _rank(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each, how many equal ones come before it."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.r_[True, ordered[1:] != ordered[:-1]] if ordered.size else np.zeros(0, np.bool_)
    first = np.maximum.accumulate(np.where(starts, np.arange(ordered.size), 0))
    ranks = np.empty(numbers.size, np.int64)
    ranks[order] = np.arange(ordered.size) - first
    return ranks


def of_same_keys(source: RowHashes, table: RowHashes, places: Places) -> tuple[Places, Places]:
    """Of the keys of the table's rows at `places`: the source's rows, and of those that it has none of, the
    first row of each in the table."""
    keys = _numbers(source, table, whole=False)
    here, there = keys[: len(source)], keys[len(source) + places]
    _, first = np.unique(there, return_index=True)
    is_gone = ~np.isin(there[first], here)
    return np.flatnonzero(np.isin(here, there)), places[first[is_gone]]


def without_keys(places: Places, hashes: RowHashes, known: tuple[Hashes, Hashes]) -> Places:
    """Those of the places whose keys are not among the known ones.

    There may be millions of known keys and few places, so the known are looked up in those: each takes some
    bytes more for the moment, and no object of Python's.
    """
    if not known[0].size or not places.size:
        return places
    high, low = hashes.key_high[places], hashes.key_low[places]
    there = np.unique(low)
    near = there[np.minimum(np.searchsorted(there, known[1]), there.size - 1)] == known[1]
    numbers = _numbered([np.concatenate([high, known[0][near]]), np.concatenate([low, known[1][near]])])
    return places[~np.isin(numbers[: places.size], numbers[places.size :])]


def columns_in_which(
    source: Picked, table: Picked, pairs: tuple[Places, Places], key_width: int, secret: Secret
) -> dict[str, NDArray[np.bool_]]:
    """For each column in which some pair differs, which pairs do."""
    masks = {}
    for name in source.rows.column_names[key_width:]:
        here, there = (
            hash_values(flat(side.rows.column(name)).take(pa.array(places)), secret)
            for side, places in ((source, pairs[0]), (table, pairs[1]))
        )
        if (differs := here != there).any():
            masks[name] = differs
    return masks


def describe(
    source: Picked,
    table: Picked,
    found: Found,
    masks: dict[str, NDArray[np.bool_]],
    key: Sequence[str],
    limit: int,
) -> tuple[Difference, ...]:
    """The first `limit` of all, some of each kind if there are."""
    kinds = {
        "missing": found.missing.size,
        "extra": found.extra.size,
        "different": found.different[0].size,
    }
    room = _shares(list(kinds.values()), limit)
    missing = [Difference("missing", each) for each in _keys(source, found.missing[: room[0]], key)]
    extra = [Difference("extra", each) for each in _keys(table, found.extra[: room[1]], key)]
    here, there = found.different[0][: room[2]], found.different[1][: room[2]]
    keys = _keys(source, here, key)
    values = {name: (_texts(source, name, here), _texts(table, name, there)) for name in masks}
    different = [
        Difference(
            "different",
            keys[row],
            tuple(
                ColumnDifference(name, values[name][0][row], values[name][1][row])
                for name, mask in masks.items()
                if mask[row]
            ),
        )
        for row in range(len(keys))
    ]
    return (*missing, *extra, *different)


def _shares(counts: Sequence[int], limit: int) -> list[int]:
    """How many of each kind to tell: a third of the room each, and what one leaves for the others."""
    shares = [min(count, limit // len(counts)) for count in counts]
    for index, count in enumerate(counts):
        shares[index] += min(count - shares[index], limit - sum(shares))
    return shares


def _keys(side: Picked, places: Places, key: Sequence[str]) -> list[dict[str, str | None]]:
    columns = {name: _texts(side, name, places) for name in key}
    return [{name: texts[row] for name, texts in columns.items()} for row in range(len(places))]


def _texts(side: Picked, name: str, places: Places) -> list[str | None]:
    texts: list[Any] = print_values(flat(side.rows.column(name)).take(pa.array(places))).to_pylist()
    return texts
