"""Which events the changes of a batch give, in their order.

    change                          events
    created, or moved into filter   c: the new row
    loaded                          r: the row
    updated                         u: the new row, and of the old one what the source told
    updated, with another key       d at op, a tombstone, c at op + 1: as if the row had been removed and made
    deleted, or moved out           d: of the old row what is known, at least its key; a tombstone
    truncated                       t: no row, no key

A tombstone has the key and name of its delete, and no value. There is none without a primary key, or where
the stream has none. Of the old row the source tells all (`replica_identity: full`), the key if it changed or
the row is gone, or nothing. Without it an update has the key it had before, so the old key is the new one's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.capture.transactions import ChangeRows
from penstock.streams.encoding import plan_kernels
from penstock.streams.encoding.view import StreamView
from penstock.streams.events import CREATE, DELETE, READ, TRUNCATE, UPDATE, Bytes, Int64s

SKIP = 0

Int32s: TypeAlias = npt.NDArray[np.int32]
Flags: TypeAlias = npt.NDArray[np.bool_]


def _actions_by_op() -> Bytes:
    actions = np.zeros(256, np.uint8)
    for op, action in zip("iudtr", (CREATE, UPDATE, DELETE, TRUNCATE, READ), strict=True):
        actions[ord(op)] = action
    return actions


_ACTIONS = _actions_by_op()


@dataclass(frozen=True, slots=True)
class Plan:
    """An entry per event: the row it is of, its op and kind, where its key is from, what is told."""

    rows: Int32s
    op: Int64s
    kind: Bytes
    key_from: Bytes
    before: Bytes
    after: Flags

    def where(self, chosen: Flags) -> Plan:
        """These events of it alone."""
        return Plan(*(getattr(self, each.name)[chosen] for each in fields(self)))


def actions_of(changes: ChangeRows) -> Bytes:
    """What changes are by themselves, where no filter says otherwise."""
    found: Bytes = _ACTIONS[changes.op]
    return found


def plan(
    changes: ChangeRows,
    view: StreamView,
    actions: Bytes | None,
    new: npt.NDArray[np.int64],
    old: npt.NDArray[np.int64],
    key: Int64s,
) -> Plan:
    """`new` and `old` are the columns' cells, `key` says which of them are the key."""
    return Plan(
        *plan_kernels.plan_events(
            new,
            old,
            key,
            actions_of(changes) if actions is None else np.ascontiguousarray(actions, np.uint8).copy(),
            changes.old_kind.copy(),
            changes.op_index.copy(),
            bool(view.key),
            view.row_keys,
            view.tombstones,
            view.before,
        )
    )
