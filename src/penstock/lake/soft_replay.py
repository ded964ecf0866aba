"""The history of each key in a table that keeps deleted rows: which version it shows, and when that ended.

As in `replay`, the *version* of a key is the number of a change in the batch, or `TARGET` (the row that the
table held before it), or `NOTHING` (no row: the newest version does not fit the table). Its *end* is `LIVE`,
the number of the change that deleted it or moved it to another key, or the number of changes plus that of the
truncate that took it.

A truncate ends every live row, touched or not. Instead of going over all keys at each, a key's rows are
looked at when it is touched again, and once more at the end: the first truncate behind the last touch ended
them.

The *predecessor* of an update is the live version that it replaced. A version that has ended is none: while
the row was out of the stream's sight, its values may have changed.

Cost per million changes: 0.02 CPU-seconds (`replay_last`), 0.05 (`replay_queues`), however many truncates.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.lake.replay import NOTHING, TARGET, take_oldest

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
#: Version and end of each key, predecessor of each change.
History = tuple[Numbers, Numbers, Numbers]

LIVE = -1

_INSERT = ord("i")
_UPDATE = ord("u")


def coming_truncates(truncates: Numbers, changes: int) -> Numbers:
    """By number of changes so far, which truncate comes next; `truncates`: how many changes precede each."""
    coming: Numbers = np.searchsorted(truncates, np.arange(changes + 1)).astype(np.int64)
    return coming


@numba.njit(cache=True, nogil=True)
def replay_last(
    op: NDArray[np.uint8],
    old: Numbers,
    new: Numbers,
    bad: Flags,
    keys: int,
    truncates: Numbers,
    coming: Numbers,
) -> History:
    """For an immediate key, which has at most one live row at any moment."""
    size = op.size
    version = np.full(keys, TARGET, np.int64)
    end = np.full(keys, LIVE, np.int64)
    touched = np.full(keys, -1, np.int64)
    predecessor = np.full(size, NOTHING, np.int64)
    for i in range(size):
        if op[i] != _INSERT:
            key = old[i]
            if end[key] == LIVE:
                end[key] = _truncated(touched[key], i, truncates, coming)
            if end[key] == LIVE:
                if op[i] == _UPDATE:
                    predecessor[i] = version[key]
                if op[i] != _UPDATE or new[i] != key:
                    end[key] = i
            touched[key] = i
        if op[i] == _INSERT or op[i] == _UPDATE:
            key = new[i]
            version[key] = NOTHING if bad[i] else i
            end[key] = LIVE
            touched[key] = i
    for key in range(keys):
        if end[key] == LIVE:
            end[key] = _truncated(touched[key], size, truncates, coming)
    return version, end, predecessor


@numba.njit(cache=True, nogil=True)
def replay_queues(
    op: NDArray[np.uint8],
    old: Numbers,
    new: Numbers,
    bad: Flags,
    existed: NDArray[np.int8],
    truncates: Numbers,
    coming: Numbers,
) -> History:
    """For a deferrable key, whose live rows form a queue; `existed` (1 or 0): keys with a live row before."""
    size, keys = op.size, existed.size
    # Rows of the batch are the nodes 0 … size - 1, the table's own row of key k is node size + k.
    own = np.arange(size, size + keys)
    following = np.full(size + keys, NOTHING, np.int64)
    oldest = np.where(existed == 1, own, NOTHING)
    newest = oldest.copy()
    left = own.copy()  # the version that ended last; before all, the table's own
    end = np.full(keys, LIVE, np.int64)
    touched = np.full(keys, -1, np.int64)
    predecessor = np.full(size, NOTHING, np.int64)
    for i in range(size):
        if op[i] != _INSERT:
            key = old[i]
            _clear_if_truncated(key, i, oldest, newest, left, end, touched, truncates, coming)
            taken = take_oldest(key, oldest, newest, following)
            predecessor[i] = taken
            if taken != NOTHING and (op[i] != _UPDATE or new[i] != key):
                left[key] = taken if taken != TARGET else own[key]
                end[key] = i
        if op[i] == _INSERT or op[i] == _UPDATE:
            key = new[i]
            _clear_if_truncated(key, i, oldest, newest, left, end, touched, truncates, coming)
            if newest[key] == NOTHING:
                oldest[key] = i
            else:
                following[newest[key]] = i
            newest[key] = i
    version = np.full(keys, TARGET, np.int64)
    for key in range(keys):
        _clear_if_truncated(key, size, oldest, newest, left, end, touched, truncates, coming)
        shown = left[key]
        if newest[key] != NOTHING:
            shown = newest[key]
            end[key] = LIVE
        if shown < size:
            version[key] = NOTHING if bad[shown] else shown
    return version, end, predecessor


@numba.njit(cache=True, nogil=True)
def _clear_if_truncated(
    key: int,
    now: int,
    oldest: Numbers,
    newest: Numbers,
    left: Numbers,
    end: Numbers,
    touched: Numbers,
    truncates: Numbers,
    coming: Numbers,
) -> None:
    """Ends the live rows of a key that is touched, if a truncate came since it last was."""
    if newest[key] != NOTHING:
        truncated = _truncated(touched[key], now, truncates, coming)
        if truncated != LIVE:
            left[key] = newest[key]
            end[key] = truncated
            oldest[key] = NOTHING
            newest[key] = NOTHING
    touched[key] = now


@numba.njit(cache=True, nogil=True)
def _truncated(touched: int, now: int, truncates: Numbers, coming: Numbers) -> np.int64:
    """The end that a truncate behind change `touched` and before change `now` made, or LIVE."""
    number = coming[touched + 1]
    if number < truncates.size and truncates[number] <= now:
        return np.int64(coming.size - 1 + number)
    return np.int64(LIVE)
