"""What changes are to a part of a table: the rows for which a condition is true.

With both row versions known, a change is what it does to the part:

    old → new       becomes
    out → in        an insert of the new row
    in  → out       a delete of the old row
    in  → in        what it is
    out → out       nothing

An insert counts as coming from out, a delete as going there; a truncate empties the part too. Unknown, as in
a WHERE clause, is out.

The old version is known if the source sent it whole, or if the filter reads only key columns: a key is sent
whenever it changes. Otherwise the old row may have been in, so an update to in stays an update and one to out
is a delete, of the old key if that changed. Whoever keeps rows by key is right with both, since only what
the row is in the end counts.

A value of the filter's own that was not sent and is in no old row would have to be guessed. What that means
depends on the source (`Unsent`):

*A large value that did not change* (Postgres) is an error: the stream's `replica_identity` decides what is
sent, and `check` demands whole old rows for filters on columns that can be so large.

*A value that a session left out* (MySQL) cannot be prevented by anything that we say: each client has its own
`binlog_row_image`. Such an update is one that the log does not tell: the table is loaded again
(`lake/round_plan.py`), the stream of an append table is paused, and a stream lane's stream stands still there
(`streams/undecided.py`).

*A row that is gone*. MongoDB looks up the document of an update when it reads the event. If it
is not there any more, the event says nothing of it but its key, and what the document was then nobody knows.
Its delete, or that of the whole collection, was before the lookup and after the update, so it comes behind
the update in the log, maybe in a later step. Whoever keeps rows by key leaves such an update out: what the
part has of the key stays, its last known state, until the delete comes, which is told as ever. So nothing is
shown that was not so, and the end is the same. Whoever tells each change tells of it where the row before is
known to have been in, and says what is not known (`unchanged`); else the row may never have been in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import SourceError
from penstock.core.schema import SourceColumn
from penstock.core.where import Condition

if TYPE_CHECKING:  # the pipeline file is read without Arrow
    import pyarrow as pa

Flags: TypeAlias = NDArray[np.bool_]
Operations: TypeAlias = NDArray[np.uint8]

INSERT, UPDATE, DELETE = (ord(letter) for letter in "iud")
NOTHING = 0


class Unsent(StrEnum):
    """Why an update does not carry all values, by the kind of source."""

    LARGE = "large"
    LEFT_OUT = "left out"
    GONE = "gone"


_UNSENT = {"mysql": Unsent.LEFT_OUT, "mongodb": Unsent.GONE}
_LARGE = (
    "it is large and did not change.",
    "Set `replica_identity: full` for the stream, then run `penstock resync {stream}`.",
)
_LEFT_OUT = (
    "it did not change, and the session that wrote it leaves such values out (binlog_row_image).",
    "Set binlog_row_image = FULL at the server, let sessions begin anew, and run `penstock resync {stream}`.",
)


def unsent(columns: Iterable[SourceColumn]) -> Unsent:
    """All columns of a table are of one source."""
    return next((_UNSENT.get(column.family, Unsent.LARGE) for column in columns), Unsent.LARGE)


def inside(condition: Condition, column: Callable[[str], pa.StringArray], rows: int) -> Flags:
    """The rows for which the condition is true; `column` gives a column's values as Postgres prints them."""
    columns = {name: column(name) for name in condition.columns}
    answers: Flags = condition.evaluate(columns, rows).fill_null(False).to_numpy(zero_copy_only=False)
    return answers


def becomes(op: Operations, new_inside: Flags, old_known: Flags, old_inside: Flags) -> Operations:
    """What each operation is to the part; `NOTHING`, if it does not concern it.

    `new_inside` counts for inserts and updates, `old_inside` where the old row is known.
    """
    maybe_before = old_inside | ~old_known
    inserts, updates, deletes = op == INSERT, op == UPDATE, op == DELETE
    found = op.copy()
    found[updates & new_inside & ~maybe_before] = INSERT
    found[updates & ~new_inside & maybe_before] = DELETE
    found[updates & ~new_inside & ~maybe_before] = NOTHING
    found[inserts & ~new_inside] = NOTHING
    found[deletes & ~maybe_before] = NOTHING
    return found


def of_gone_rows(found: Operations, gone: Flags, known_inside: Flags, *, by_key: bool) -> Operations:
    """`found`, with what updates of rows that are gone are. `by_key`: who asks keeps rows by key."""
    told = gone & known_inside & ~np.bool_(by_key)
    return np.where(gone, np.where(told, UPDATE, NOTHING), found).astype(np.uint8)


def require_sent(missing: Collection[str], condition: Condition, stream: str, why: Unsent) -> None:
    """An error if the condition reads a column that an update did not carry."""
    reason, remedy = _LEFT_OUT if why == Unsent.LEFT_OUT else _LARGE
    for name in sorted(condition.columns.intersection(missing)):
        raise SourceError(
            f"An update did not carry the value of {name}, which the stream's `where` reads: {reason}",
            stream=stream,
            remedy=remedy.format(stream=stream),
        )
