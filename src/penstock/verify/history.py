"""An append table against the change log: every change is in it once, by its transaction and its place there.

The source has no history, so what an append table must hold is told by the log: of a range `[A, T)`, up to
the table's own position T, the rows that a round would add. They are made by the functions of a round, as
files that nobody commits, and compared with the table's rows of the same transactions; a row's key is
(`_tx`, `_op_index`). A change that was lost, doubled or altered on its way into the table shows.

No false alarm: A is not before the table's newest load (what precedes that is in the loaded rows, or was
never for this table), not before the log's beginning, and not before the last change of its columns. That
load is known from the table's own history of commits; where that is shorter, A is where it begins.

Nor is a table called equal of which nothing was compared: loaded rows, and changes that the log has no more,
are held against nothing. Where the log has nothing for the table from A on, the table is read all the same,
since it must have nothing from there either; if it has other rows, that is all that can be said of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.position import Lsn
from penstock.core.selection import SelectionError
from penstock.destinations.base import DestinationTable
from penstock.lake.apply import StreamWork
from penstock.lake.evolve import plan_evolution
from penstock.lake.lane_state import LaneStream
from penstock.lake.round_plan import plan_round
from penstock.lake.session import balanced
from penstock.lake.work import MustReload
from penstock.log.reader import ChangeLog
from penstock.verify.comparison import Comparison, new_secret
from penstock.verify.digest import buckets_for
from penstock.verify.sides import TableFile, TableSide
from penstock.verify.tasks import Hashing
from penstock.verify.view import LOG_BYTES_MAX, NotComparableError, Pin, View

KEY = ("_tx", "_op_index")
NOTHING_TO_COMPARE = (
    "the log has no change of it since it was loaded or its columns changed, or has none any more: there is "
    "nothing to hold against its rows; compare it after a sync that brings changes"
)


class NothingYetError(NotComparableError):
    """There is nothing yet that the table could be held against."""


@dataclass(frozen=True, slots=True)
class History:
    """The changes of `[start, to)`. `work`: what rounds have made of them; None: the log has none."""

    start: Lsn
    to: Lsn
    work: StreamWork | None


def plan_history(configured: LaneStream, pin: Pin, log: ChangeLog) -> History:
    """The newest part of the log that can be held against the table."""
    start = _compared_from(configured, pin, log)
    if start >= pin.position:
        raise NothingYetError(NOTHING_TO_COMPARE)
    if not log.files(configured.info.stream, start, pin.position):
        return History(start, pin.position, None)
    work = plan_round(configured, pin.table, pin.record, log, pin.load, start, pin.position)
    if isinstance(work, MustReload):
        raise NotComparableError(f"the log cannot be read in the columns that it has: {work.reason}")
    return History(start, pin.position, work)


def _compared_from(configured: LaneStream, pin: Pin, log: ChangeLog) -> Lsn:
    start = pin.position
    stream, size = configured.info.stream, 0
    for step in reversed(log.after(followed_from(pin.table, pin))):
        table = step.table(stream) if step.start < pin.position else None
        if table is not None:
            size += sum(file.bytes for file in table.files)
            written = {file.schema_id for file in table.files}
            if size > LOG_BYTES_MAX or not all(_has_same(configured, pin, log, each) for each in written):
                break
            if table.altered:
                break  # what is before it has other columns, also where it has no rows
        start = min(start, step.start)
    return max(start, followed_from(pin.table, pin))


def _has_same(configured: LaneStream, pin: Pin, log: ChangeLog, schema_id: str) -> bool:
    """Whether the log's version of the columns is the table's, by what a round takes for the same: a log
    that knows columns by their names alone (MySQL's) has other fingerprints than the catalog."""
    try:
        written = configured.selection.of(log.schema(schema_id))
    except SelectionError:
        return False
    return plan_evolution(pin.record.schema, written).kind == "same"


def followed_from(table: DestinationTable, pin: Pin) -> Lsn:
    """From where on rounds brought every change: the table's newest load, or the oldest commit it knows."""
    marker = pin.record.marker
    assert marker is not None
    assert marker.to is not None
    known = marker.to
    for record in table.history():
        if record.marker is None or record.marker.generation != marker.generation or record.marker.to is None:
            break
        known = min(known, record.marker.to)
        if record.kind == "swap":
            break
    return known


def compare_with_log(
    configured: LaneStream, view: View, history: History, held: tuple[TableFile, ...], shares: int
) -> Comparison:
    """`view` has the files that a round would have added; `held` are the table's own."""
    target = view.target
    columns = (*KEY, *(name for name in target.arrow_schema().names if name not in KEY))
    rows = sum(file.rows for file in view.files)
    sides = []
    for files, between in ((view.files, None), (held, (int(history.start), int(history.to)))):
        cut = balanced([file.rows for file in files], min(shares, len(files))) if files else []
        sides.append(
            tuple(
                TableSide(tuple(files[index] for index in share), target, columns, len(KEY), between)
                for share in cut
            )
        )
    return Comparison(
        name=str(configured.info.stream),
        source=sides[0],
        table=sides[1],
        weights=tuple(sum(file.rows for file in side.files) for side in (*sides[0], *sides[1])),
        hashing=Hashing(new_secret(), buckets_for(rows)),
        target=target,
        columns=columns,
        key=KEY,
    )
