"""An append table against the change log: every change is in it once, by its transaction and its place there.

The source has no history, so what an append table must hold is told by the log: of a range `[A, T)`, up to
the table's own position T, the rows that a round would add. They are made by the functions of a round, as
files that nobody commits, and compared with the table's rows of the same transactions; a row's key is
(`_tx`, `_op_index`). A change that was lost, doubled or altered on its way into the table shows.

No false alarm: A is not before the table's newest load (what precedes that is in the loaded rows, or was
never for this table), not before the log's beginning, and not before the last change of its columns. That
load is known from the table's own history of commits; where that is shorter, A is where it begins.
"""

from __future__ import annotations

from penstock.core.position import Lsn
from penstock.destinations.base import DestinationTable
from penstock.lake.apply import StreamWork
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


def plan_history(configured: LaneStream, pin: Pin, log: ChangeLog) -> StreamWork | None:
    """What rounds have made of the newest part of the log; None: it has nothing for the table."""
    start = _compared_from(configured, pin, log)
    if not log.files(configured.info.stream, start, pin.position):
        return None
    work = plan_round(configured, pin.table, pin.record, log, pin.load, start, pin.position)
    if isinstance(work, MustReload):
        raise NotComparableError(f"the log cannot be read in the columns that it has: {work.reason}")
    return work


def _compared_from(configured: LaneStream, pin: Pin, log: ChangeLog) -> Lsn:
    start = pin.position
    stream, size = configured.info.stream, 0
    for step in reversed(log.after(followed_from(pin.table, pin))):
        table = step.table(stream) if step.start < pin.position else None
        if table is not None:
            size += sum(file.bytes for file in table.files)
            shapes = {configured.selection.of(log.schema(file.schema_id)).shape for file in table.files}
            if size > LOG_BYTES_MAX or shapes - {pin.record.schema.shape}:
                break
        start = min(start, step.start)
    return max(start, followed_from(pin.table, pin))


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
    configured: LaneStream, view: View, work: StreamWork, held: tuple[TableFile, ...], shares: int
) -> Comparison:
    """`view` has the files that a round would have added; `held` are the table's own."""
    target = work.target
    columns = (*KEY, *(name for name in target.arrow_schema().names if name not in KEY))
    rows = sum(file.rows for file in view.files)
    sides = []
    for files, between in ((view.files, None), (held, (int(work.after), int(work.to)))):
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
