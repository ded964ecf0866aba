"""What a range of the log is for a table: the work of a round, or that the table must be loaded again.

A function of the table's record and the log alone: recovery comes to the same answer as the round that was
cut short, and whoever wants to know what a round would make of a table can ask without one.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.core.position import Lsn
from penstock.core.selection import SelectionError
from penstock.core.where import WhereError
from penstock.destinations.base import DestinationTable
from penstock.destinations.records import TableRecord
from penstock.lake.apply import StreamWork
from penstock.lake.column_ids import dropped_partition, evolved_columns
from penstock.lake.evolve import ColumnSource
from penstock.lake.lane_state import LaneStream
from penstock.lake.load import owns_keys
from penstock.lake.skip import skip_rule
from penstock.lake.target import Target
from penstock.lake.work import MustReload, plan_schema, unfit_default
from penstock.ledger.load_record import LoadRecord
from penstock.log.reader import ChangeLog, LogRange
from penstock.log.undecided import has_undecided


def plan_round(
    configured: LaneStream,
    table: DestinationTable,
    record: TableRecord,
    log: ChangeLog,
    load: LoadRecord | None,
    start: Lsn,
    to: Lsn,
) -> StreamWork | MustReload:
    """`load`: the one that the table's rows come from, while the log has not passed its snapshots."""
    assert record.marker is not None, "only a loaded table follows the log"
    stream = configured.info.stream
    changes = log.files(stream, start, to)
    part = configured.selection
    certain = {(tx, op) for tx, op, _ in changes.alterations}.issuperset(changes.altered)
    try:
        alterations = [
            (tx, op, replace(each, schema=part.of(each.schema))) for tx, op, each in changes.alterations
        ]
    except SelectionError as error:
        return MustReload(str(error))
    plan = plan_schema(
        record.schema,
        changes.files,
        lambda schema_id: part.of(log.schema(schema_id)),
        keeps_older_rows=configured.keeps_older_rows,
        alterations=alterations if certain else (),
    )
    if isinstance(plan, MustReload):
        return plan
    if not certain:
        return MustReload("a statement at the source altered it in a way that its rows do not tell")
    if changes.alterations and load is not None and start < load.newest_point:
        return MustReload("it was altered while it was being loaded")  # some rows were read after that
    for held in plan.rewrite or ():
        if held.from_name is not None and _is_held_otherwise(configured, held):
            return MustReload(f"column {held.from_name} is {held.name} now, and `types` has one of them")
    try:
        target = configured.target(plan.schema)
    except WhereError:
        return MustReload("columns of its filter had other types")
    if (reload := _not_told_by_rows(changes, target, start, to)) is not None:
        return reload
    target = target.with_ids_of(evolved_columns(record, target, plan.rewrite), record.layout)
    if (column := dropped_partition(table, record, target)) is not None:
        return MustReload(f"column {column}, by which its files are partitioned, is gone")
    unfit = unfit_default(plan, target.schema) if target.write == "upsert" else None
    if unfit is not None:
        return MustReload(f"rows read column {unfit} as a default that its type cannot hold")
    skip = None
    if load is not None and len(load.points) > 1 and owns_keys(load):
        skip = skip_rule(load, configured.target())
        if changes.truncates and start < load.newest_read:
            return MustReload("the table was truncated while it was being loaded", by_schema=False)
    return StreamWork(
        stream=stream,
        table=table,
        target=target,
        files=table.files(record),
        read_from=record.snapshot_id,
        changes=changes.files,
        truncates=changes.truncates,
        after=start,
        to=to,
        columns=plan.columns,
        rewrite=plan.rewrite,
        skip=skip,
        letters=record.dead_letters,
    )


def _not_told_by_rows(changes: LogRange, target: Target, start: Lsn, to: Lsn) -> MustReload | None:
    """Why the changes of the range do not tell what became of the table's rows; None: they do."""
    if truncated_in_part(changes) and target.write == "upsert":
        return MustReload("a single partition was truncated", by_schema=False)
    if has_undecided(changes.files, start, to, target.schema, target.condition):
        return MustReload(
            "updates did not carry values that its filter reads (binlog_row_image)",
            by_schema=False,
            first="set binlog_row_image = FULL at the server, and let sessions begin anew",
        )
    return None


def _is_held_otherwise(configured: LaneStream, column: ColumnSource) -> bool:
    """Whether the values of a column that got another name would be written in another way."""
    return configured.types.get(column.from_name or "") != configured.types.get(column.name)


def truncated_in_part(changes: LogRange) -> bool:
    """Whether a partition was emptied alone, and the whole table not after it."""
    last = max(changes.truncates, default=(-1, -1))
    return any((tx, op) > last for tx, op, _ in changes.leaf_truncates)
