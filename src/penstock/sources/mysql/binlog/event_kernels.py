"""Compiled pass over events: for each row its table and place, for each transaction its identity.

Rows are walked over without looking at values: a column is so many bytes wide, or says its length in so many
bytes. What a table looks like is found by the id in its events. A table map or a source of transactions that
is not known yet stops the pass; the caller makes it known (rare: once per table or source) and goes on.

A transaction begins with its global id, or with BEGIN where there is none. It ends with an XID event, COMMIT,
ROLLBACK, the preparation of an XA transaction, or, when no BEGIN was seen, with its only statement. One that
is open where the next begins, or another file, was being written when the server crashed: it never counted,
and ends where it began. Rows that cannot be walked over, of a type that is not known or of which the log has
parts only, are passed over as an event, which is told among what is rare.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.compiling import compiled
from penstock.sources.mysql.binlog.packet_kernels import (
    FLAGS_AT,
    HEADER,
    POSITION_AT,
    TYPE_AT,
    Bytes,
    Ints,
    Number,
    little_endian,
)
from penstock.word_kernels import address_of, load_word

QUERY, STOP, ROTATE, XID, FORMAT_DESCRIPTION, EXECUTE_LOAD = 2, 3, 4, 16, 15, 18
INCIDENT, TABLE_MAP, HEARTBEAT, HEARTBEAT_2 = 26, 19, 27, 41
WRITE_1, UPDATE_1, DELETE_1, WRITE_2, UPDATE_2, DELETE_2 = 23, 24, 25, 30, 31, 32
GTID, ANONYMOUS_GTID, GTID_TAGGED, XA_PREPARE, PARTIAL_UPDATE, PAYLOAD = 33, 34, 42, 38, 39, 40
MARIADB_GTID = 162
MARIADB_COMPRESSED_QUERY, MARIADB_COMPRESSED_FIRST, MARIADB_COMPRESSED_LAST = 165, 166, 171
_IGNORABLE = 0x80
_LENGTH_AT = 9

#: rows of the matrix of changes, a column for each
KIND, TABLE, ROW_AT, PRESENT_AT, TRANSACTION, ORDINAL = range(6)
#: columns of the matrix of transactions; SOURCE is -1 where there is no global id, BEGINS is in its file
SOURCE, NUMBER, COMMIT_TS, BEGINS = range(4)
#: how a transaction ended
COMMITTED, ROLLED_BACK, PREPARED, BY_STATEMENT, CUT = range(5)
#: rows of the array that carries a transaction over the cut between two batches
CARRY_STATE, CARRY_SOURCE, CARRY_NUMBER, CARRY_TS, CARRY_ORDINAL, CARRY_BEGINS = range(6)
OUTSIDE, IDENTIFIED, OPEN = range(3)
#: why the pass stopped
DONE, NEW_TABLE, NEW_SOURCE, UNKNOWN_TABLE, BAD_ROWS, UNKNOWN_EVENT = range(6)
#: in the place of how many columns a table has, if its rows cannot be walked over
UNREAD = -1

_DUMMY_TABLE = 0xFFFFFF
_MARIADB_STANDALONE, _MARIADB_COMPLETED_XA = 1, 128
_BEGIN, _COMMIT, _ROLLBACK = (np.frombuffer(word, np.uint8) for word in (b"BEGIN", b"COMMIT", b"ROLLBACK"))
_XA_START, _XA_END = (np.frombuffer(word, np.uint8) for word in (b"XA START", b"XA END"))
_SOURCE_MAX = 49  # a UUID and a tag


@compiled()
def length_encoded(buffer: Bytes, at: Number) -> tuple[Number, Number]:
    """A number of 1 to 9 bytes, and where it ends."""
    first = np.int64(buffer[at])
    if first < 251:
        return first, at + 1
    size = np.int64(2) if first == 252 else (np.int64(3) if first == 253 else np.int64(8))
    return little_endian(buffer, at + 1, size), at + 1 + size


@compiled()
def _variable(buffer: Bytes, at: Number) -> tuple[Number, Number]:
    """A number whose first byte's lowest bits, set ones up to a clear one, count the bytes that follow."""
    more = 0
    while more < 8 and (buffer[at] >> np.uint8(more)) & 1:
        more += 1
    if more == 8:
        return little_endian(buffer, at + 1, 8), at + 9
    value = np.uint64(0)
    for index in range(more + 1):
        value |= np.uint64(buffer[at + index]) << np.uint64(8 * index)
    return np.int64(value >> np.uint64(more + 1)), at + 1 + more


@compiled()
def _matches(buffer: Bytes, at: Number, end: Number, word: Bytes, whole: bool) -> bool:
    """Whether the text is `word`, or with `whole` unset begins with it, in either case of letters."""
    if end - at < len(word) or (whole and end - at != len(word)):
        return False
    for index in range(len(word)):
        letter = buffer[at + index]
        if 97 <= letter <= 122:
            letter -= np.uint8(32)
        if letter != word[index]:
            return False
    return True


@compiled()
def _grown(matrix: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    larger = np.empty((matrix.shape[0], 2 * matrix.shape[1]), np.int64)
    larger[:, : matrix.shape[1]] = matrix
    return larger


@compiled()
def count_present(buffer: Bytes, present_at: Number, columns: Number) -> Number:
    """How many columns an image has, by its event's bits."""
    present = 0
    for column in range(columns):
        present += (buffer[present_at + (column >> 3)] >> np.uint8(column & 7)) & 1
    return present


@compiled()
def _skip_image(
    buffer: Bytes,
    at: Number,
    end: Number,
    present_at: Number,
    present: Number,
    columns: Number,
    widths: Ints,
    first: Number,
) -> Number:
    """Where the row image at `at` ends; -1 if it does not fit before `end`."""
    nulls_at = at
    at += (present + 7) >> 3
    if at > end:
        return np.int64(-1)
    index = 0
    for column in range(columns):
        if present != columns and not (buffer[present_at + (column >> 3)] >> np.uint8(column & 7)) & 1:
            continue
        is_null = (buffer[nulls_at + (index >> 3)] >> np.uint8(index & 7)) & 1
        index += 1
        if is_null:
            continue
        width = widths[first + column]
        if width >= 0:
            at += width
        else:
            if at - width > end:
                return np.int64(-1)
            at += little_endian(buffer, at, -width) - width
        if at > end:
            return np.int64(-1)
    return at


@compiled()
def _skip_plain(
    source: Number, limit: Number, at: Number, end: Number, columns: Number, step: Number, last: Number
) -> Number:
    """The same for an image with all columns and no null, by strides; -1 for any other, and if unsure.

    By addresses of the buffer and of strides: see `row_kernels`.
    """
    left = columns
    while left > 0:
        if at > limit:
            return np.int64(-1)
        nulls = load_word(source + at)
        if left < 64:
            nulls &= (np.uint64(1) << np.uint64(left)) - np.uint64(1)
        if nulls != np.uint64(0):
            return np.int64(-1)
        at += min((left + 7) >> 3, 8)
        left -= 64
    while step < last:
        at += np.int64(load_word(step))
        if at > limit:
            return np.int64(-1)
        size = np.int64(load_word(step + 8))
        unused = np.uint64(64 - 8 * size)
        at += size + np.int64(load_word(source + at) << unused >> unused)
        step += 16
    at += np.int64(load_word(step))
    return at if at <= end else np.int64(-1)


@compiled()
def find_slot(slots: npt.NDArray[np.int64], table_id: Number) -> Number:
    """Where a table's id is or would be: spread by its lowest bits, the next free place is taken."""
    mask = slots.shape[0] - 1
    slot = table_id & mask
    while slots[slot, 1] >= 0 and slots[slot, 0] != table_id:
        slot = (slot + 1) & mask
    return slot


@compiled()
def _same_map(buffer: Bytes, at: Number, end: Number, bodies: Bytes, body_at: Number, size: Number) -> bool:
    if end - at != size:
        return False
    difference = np.uint8(0)
    for index in range(size):  # to the end: without a way out it is done 16 bytes at a time
        difference |= buffer[at + index] ^ bodies[body_at + index]
    return bool(difference == 0)


@compiled()
def _known_source(sources: Bytes, wanted: Bytes, size: Number) -> Number:
    for number in range(sources.shape[0]):
        if sources[number, 0] == size:
            index = 0
            while index < size and sources[number, 1 + index] == wanted[index]:
                index += 1
            if index == size:
                return np.int64(number)
    return np.int64(-1)


@compiled()
def _read_gtid(buffer: Bytes, at: Number, end: Number, name: Bytes) -> tuple[Number, Number, Number]:
    """MySQL's: its source's name into `name`; that one's length, the number, microseconds or 0."""
    for index in range(16):
        name[index] = buffer[at + 1 + index]
    number = little_endian(buffer, at + 17, 8)
    commit_ts: Number = np.int64(0)
    if end >= at + 49:
        commit_ts = little_endian(buffer, at + 42, 7)
        if commit_ts >> 55:  # another server committed it first, and when follows
            commit_ts = little_endian(buffer, at + 49, 7) if end >= at + 56 else commit_ts & ((1 << 55) - 1)
    return np.int64(16), number, commit_ts


@compiled()
def read_tagged_gtid(buffer: Bytes, at: Number, end: Number, name: Bytes) -> tuple[Number, Number, Number]:
    """The same with a tag: fields with numbers of their own, in order, some of them left out."""
    for _ in range(3):  # version, size, the last field that must be understood
        value, at = _variable(buffer, at)
    size: Number = np.int64(16)
    number: Number = np.int64(0)
    commit_ts: Number = np.int64(0)
    while at < end:
        field, at = _variable(buffer, at)
        if field == 1:
            for index in range(16):
                value, at = _variable(buffer, at)
                name[index] = np.uint8(value)
        elif field == 3:
            length, at = _variable(buffer, at)
            for index in range(min(length, _SOURCE_MAX - 16)):
                name[16 + index] = buffer[at + index]
            size = 16 + min(length, _SOURCE_MAX - 16)
            at += length
        else:
            value, at = _variable(buffer, at)
            if field == 2:
                number = value >> 1  # the lowest bit is the sign
            elif field in (6, 7):
                commit_ts = value
            elif field > 7:
                break
    return size, number, commit_ts


@compiled()
def _begins_at(buffer: Bytes, start: Number) -> Number:
    """Where in its file an event begins: where it ends, less its length there, with its checksum."""
    return little_endian(buffer, start + POSITION_AT, 4) - little_endian(buffer, start + _LENGTH_AT, 4)


@compiled()
def scan_events(  # noqa: PLR0912, PLR0915 - one pass, one loop: cutting it up would cost a pass each
    buffer: Bytes,
    starts: Ints,
    ends: Ints,
    first: int,
    last: int,
    carry: Ints,
    slots: npt.NDArray[np.int64],
    maps: npt.NDArray[np.int64],
    bodies: Bytes,
    widths: Ints,
    steps: npt.NDArray[np.int64],
    sources: Bytes,
    changes: npt.NDArray[np.int64],
) -> tuple[Any, ...]:
    """Events `first` to `last` (exclusive), or to the one that stopped the pass.

    `carry` is the transaction that is open at `first`, and is moved on. `slots` leads from a table's id to a
    row of `maps`: where its description is in `bodies` and how long, its first column in `widths`, how many,
    the first and the last of its strides in `steps`: bytes of fixed width, then of a length. `changes` is the
    matrix to fill; if it is too small there is another one.
    """
    count = last - first
    transactions = np.empty((count + 1, 4), np.int64)
    finished = np.empty((count, 4), np.int64)
    rare = np.full((count, 5), -1, np.int64)
    name = np.zeros(_SOURCE_MAX, np.uint8)
    found = ended = rares = 0
    size: Number
    commit_ts: Number
    transactions[0, SOURCE], transactions[0, NUMBER] = carry[CARRY_SOURCE], carry[CARRY_NUMBER]
    transactions[0, COMMIT_TS], transactions[0, BEGINS] = carry[CARRY_TS], carry[CARRY_BEGINS]
    current = 0
    state, ordinal = carry[CARRY_STATE], carry[CARRY_ORDINAL]
    source, limit, steps_at = address_of(buffer), len(buffer) - 8, address_of(steps)
    reason, number = DONE, first
    while number < last:
        start, end = starts[number], ends[number]
        kind = np.int64(buffer[start + TYPE_AT])
        at = start + HEADER
        how = np.int64(-1)
        if WRITE_1 <= kind <= DELETE_1 or WRITE_2 <= kind <= DELETE_2 or kind == PARTIAL_UPDATE:
            table_id = little_endian(buffer, at, 6)
            at += 8
            if kind >= WRITE_2:
                at += little_endian(buffer, at, 2)
            slot = find_slot(slots, table_id)
            table = slots[slot, 1]
            if table_id == _DUMMY_TABLE and table < 0:
                number += 1
                continue
            columns, at = length_encoded(buffer, at)
            if table < 0:
                reason = UNKNOWN_TABLE
                break
            if kind == PARTIAL_UPDATE or maps[table, 3] == UNREAD:
                rare[rares, 0], rare[rares, 1] = number, found
                rare[rares, 2], rare[rares, 3] = current, ordinal
                rare[rares, 4] = table
                rares += 1
                number += 1
                continue
            if maps[table, 3] != columns:
                reason = BAD_ROWS
                break
            first_column, bitmap = maps[table, 2], (columns + 7) >> 3
            present_at = at
            is_update = kind in (UPDATE_1, UPDATE_2)
            at += 2 * bitmap if is_update else bitmap
            letter = 117 if is_update else (105 if kind in (WRITE_1, WRITE_2) else 100)  # u, i, d
            present, new_at = count_present(buffer, present_at, columns), present_at + bitmap
            new_present = count_present(buffer, new_at, columns) if is_update else present
            first_step, last_step = steps_at + 16 * maps[table, 4], steps_at + 16 * maps[table, 5]
            while at < end:
                row_at, at = at, np.int64(-1)
                if present == columns:
                    at = _skip_plain(source, limit, row_at, end, columns, first_step, last_step)
                if at < 0:
                    at = _skip_image(buffer, row_at, end, present_at, present, columns, widths, first_column)
                if at >= 0 and is_update:
                    old_end, at = at, np.int64(-1)
                    if new_present == columns:
                        at = _skip_plain(source, limit, old_end, end, columns, first_step, last_step)
                    if at < 0:
                        at = _skip_image(
                            buffer, old_end, end, new_at, new_present, columns, widths, first_column
                        )
                if at <= row_at:
                    reason = BAD_ROWS
                    break
                if found == changes.shape[1]:
                    changes = _grown(changes)
                changes[KIND, found], changes[TABLE, found] = letter, table
                changes[ROW_AT, found], changes[PRESENT_AT, found] = row_at, present_at
                changes[TRANSACTION, found], changes[ORDINAL, found] = current, ordinal
                found += 1
                ordinal += 1
            if reason != DONE:
                break
        elif kind == TABLE_MAP:
            slot = find_slot(slots, little_endian(buffer, at, 6))
            table = slots[slot, 1]
            if table < 0 or not _same_map(buffer, at + 6, end, bodies, maps[table, 0], maps[table, 1]):
                reason = NEW_TABLE
                break
        elif kind in (GTID, ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID):
            if kind == MARIADB_GTID:
                size, sequence = np.int64(8), little_endian(buffer, at, 8)
                for index in range(4):
                    name[index] = buffer[at + 8 + index]  # the domain
                    name[4 + index] = buffer[start + 5 + index]  # the server
                commit_ts = np.int64(0)
            elif kind == GTID_TAGGED:
                size, sequence, commit_ts = read_tagged_gtid(buffer, at, end, name)
            else:
                size, sequence, commit_ts = _read_gtid(buffer, at, end, name)
            origin = np.int64(-1) if kind == ANONYMOUS_GTID else _known_source(sources, name, size)
            if origin < 0 and kind != ANONYMOUS_GTID:
                reason = NEW_SOURCE
                break
            if state == OPEN:
                finished[ended, 0], finished[ended, 1] = number - 1, current
                finished[ended, 2], finished[ended, 3] = transactions[current, BEGINS], CUT
                ended += 1
            current += 1
            transactions[current, SOURCE], transactions[current, NUMBER] = origin, sequence
            if commit_ts == 0:
                commit_ts = little_endian(buffer, start, 4) * 1_000_000
            transactions[current, COMMIT_TS] = commit_ts
            transactions[current, BEGINS] = _begins_at(buffer, start)
            state, ordinal = np.int64(IDENTIFIED), np.int64(0)
            if kind == MARIADB_GTID:
                flags = buffer[at + 12]
                if not flags & (_MARIADB_STANDALONE | _MARIADB_COMPLETED_XA):
                    state = np.int64(OPEN)
        elif kind == QUERY:
            text = at + 13 + np.int64(buffer[at + 8]) + little_endian(buffer, at + 11, 2) + 1
            begins = _matches(buffer, text, end, _BEGIN, True) or _matches(
                buffer, text, end, _XA_START, False
            )
            if begins:
                if state == OUTSIDE:
                    current += 1
                    transactions[current, SOURCE], transactions[current, NUMBER] = -1, 0
                    transactions[current, COMMIT_TS] = little_endian(buffer, start, 4) * 1_000_000
                    transactions[current, BEGINS] = _begins_at(buffer, start)
                    ordinal = np.int64(0)
                state = np.int64(OPEN)
            elif _matches(buffer, text, end, _COMMIT, True):
                how = np.int64(COMMITTED)
            elif _matches(buffer, text, end, _ROLLBACK, True):
                how = np.int64(ROLLED_BACK)
            elif not _matches(buffer, text, end, _XA_END, False):
                if state == OUTSIDE:
                    current += 1
                    transactions[current, SOURCE], transactions[current, NUMBER] = -1, 0
                    transactions[current, COMMIT_TS] = little_endian(buffer, start, 4) * 1_000_000
                    transactions[current, BEGINS] = _begins_at(buffer, start)
                    ordinal = np.int64(0)
                rare[rares, 0], rare[rares, 1] = number, found
                rare[rares, 2], rare[rares, 3] = current, ordinal
                rares += 1
                if state != OPEN:
                    how = np.int64(BY_STATEMENT)
        elif kind == XID:
            how = np.int64(COMMITTED)
        elif kind == XA_PREPARE:
            # One in a single phase is committed by the same event.
            how = np.int64(COMMITTED) if buffer[at] != 0 else np.int64(PREPARED)
            if how == PREPARED:
                rare[rares, 0], rare[rares, 1] = number, found
                rare[rares, 2], rare[rares, 3] = current, ordinal
                rares += 1
        elif kind in (ROTATE, FORMAT_DESCRIPTION, INCIDENT, EXECUTE_LOAD):
            rare[rares, 0], rare[rares, 1] = number, found
            rare[rares, 2], rare[rares, 3] = current, ordinal
            rares += 1
            if kind == FORMAT_DESCRIPTION and state != OUTSIDE:
                how = np.int64(CUT)
        elif not _is_of_no_concern(kind, little_endian(buffer, start + FLAGS_AT, 2)):
            reason = UNKNOWN_EVENT
            break
        if how >= 0:
            finished[ended, 0], finished[ended, 1] = number, current
            finished[ended, 2], finished[ended, 3] = little_endian(buffer, start + POSITION_AT, 4), how
            if how == CUT:
                finished[ended, 2] = transactions[current, BEGINS]
            ended += 1
            state = np.int64(OUTSIDE)
        number += 1
    carry[CARRY_STATE], carry[CARRY_ORDINAL] = state, ordinal
    carry[CARRY_SOURCE], carry[CARRY_NUMBER] = transactions[current, SOURCE], transactions[current, NUMBER]
    carry[CARRY_TS], carry[CARRY_BEGINS] = transactions[current, COMMIT_TS], transactions[current, BEGINS]
    return changes[:, :found], transactions[: current + 1], finished[:ended], rare[:rares], reason, number


@compiled()
def _is_of_no_concern(kind: Number, flags: Number) -> bool:
    """Events that say nothing about rows or transactions, and those a reader may pass over by their flag."""
    if flags & _IGNORABLE:
        return True
    return (
        kind in (STOP, HEARTBEAT, HEARTBEAT_2)
        or kind in (5, 9, 13, 14, 17)  # of statements: the statement itself is told
        or kind in (28, 29, 35, 36, 37)  # ignorable, statement's text, earlier ids, group replication's
        or kind in (160, 161, 163)  # MariaDB: statement's text, checkpoint, list of ids
    )
