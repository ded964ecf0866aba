"""Compiled loops that put each shape's items together.

Given which rendered item goes to which shape, `place_items` says where in one buffer it stands, so that the
items of a shape are next to each other in the order of (tx, op), and `copy_items` writes them there, each
with its closing. As in `rendering_kernels`, entries have signatures and hold no GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.text_kernels import Bytes, Indices, Ints, copy_bytes

#: What becomes of an item: it is not written, or has nothing, the end, or the end of a last one behind it.
SKIP, OPEN, CLOSED, CLOSED_LAST = range(4)
CLOSE, CLOSE_LAST = b"}}", b',"last":true}}'
#: the rows of what is noted of each item
TX, OP, KEY_SIZE, JSON_SIZE = range(4)
_CLOSE = np.frombuffer(CLOSE, np.uint8)
_CLOSE_LAST = np.frombuffer(CLOSE_LAST, np.uint8)


@compiled("(int32[::1], uint8[::1])")
def distinct_changes(rows: Indices, actions: Bytes) -> tuple[Any, ...]:
    """Each (row, action) once, in the order of rows, and where each given one is among them."""
    highest = -1
    for row in rows:
        highest = max(highest, row)
    number = np.full(4 * (highest + 1), -1, np.int32)
    for index in range(len(rows)):
        number[4 * rows[index] + actions[index]] = 0
    count = 0
    distinct_rows, distinct_actions = np.empty(len(rows), np.int32), np.empty(len(rows), np.uint8)
    for code in range(len(number)):
        if number[code] == 0:
            number[code] = count
            distinct_rows[count], distinct_actions[count] = code // 4, code % 4
            count += 1
    positions = np.empty(len(rows), np.int32)
    for index in range(len(rows)):
        positions[index] = number[4 * rows[index] + actions[index]]
    return distinct_rows[:count], distinct_actions[:count], positions


@compiled("(int32[::1], int32[::1], int32[::1])")
def choose_items(first: Indices, slots: Indices, positions: Indices) -> tuple[Any, ...]:
    """The items of each chosen position: slot, item, and the index it was chosen by."""
    count = 0
    for position in positions:
        count += first[position + 1] - first[position]
    slot, item, index = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int32)
    at = 0
    for choice in range(len(positions)):
        for found in range(first[positions[choice]], first[positions[choice] + 1]):
            slot[at], item[at], index[at] = slots[choice], found, choice
            at += 1
    return slot, item, index


@compiled(
    "(int64[::1], int64[::1], uint8[::1], int64[::1], int64[::1], int64[::1], int32[::1], int64,"
    "int64[:,::1], uint8[::1])"
)
def describe_items(
    tx: Ints, op: Ints, kind: Bytes, key_ends: Ints, json_ends: Ints, extra_ends: Ints, items: Indices,
    at: int, described: Ints, kinds: Bytes,
) -> None:  # fmt: skip
    """Note tx, op, and sizes of key and JSON (no closing) of `items` in `described`, from column `at` on."""
    for index in range(len(items)):
        item = items[index]
        described[TX, at + index], described[OP, at + index] = tx[item], op[item]
        kinds[at + index] = kind[item]
        key_start = key_ends[item - 1] if item > 0 else 0
        json_start = json_ends[item - 1] if item > 0 else 0
        extra = extra_ends[index + 1] - extra_ends[index] if len(extra_ends) > 0 else 0
        described[KEY_SIZE, at + index] = key_ends[item] - key_start
        described[JSON_SIZE, at + index] = json_ends[item] - json_start + extra


@compiled("(int32[::1], int64[:,::1])")
def is_ordered(slots: Indices, described: Ints) -> bool:
    """Whether items are in the order of (slot, tx, op) already."""
    for index in range(1, len(slots)):
        if slots[index] != slots[index - 1]:
            if slots[index] < slots[index - 1]:
                return False
        elif described[TX, index] != described[TX, index - 1]:
            if described[TX, index] < described[TX, index - 1]:
                return False
        elif described[OP, index] < described[OP, index - 1]:
            return False
    return True


@compiled("(int64[::1], int32[::1], int64[:,::1], uint8[::1], boolean)")
def place_items(
    order: Ints, slots: Indices, described: Ints, kinds: Bytes, hold_newest: bool
) -> tuple[Any, ...]:
    """Where each item goes. With `hold_newest` the newest item of each slot goes nowhere yet.

    Returns by item, as given: mode, place of its key, place of its JSON; the items held back; by slot that
    has items: slot, end of its items; by item, in order: tx, op, kind, end of its key and of its JSON.
    """
    count = len(order)
    mode = np.empty(count, np.uint8)
    key_at, json_at = np.empty(count, np.int64), np.empty(count, np.int64)
    held = np.empty(count, np.int64)
    filled_slots, item_ends = np.empty(count, np.int32), np.empty(count, np.int64)
    tx, op, kind = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint8)
    key_ends, json_ends = np.empty(count, np.int64), np.empty(count, np.int64)
    filled = written = holding = 0
    key_end = json_end = np.int64(0)
    for index in range(count):
        item = order[index]
        ends_slot = index + 1 == count or slots[order[index + 1]] != slots[item]
        if ends_slot and hold_newest:
            mode[item] = SKIP
            held[holding] = item
            holding += 1
            continue
        if filled == 0 or filled_slots[filled - 1] != slots[item]:
            filled_slots[filled] = slots[item]
            filled += 1
        ends_transaction = ends_slot or described[TX, order[index + 1]] != described[TX, item]
        mode[item] = CLOSED_LAST if ends_transaction else CLOSED
        key_at[item], json_at[item] = key_end, json_end
        key_end += described[KEY_SIZE, item]
        json_end += described[JSON_SIZE, item] + (len(_CLOSE_LAST) if ends_transaction else len(_CLOSE))
        tx[written], op[written], kind[written] = described[TX, item], described[OP, item], kinds[item]
        key_ends[written], json_ends[written] = key_end, json_end
        written += 1
        item_ends[filled - 1] = written
    return (
        mode, key_at, json_at, held[:holding], filled_slots[:filled], item_ends[:filled],
        tx[:written], op[:written], kind[:written], key_ends[:written], json_ends[:written],
    )  # fmt: skip


@compiled(
    "(uint8[::1], int64[::1], uint8[::1], int64[::1], uint8[::1], int64[::1], int32[::1],"
    "uint8[::1], int64[::1], int64[::1], uint8[::1], uint8[::1])"
)
def copy_items(
    keys: Bytes, key_ends: Ints, json: Bytes, json_ends: Ints, extra: Bytes, extra_ends: Ints, items: Indices,
    mode: Bytes, key_at: Ints, json_at: Ints, out_keys: Bytes, out_json: Bytes,
) -> None:  # fmt: skip
    """Write items to their places, with what is extra in their headers, and close them."""
    for index in range(len(items)):
        if mode[index] == SKIP:
            continue
        item = items[index]
        start = key_ends[item - 1] if item > 0 else np.int64(0)
        copy_bytes(keys[start : key_ends[item]], out_keys, key_at[index])
        start = json_ends[item - 1] if item > 0 else np.int64(0)
        at = copy_bytes(json[start : json_ends[item]], out_json, json_at[index])
        if len(extra_ends) > 0:
            at = copy_bytes(extra[extra_ends[index] : extra_ends[index + 1]], out_json, at)
        if mode[index] == CLOSED:
            copy_bytes(_CLOSE, out_json, at)
        elif mode[index] == CLOSED_LAST:
            copy_bytes(_CLOSE_LAST, out_json, at)


def warm_up() -> None:
    """Nothing is left to do: importing this module has compiled it or read it from the cache."""
