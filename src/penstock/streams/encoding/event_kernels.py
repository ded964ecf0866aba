"""Compiled loops that write events: constant text, with fields of the change in between.

What a format looks like is data: a program of fields, each with the text before it, and for rows and keys the
text around each column's value (`layout` says what each array holds). So JSON, Avro and Protobuf are written
by one loop, which reads values where Arrow has them. A nested message is written before its size is known,
and moved behind it. Before an event is written there is room for the most it can come to.

Entries have their signatures: they are compiled at import and read from the cache afterwards. None holds the
GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.streams.encoding.number_kernels import (
    write_instant,
    write_lsn,
    write_signed,
    write_varint,
    write_zigzag,
)
from penstock.streams.encoding.plan_kernels import (
    KEY_OF_NEW,
    NEW_HASH,
    NEW_KEY,
    NO_KEY,
    NOT_TOLD,
    OLD_HASH,
    WHOLE_OLD,
)
from penstock.streams.encoding.row_kernels import (
    BYTE,
    CELL_MAX,
    EXACT,
    FALSE,
    LONG,
    PREFIXED,
    SIZED,
    TEXT,
    TRUE,
    bytes_of,
    write_row,
)
from penstock.streams.encoding.sha256_kernels import BLOCK, digest, write_hex
from penstock.text_kernels import (
    LONGEST_ESCAPE,
    QUOTE,
    Bytes,
    Cells,
    Flags,
    Indices,
    Ints,
    Number,
    constant,
    copy_bytes,
    length_of,
    roomy,
    trimmed,
    value_of,
)

#: How a number of the change is written, beside some of the forms of `row_kernels`.
DECIMAL, LSN, INSTANT = range(20, 23)
#: Fields of a program. MESSAGE_OPEN and MESSAGE_CLOSE: what is between them is prefixed by its size.
(
    NOTHING, BEFORE, AFTER, MISSING, KIND, TX, OP, XID, XID_SHORT, COMMIT_MS, COMMIT_US, COMMIT_NS, NOW_MS,
    NOW_US, NOW_NS, SNAPSHOT, MESSAGE_OPEN, MESSAGE_CLOSE,
) = range(18)  # fmt: skip
#: The texts of a field in a program: before it, whatever it is; before it, if it is there; in its place.
LEAD, PRESENT, ABSENT, FIELD_TEXTS = range(4)

_BRACKET, _BRACKET_CLOSE = ord("["), ord("]")
_READ, _TOMBSTONE = ord("r"), ord("n")
_NUMBER_MAX = 40  # what a number takes at most, however it is written
_SIZE_MAX = 10  # what a size takes
_SHORT = 0xFFFFFFFF
_HASH_BYTES, _HASH_MARK = 16, ord("#")  # of a row's hash that make its key, and what that begins with


@compiled()
def _write_missing(
    missing: Flags, row: Number, form: Number, text: Bytes, ends: Ints, out: Bytes, at: Number
) -> Number:
    """The names of columns whose values the source did not send: as JSON, as Avro's array, or bare."""
    count = 0
    for column in range(len(ends)):
        count += missing[row, column]
    start = at
    if form == SIZED:
        at = write_zigzag(np.int64(count), out, at)
    for column in range(len(ends)):
        if missing[row, column]:
            at = constant(text, ends, column, out, at)
    if form == TEXT:
        out[start], out[at] = _BRACKET, _BRACKET_CLOSE
        at += 1
    elif form == SIZED:
        out[at] = 0
        at += 1
    return at


@compiled()
def _write_number(number: Number, form: Number, out: Bytes, at: Number) -> Number:
    if form == DECIMAL:
        return write_signed(number, out, at)
    if form == EXACT:
        quoted = number >= 1 << 53
        if quoted:
            out[at] = QUOTE
        at = write_signed(number, out, at + quoted)
        if quoted:
            out[at] = QUOTE
        return at + quoted
    if form == LSN:
        return write_lsn(number, out, at)
    if form == INSTANT:
        return write_instant(number, 6, out, at)
    if form == LONG:
        return write_zigzag(number, out, at)
    return write_varint(np.uint64(number), out, at)


@compiled()
def _sized(out: Bytes, start: Number, at: Number) -> Number:
    """What was written from `start + _SIZE_MAX` on, with its size in front."""
    size = at - start - _SIZE_MAX
    target = write_varint(np.uint64(size), out, start)
    for index in range(size):
        out[target + index] = out[start + _SIZE_MAX + index]
    return target + size


@compiled()
def _write_hash(cells: Cells, columns: Ints, row: Number, out: Bytes, at: Number) -> Number:
    """A key for rows that have none: the same for the same values."""
    message = np.empty(bytes_of(cells, columns, row) + 8 * len(columns) + 2 * BLOCK, np.uint8)
    size = np.int64(0)
    for column in columns:
        length = length_of(cells, column, row)
        for shift in range(8):
            message[size + shift] = (length >> (8 * shift)) & 0xFF
        size += 8
        if length > 0:
            size = copy_bytes(value_of(cells, column, row, length), message, size)
    out[at] = _HASH_MARK
    return write_hex(digest(message, size), _HASH_BYTES, out, at + 1)


@compiled(
    "(int64[:,::1], int64[:,::1], boolean[:,::1], int32[::1], uint8[::1], int64[::1], uint8[::1],"
    "boolean[::1], int64[::1], int64[::1], int64[::1], int64, uint8[:,::1], uint8[::1], int64[::1],"
    "int64[::1], uint8[::1], boolean[::1], uint8[::1], int64[::1], int64, int64, uint8[::1], int64[::1])"
)
def write_values(  # noqa: PLR0912, PLR0915 - one loop over events and fields
    new: Cells, old: Cells, missing: Flags, rows: Indices, kinds: Bytes, ops: Ints, told: Bytes, after: Flags,
    tx: Ints, xid: Ints, commit_us: Ints, now_us: Number, program: Bytes, lead: Bytes, lead_ends: Ints,
    columns: Ints, forms: Bytes, known: Flags, text: Bytes, ends: Ints, opening: Number, closing: Number,
    names: Bytes, name_ends: Ints,
) -> tuple[Any, ...]:  # fmt: skip
    """The values of events, and where each ends; a tombstone's is empty.

    `program` has a field and its form in each row; `tx`, `xid` and `commit_us` are those of the changes.
    """
    value_ends = np.empty(len(rows) + 1, np.int32)
    value_ends[0] = 0
    nothing_missing = np.empty((0, 0), np.bool_)
    open_at = np.empty(4, np.int64)
    constant_bytes = len(lead) + 2 * len(text) + len(names) + len(program) * (_NUMBER_MAX + _SIZE_MAX)
    constant_bytes += 2 * CELL_MAX * len(columns) + 64
    out, at = np.empty(len(rows) * (len(lead) + len(text) + 64) + constant_bytes, np.uint8), 0
    for event in range(len(rows)):
        row, kind = np.int64(rows[event]), kinds[event]
        if kind == _TOMBSTONE:
            value_ends[event + 1] = at
            continue
        cell_bytes = bytes_of(new, columns, row) + bytes_of(old, columns, row)
        out = roomy(out, at, constant_bytes + LONGEST_ESCAPE * cell_bytes)
        depth = 0
        for position in range(len(program)):
            field, form = program[position, 0], program[position, 1]
            texts = FIELD_TEXTS * position
            at = constant(lead, lead_ends, texts + LEAD, out, at)
            number = np.int64(0)
            if field in (BEFORE, AFTER):
                is_there = after[event] if field == AFTER else told[event] != NOT_TOLD
                if not is_there:
                    at = constant(lead, lead_ends, texts + ABSENT, out, at)
                    continue
                at = constant(lead, lead_ends, texts + PRESENT, out, at)
                start = at
                if form == PREFIXED:
                    at += _SIZE_MAX
                is_new = field == AFTER or told[event] == KEY_OF_NEW
                whole = field == AFTER or told[event] == WHOLE_OLD
                left_out = missing if field == AFTER else nothing_missing
                at = write_row(
                    new if is_new else old, columns, forms, known, whole, left_out, row,
                    text, ends, opening, closing, out, at,
                )  # fmt: skip
                if form == PREFIXED:
                    at = _sized(out, start, at)
                continue
            if field == MISSING:
                some = False
                if after[event] and len(missing) > 0:
                    for column in range(len(name_ends)):
                        some |= missing[row, column]
                at = constant(lead, lead_ends, texts + (PRESENT if some else ABSENT), out, at)
                if some:
                    at = _write_missing(missing, row, form, names, name_ends, out, at)
                continue
            if field == KIND:
                out[at] = kind
                at += 1
                continue
            if field == SNAPSHOT:
                if form == BYTE:
                    out[at] = kind == _READ
                    at += 1
                else:
                    at = copy_bytes(TRUE if kind == _READ else FALSE, out, at)
                continue
            if field == MESSAGE_OPEN:
                open_at[depth] = at
                depth += 1
                at += _SIZE_MAX
                continue
            if field == MESSAGE_CLOSE:
                depth -= 1
                at = _sized(out, open_at[depth], at)
                continue
            if field == NOTHING:
                continue
            if field == TX:
                number = tx[row]
            elif field == OP:
                number = ops[event]
            elif field == XID:
                number = xid[row]
            elif field == XID_SHORT:
                number = xid[row] & _SHORT
            elif field == COMMIT_US:
                number = commit_us[row]
            elif field == COMMIT_MS:
                number = commit_us[row] // 1000
            elif field == COMMIT_NS:
                number = commit_us[row] * 1000
            elif field == NOW_MS:
                number = now_us // 1000
            elif field == NOW_US:
                number = now_us
            else:
                number = now_us * 1000
            at = _write_number(number, form, out, at)
        value_ends[event + 1] = at
    return value_ends, trimmed(out, at)


@compiled(
    "(int64[:,::1], int64[:,::1], int32[::1], uint8[::1], uint8[::1], uint8[::1], int64[::1], int64[::1],"
    "uint8[::1], uint8[::1], int64[::1], int64, int64)"
)
def write_keys(
    new: Cells, old: Cells, rows: Indices, key_from: Bytes, head: Bytes, tail: Bytes, held: Ints,
    columns: Ints, forms: Bytes, text: Bytes, ends: Ints, opening: Number, closing: Number,
) -> tuple[Any, ...]:  # fmt: skip
    """The keys of events, and where each ends. `held`: what the hash of a row without a key is made of."""
    key_ends = np.empty(len(rows) + 1, np.int32)
    key_ends[0] = 0
    known, nothing_missing = np.empty(0, np.bool_), np.empty((0, 0), np.bool_)
    constant_bytes = len(head) + len(tail) + len(text) + CELL_MAX * len(columns) + 64
    out, at = np.empty(len(rows) * (len(head) + len(tail) + len(text) + 24) + constant_bytes, np.uint8), 0
    for event in range(len(rows)):
        row, source = np.int64(rows[event]), key_from[event]
        if source == NO_KEY:
            key_ends[event + 1] = at
            continue
        cells = new if source in (NEW_KEY, NEW_HASH) else old
        out = roomy(out, at, constant_bytes + LONGEST_ESCAPE * bytes_of(cells, columns, row))
        if source in (NEW_HASH, OLD_HASH):
            at = _write_hash(cells, held, row, out, at)
        else:
            at = copy_bytes(head, out, at)
            at = write_row(
                cells,
                columns,
                forms,
                known,
                True,
                nothing_missing,
                row,
                text,
                ends,
                opening,
                closing,
                out,
                at,
            )
            at = copy_bytes(tail, out, at)
        key_ends[event + 1] = at
    return key_ends, trimmed(out, at)
