"""Compiled loops over the messages of streamed transactions (see `streamed`)."""

from __future__ import annotations

import numpy as np

from penstock.compiling import compiled
from penstock.sources.postgres.pgoutput_kernels import Bytes, Ints, big_endian_32

_WAL_DATA = ord("w")
_HEADER = 25  # 'w', start, end, send time
_START, _STOP, _COMMIT, _ABORT = (ord(letter) for letter in "SEcA")
_RELATION, _INSERT, _UPDATE, _DELETE, _TRUNCATE = (ord(letter) for letter in "RIUDT")
_ID = 4  # bytes of a transaction id, behind the letter


@compiled()
def control_messages(buffer: Bytes, ends: Ints) -> Ints:
    """The messages that begin, interrupt, end or roll back a streamed transaction."""
    found = np.empty(len(ends), np.int64)
    count = 0
    start = np.int64(0)
    for message in range(len(ends)):
        if buffer[start] == _WAL_DATA and buffer[start + _HEADER] in (_START, _STOP, _COMMIT, _ABORT):
            found[count] = message
            count += 1
        start = ends[message]
    return found[:count].copy()


@compiled()
def without_ids(buffer: Bytes, ends: Ints, rolled_back: Ints) -> tuple[Bytes, Ints]:
    """The messages as if they had not been streamed: without the id of their (sub-)transaction.

    Left out: changes of sub-transactions in `rolled_back` (sorted), and messages that are neither a change
    nor a relation's description.
    """
    kept = np.empty(len(buffer), np.uint8)
    kept_ends = np.empty(len(ends), np.int64)
    count, used = 0, np.int64(0)
    start = np.int64(0)
    for message in range(len(ends)):
        end = ends[message]
        letter = buffer[start + _HEADER] if buffer[start] == _WAL_DATA else 0
        keep = letter == _RELATION
        if letter in (_INSERT, _UPDATE, _DELETE, _TRUNCATE):
            number = big_endian_32(buffer, start + _HEADER + 1)
            at = np.searchsorted(rolled_back, number)
            keep = at == len(rolled_back) or rolled_back[at] != number
        if keep:
            head = _HEADER + 1
            kept[used : used + head] = buffer[start : start + head]
            body = end - start - head - _ID
            kept[used + head : used + head + body] = buffer[start + head + _ID : end]
            used += head + body
            kept_ends[count] = used
            count += 1
        start = end
    return kept[:used].copy(), kept_ends[:count].copy()
