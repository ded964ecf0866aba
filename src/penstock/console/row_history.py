"""One row over time: every change of it that the log still has, the newest first.

A row is found by its key as it is after a change and as it was before it: a delete has nothing after it, and
a change of the key has two. A truncate is a change of every row. What the source did not send again, because
it did not change, is said to be so and never counts as changed.

Bounds: the newest files up to `READ_BYTES_MAX`, of each the newest changes; of values what one answer shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.console.log_screen import OPERATIONS, read_step
from penstock.console.shown_values import ShownValues
from penstock.core.errors import ConfigError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns
from penstock.log.manifest import list_sequence

CHANGES_SHOWN = 200
READ_BYTES_MAX = 512 << 20
UNSENT = "(not sent: unchanged)"
_BATCH_ROWS = 4096
_TRUNCATE, _DELETE = "t", "d"


def changes_of_key(log: Path, stream: StreamId, key: str) -> dict[str, Any]:
    """`key`: its columns' text, by commas. `is_cut`: the log may have older changes."""
    from penstock.log.reader import ChangeLog

    reader = ChangeLog(log)
    found: list[dict[str, Any]] = []
    read, files_read, is_cut = 0, 0, False
    columns: tuple[str, ...] = ()
    for seq in reversed(list_sequence(log)):
        if len(found) >= CHANGES_SHOWN or read >= READ_BYTES_MAX:
            is_cut = True
            break
        manifest = read_step(log, seq)
        table = None if manifest is None else manifest.table(stream)
        of_step: list[dict[str, Any]] = []
        for file in () if table is None else table.files:
            schema = reader.schema(file.schema_id)
            columns = columns or schema.key
            parts = _parts(key, schema)
            try:
                rows = _newest_rows(log / file.path, schema, parts)
            except FileNotFoundError:
                continue
            read, files_read = read + file.bytes, files_read + 1
            of_step += [_change(row, seq, schema) for row in rows]
        found += sorted(of_step, key=lambda each: (each["tx"], each["op_index"]), reverse=True)
    shown = found[:CHANGES_SHOWN]
    _mark(shown)
    values = ShownValues()
    for each in shown:
        each["values"] = {name: values.of(value) for name, value in each["values"].items()}
    return {
        "stream": str(stream),
        "key": list(columns),
        "shown": [{name: each[name] for name in each if name != "before"} for each in shown],
        "files_read": files_read,
        "is_cut": is_cut or len(found) > len(shown),
    }


def _parts(key: str, schema: TableSchema) -> list[str]:
    parts = key.split(",") if len(schema.key) > 1 else [key]
    if len(parts) != len(schema.key):
        raise ConfigError(
            f"The key has {len(schema.key)} columns: {', '.join(schema.key)}.",
            stream=str(schema.stream),
            remedy="Give the text of each, in this order, with commas between them.",
        )
    return [part.strip() for part in parts]


def _newest_rows(path: Path, schema: TableSchema, parts: list[str]) -> list[dict[str, Any]]:
    """One more than is shown, if there are so many, which tells of others. A file is in the log's order."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    after, before = pc.scalar(True), pc.scalar(True)
    for name, part in zip(schema.key, parts, strict=True):
        stored = log_columns.stored_name(name)
        after = after & (pc.field(stored) == part)
        before = before & (pc.field(log_columns.OLD, stored) == part)
    wanted = after | before | (pc.field(log_columns.OP) == _TRUNCATE)
    kept: pa.Table | None = None
    dataset = ds.dataset(path, format="parquet")
    for batch in dataset.to_batches(
        filter=wanted, batch_size=_BATCH_ROWS, batch_readahead=1, use_threads=False
    ):
        table = pa.Table.from_batches([batch])
        kept = table if kept is None else pa.concat_tables([kept, table])
        kept = kept.slice(max(0, kept.num_rows - CHANGES_SHOWN - 1))
    return [] if kept is None else kept.to_pylist()


def _change(row: dict[str, Any], seq: int, schema: TableSchema) -> dict[str, Any]:
    """`before`: what the source says of the row before the change; all of it, a key, or nothing."""
    operation = row[log_columns.OP]
    names = [(column.name, log_columns.stored_name(column.name)) for column in schema.columns]
    old = row[log_columns.OLD] or {}
    is_whole = row[log_columns.OLD_KIND] == "f"
    before = {name: old[stored] for name, stored in names if old.get(stored) is not None or is_whole}
    unsent = set(row[log_columns.UNCHANGED] or ())
    if operation == _TRUNCATE:
        values: dict[str, Any] = {}
    elif operation == _DELETE:
        values = before
    else:
        values = {name: UNSENT if name in unsent else row[stored] for name, stored in names}
    return {
        "step": seq,
        "tx": row[log_columns.TX],
        "at": str(Lsn(row[log_columns.TX])),
        "op_index": row[log_columns.OP_INDEX],
        "operation": OPERATIONS.get(operation, operation),
        "committed": row[log_columns.COMMIT_TS].isoformat(),
        "xid": row[log_columns.XID],
        "values": values,
        "unsent": sorted(unsent),
        "before": before,
        "changed": [],
    }


def _mark(shown: list[dict[str, Any]]) -> None:
    """Name what changed, from the oldest to the newest: by what the source says of the row before, or else
    by the change before. A column that is not known from either is not named.
    """
    known: dict[str, Any] = {}
    for change in reversed(shown):
        values = {name: value for name, value in change["values"].items() if name not in change["unsent"]}
        if change["operation"] in ("delete", "truncate"):
            known = {}
            continue
        if change["operation"] == "update":
            base = known | change["before"]
            change["changed"] = [name for name in values if name in base and base[name] != values[name]]
            known = base | values
        else:
            known = values
