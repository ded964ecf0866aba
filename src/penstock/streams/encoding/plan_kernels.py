"""Which events changes give, compiled; `plan` says what comes of which change."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compiling import compiled
from penstock.text_kernels import Bytes, Cells, Ints, differs

#: Where a key is from, and what of the old row is told.
NO_KEY, NEW_KEY, OLD_KEY, NEW_HASH, OLD_HASH = range(5)
NOT_TOLD, WHOLE_OLD, KEY_OF_OLD, KEY_OF_NEW = range(4)

_TOMBSTONE = ord("n")


@compiled(
    "(int64[:,::1], int64[:,::1], int64[::1], uint8[::1], uint8[::1], int64[::1], boolean, boolean, boolean,"
    "boolean)"
)
def plan_events(
    new: Cells, old: Cells, key: Ints, actions: Bytes, old_kinds: Bytes, ops: Ints, has_key: bool,
    row_keys: bool, tombstones: bool, before: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Which events the changes give: see `plan`."""
    count = len(actions)
    rows, op = np.empty(3 * count, np.int32), np.empty(3 * count, np.int64)
    kind, key_from = np.empty(3 * count, np.uint8), np.empty(3 * count, np.uint8)
    told, after = np.empty(3 * count, np.uint8), np.zeros(3 * count, np.bool_)
    old_key = OLD_KEY if has_key else (OLD_HASH if row_keys else NO_KEY)
    new_key = NEW_KEY if has_key else (NEW_HASH if row_keys else NO_KEY)
    events = 0
    for row in range(count):
        action, old_kind = actions[row], old_kinds[row]
        if action == 0:
            continue
        moved = False
        if action == ord("u") and has_key and old_kind != ord("n"):
            for column in key:
                moved |= differs(old, new, column, row)
        if action == ord("t"):
            rows[events], op[events], kind[events] = row, ops[row], action
            key_from[events], told[events] = NO_KEY, NOT_TOLD
            events += 1
            continue
        old_told = NOT_TOLD
        if before and old_kind == ord("f"):
            old_told = WHOLE_OLD
        elif before and old_kind == ord("k"):
            old_told = KEY_OF_OLD
        elif before and action == ord("d"):
            old_told = KEY_OF_NEW
        if action == ord("d") or moved:
            rows[events], op[events], kind[events] = row, ops[row], ord("d")
            key_from[events] = old_key if old_kind != ord("n") else new_key
            told[events] = old_told
            events += 1
            if tombstones and has_key:
                rows[events], op[events], kind[events] = row, ops[row], _TOMBSTONE
                key_from[events], told[events] = key_from[events - 1], NOT_TOLD
                events += 1
        if action != ord("d"):
            rows[events], op[events] = row, ops[row] + (1 if moved else 0)
            kind[events] = ord("c") if moved else action
            key_from[events], after[events] = new_key, True
            told[events] = old_told if action == ord("u") and not moved else NOT_TOLD
            events += 1
    return rows[:events], op[:events], kind[:events], key_from[:events], told[:events], after[:events]
