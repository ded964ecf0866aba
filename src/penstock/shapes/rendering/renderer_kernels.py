"""Compiled loops that write changes as JSON.

`render_items` is one pass over the chosen rows. It reads values where Arrow has them and writes into buffers
that grow: before a row is written there is room for the most it can come to.

Every entry has its signature: it is compiled once, at import, and read from the cache afterwards; a call
with other types fails rather than compile while changes wait. None holds the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
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
    differs,
    length_of,
    roomy,
    value_of,
    write_decimal,
    write_escaped,
)

INSERT, UPDATE, DELETE = (ord(letter) for letter in "iud")
ACTION_INSERT, ACTION_UPDATE, ACTION_DELETE = 1, 2, 3

#: The constant parts of an item, by number; after them one part per column, its name.
(
    RELATION, OPEN, VALUE, OLD_VALUE, HEADERS_INSERT, HEADERS_UPDATE, HEADERS_DELETE, LSN, OP_POSITION,
    KEY_CHANGE_TO, KEY_CHANGE_FROM, COLUMNS,
) = range(12)  # fmt: skip

_SLASH, _COMMA, _UNDERSCORE = (ord(letter) for letter in "/,_")
_CELL_MAX = 8  # what a value or a part of a key needs beside its bytes: quotes, comma, slash, null
_DIGITS_MAX = 64  # of a txid, an lsn and an op_position together
_NULL = np.frombuffer(b"null", np.uint8)


@compiled()
def _write_key(cells: Cells, key: Ints, row: Number, prefix: Bytes, out: Bytes, at: Number) -> Number:
    """`"schema"."table"/"1"/_`: slashes in values are doubled, nulls are an underscore."""
    at = copy_bytes(prefix, out, at)
    for column in key:
        out[at] = _SLASH
        length = length_of(cells, column, row)
        if length < 0:
            out[at + 1] = _UNDERSCORE
            at += 2
            continue
        out[at + 1] = QUOTE
        at += 2
        value = value_of(cells, column, row, length)
        for index in range(length):
            out[at] = value[index]
            at += 1
            if value[index] == _SLASH:
                out[at] = _SLASH
                at += 1
        out[at] = QUOTE
        at += 1
    return at


@compiled()
def _write_columns(
    cells: Cells, chosen: Flags, row: Number, text: Bytes, ends: Ints, out: Bytes, at: Number
) -> Number:
    """`"id":"1","name":null`, of the chosen columns."""
    started = False
    for column in range(len(chosen)):
        if not chosen[column]:
            continue
        if started:
            out[at] = _COMMA
            at += 1
        started = True
        at = constant(text, ends, COLUMNS + column, out, at)
        length = length_of(cells, column, row)
        if length < 0:
            at = copy_bytes(_NULL, out, at)
            continue
        out[at] = QUOTE
        at = write_escaped(value_of(cells, column, row, length), out, at + 1)
        out[at] = QUOTE
        at += 1
    return at


@compiled()
def _write_headers(
    headers: Number, txid: Number, tx: Number, op: Number, text: Bytes, ends: Ints, out: Bytes, at: Number
) -> Number:
    at = write_decimal(txid, out, constant(text, ends, headers, out, at))
    at = write_decimal(tx, out, constant(text, ends, LSN, out, at))
    return write_decimal(op, out, constant(text, ends, OP_POSITION, out, at))


@compiled()
def _write_other_key(
    part: Number, keys: Bytes, start: Number, end: Number, text: Bytes, ends: Ints, out: Bytes, at: Number
) -> Number:
    at = write_escaped(keys[start:end], out, constant(text, ends, part, out, at))
    out[at] = QUOTE
    return at + 1


@compiled()
def _bytes_of(old: Cells, new: Cells, column: Number, row: Number) -> Number:
    return max(length_of(old, column, row), 0) + max(length_of(new, column, row), 0)


@compiled()
def _write_item(
    cells: Cells, columns: Flags, row: Number, keys: Bytes, start: Number, end: Number,
    text: Bytes, ends: Ints, out: Bytes, at: Number,
) -> Number:  # fmt: skip
    """`{"key":"…","value":{…`: an item up to its values."""
    at = write_escaped(keys[start:end], out, constant(text, ends, OPEN, out, at))
    return _write_columns(cells, columns, row, text, ends, out, constant(text, ends, VALUE, out, at))


@compiled(
    "(int64[:,::1], int64[:,::1], int64[::1], boolean[::1], boolean, boolean, boolean,"
    "int32[::1], uint8[::1], int64[::1], int64[::1], int64[::1], uint8[::1], int64[::1])"
)
def render_items(  # noqa: PLR0912, PLR0915 - one loop over rows, each branch one kind of item
    new: Cells, old: Cells, key: Ints, is_key: Flags, has_primary_key: bool, full: bool, keep_unchanged: bool,
    rows: Indices, actions: Bytes, tx: Ints, op: Ints, txid: Ints, text: Bytes, ends: Ints,
) -> tuple[Any, ...]:  # fmt: skip
    """The items of `rows`, each without its closing.

    `is_key` is as long as the selected columns, which come first in `new` and `old`; `key` may point behind
    them. `tx`, `op` and `txid` are those of `rows`. Returns where each row's items begin, the items' tx, op,
    kind and row, ends and bytes of keys and of JSON.
    """
    count, selected = len(rows), len(is_key)
    first = np.empty(count + 1, np.int32)
    item_tx, item_op = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64)
    kind, source = np.empty(2 * count, np.uint8), np.empty(2 * count, np.int32)
    key_ends, json_ends = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64)
    prefix = text[: ends[RELATION]]
    keys = np.empty(count * (len(prefix) + 24), np.uint8)
    json = np.empty(count * len(text), np.uint8)
    # Of two items with two keys each, at most; the text of a column is there once per item and once for old.
    constant_json = 4 * (len(text) + _DIGITS_MAX + _CELL_MAX * selected)
    constant_json += 4 * (LONGEST_ESCAPE * len(prefix) + _CELL_MAX * len(key))
    everything = np.ones(selected, np.bool_)
    deleted = everything if full or not has_primary_key else is_key
    changed, told = np.empty(selected, np.bool_), np.empty(selected, np.bool_)
    items = key_at = at = 0
    for position in range(count):
        row, action = np.int64(rows[position]), actions[position]
        first[position] = items
        key_changed = False
        if action == ACTION_UPDATE:
            for column in key:
                key_changed |= differs(old, new, column, row)
            any_changed = key_changed
            for column in range(selected):
                changed[column] = differs(old, new, column, row)
                any_changed |= changed[column]
                told[column] = full | changed[column] | is_key[column]
            if not (any_changed or keep_unchanged):
                continue
        value_bytes, key_bytes = np.int64(0), np.int64(0)
        for column in range(selected):
            value_bytes += _bytes_of(old, new, column, row)
        for column in key:
            key_bytes += _bytes_of(old, new, column, row)
        json = roomy(json, at, constant_json + LONGEST_ESCAPE * (value_bytes + 2 * key_bytes))
        keys = roomy(keys, key_at, 2 * (len(prefix) + key_bytes + _CELL_MAX * len(key)))

        old_key_at, item_op[items] = key_at, op[position]
        if key_changed or action == ACTION_DELETE:
            key_at = _write_key(old, key, row, prefix, keys, key_at)
        new_key_at = key_at
        if action != ACTION_DELETE:
            key_at = _write_key(new, key, row, prefix, keys, key_at)

        if key_changed or action == ACTION_DELETE:
            at = _write_item(old, deleted, row, keys, old_key_at, new_key_at, text, ends, json, at)
            at = _write_headers(
                HEADERS_DELETE, txid[position], tx[position], item_op[items], text, ends, json, at
            )
            if key_changed:
                at = _write_other_key(KEY_CHANGE_TO, keys, new_key_at, key_at, text, ends, json, at)
                item_op[items + 1] = op[position] + 1
            item_tx[items], kind[items], source[items] = tx[position], DELETE, position
            key_ends[items], json_ends[items] = new_key_at, at
            items += 1
        if action != ACTION_DELETE:
            updates = action == ACTION_UPDATE and not key_changed
            columns = told if updates else everything
            at = _write_item(new, columns, row, keys, new_key_at, key_at, text, ends, json, at)
            if updates and full:
                at = constant(text, ends, OLD_VALUE, json, at)
                at = _write_columns(old, changed, row, text, ends, json, at)
            headers = HEADERS_UPDATE if updates else HEADERS_INSERT
            at = _write_headers(headers, txid[position], tx[position], item_op[items], text, ends, json, at)
            if key_changed:
                at = _write_other_key(KEY_CHANGE_FROM, keys, old_key_at, new_key_at, text, ends, json, at)
            item_tx[items], source[items] = tx[position], position
            kind[items] = UPDATE if updates else INSERT
            key_ends[items], json_ends[items] = key_at, at
            items += 1
    first[count] = items
    return (
        first, item_tx[:items], item_op[:items], kind[:items], source[:items],
        key_ends[:items], keys[:key_at], json_ends[:items], json[:at],
    )  # fmt: skip


@compiled("(int64[:,::1], int64, uint8[::1])")
def render_key_column(cells: Cells, count: int, prefix: Bytes) -> tuple[Any, ...]:
    """The keys of `count` rows whose key is all of `cells`: their ends, and their bytes."""
    key = np.arange(len(cells))
    ends = np.empty(count, np.int64)
    keys, at = np.empty(0, np.uint8), 0
    for row in range(count):
        size = np.int64(len(prefix) + _CELL_MAX * len(key))
        for column in key:
            size += 2 * max(length_of(cells, column, row), 0)
        keys = roomy(keys, at, size)
        at = _write_key(cells, key, row, prefix, keys, at)
        ends[row] = at
    return ends, keys[:at]


def warm_up() -> None:
    """Nothing is left to do: importing this module has compiled it or read it from the cache."""
