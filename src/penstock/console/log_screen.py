"""The change log on the screen: its steps, the transactions of one, schemas that streams had, a key over
time.

All that is read is bounded: a page of steps, a step's own rows, of a key the newest files up to
`KEY_BYTES_MAX`. Steps that retention removes while they are read are passed over."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from penstock.core.errors import ConfigError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest, list_sequence, read_manifest

STEPS_SHOWN = 50
TRANSACTIONS_SHOWN = 200
CHANGES_SHOWN = 200
SCHEMA_STEPS_MAX = 5000
KEY_BYTES_MAX = 512 << 20
_ROWS_MAX = 500_000
_OPERATIONS = {"i": "insert", "u": "update", "d": "delete", "t": "truncate", "r": "read"}


def steps(log: Path, before: int = 0) -> dict[str, Any]:
    """The newest steps, or those before one."""
    numbers = list_sequence(log)
    wanted = [seq for seq in numbers if not before or seq < before][-STEPS_SHOWN:][::-1]
    found = [_described(each) for seq in wanted if (each := _read(log, seq)) is not None]
    oldest = _read(log, numbers[0]) if numbers else None
    return {
        "steps": found,
        "total": len(numbers),
        "begins": None if oldest is None else str(oldest.start),
        "more": bool(wanted) and wanted[-1] != numbers[0],
    }


def step(log: Path, seq: int) -> dict[str, Any]:
    """One step: its tables, and its transactions."""
    manifest = _read(log, seq)
    if manifest is None:
        raise ConfigError(f"The log has no step {seq} any more.", remedy="Look at the list of steps again.")
    tables = [
        {
            "stream": str(table.stream),
            "rows": sum(file.rows for file in table.files),
            "bytes": sum(file.bytes for file in table.files),
            "operations": _summed([file.operations for file in table.files]),
            "truncates": len(table.truncates),
        }
        for table in manifest.tables
    ]
    found, is_cut = _transactions(log, manifest)
    return {**_described(manifest), "streams": tables, "shown": found, "is_cut": is_cut}


def schemas(log: Path, stream: StreamId) -> dict[str, Any]:
    """The versions a stream's table had, as far as the log reaches back, and what changed from each to the
    next.
    """
    from penstock.log.reader import ChangeLog

    reader = ChangeLog(log)
    seen: dict[str, dict[str, Any]] = {}
    before: TableSchema | None = None
    for seq in list_sequence(log)[-SCHEMA_STEPS_MAX:]:
        manifest = _read(log, seq)
        table = None if manifest is None else manifest.table(stream)
        for file in () if manifest is None or table is None else table.files:
            if file.schema_id in seen:
                continue
            schema = reader.schema(file.schema_id)
            seen[file.schema_id] = {
                "id": file.schema_id,
                "step": seq,
                "since": manifest.sealed_at if manifest is not None else "",
                "columns": len(schema.columns),
                "key": list(schema.key),
                "changes": [] if before is None else _changed(before, schema),
            }
            before = schema
    return {"stream": str(stream), "versions": list(seen.values())[::-1]}


def changes_of_key(log: Path, stream: StreamId, key: str) -> dict[str, Any]:
    """Every change of one row that the log still has, the newest first. `key`: its columns' text, by
    commas.
    """
    import pyarrow.parquet as pq

    from penstock.log import columns as log_columns
    from penstock.log.reader import ChangeLog

    reader = ChangeLog(log)
    found: list[dict[str, Any]] = []
    read, files_read = 0, 0
    columns: tuple[str, ...] = ()
    for seq in reversed(list_sequence(log)):
        manifest = _read(log, seq)
        table = None if manifest is None else manifest.table(stream)
        of_step: list[dict[str, Any]] = []
        for file in () if table is None else table.files:
            schema = reader.schema(file.schema_id)
            columns = schema.key
            parts = key.split(",") if len(schema.key) > 1 else [key]
            if len(parts) != len(schema.key):
                raise ConfigError(
                    f"The key has {len(schema.key)} columns: {', '.join(schema.key)}.",
                    stream=str(stream),
                    remedy="Give the text of each, in this order, with commas between them.",
                )
            pairs = zip(schema.key, parts, strict=True)
            wanted = [(log_columns.stored_name(name), "=", part.strip()) for name, part in pairs]
            try:
                rows = pq.read_table(log / file.path, filters=wanted).slice(0, CHANGES_SHOWN)
            except FileNotFoundError:
                continue
            read, files_read = read + file.bytes, files_read + 1
            of_step += [_change(row, seq, schema) for row in rows.to_pylist()]
        found += sorted(of_step, key=lambda each: (each["tx"], each["op_index"]), reverse=True)
        if len(found) >= CHANGES_SHOWN or read >= KEY_BYTES_MAX:
            break
    shown = found[:CHANGES_SHOWN]
    for newer, older in itertools.pairwise(shown):
        newer["changed"] = [
            name for name, value in newer["values"].items() if older["values"].get(name) != value
        ]
    return {
        "stream": str(stream),
        "key": list(columns),
        "shown": shown,
        "files_read": files_read,
        "is_cut": len(found) > len(shown) or read >= KEY_BYTES_MAX,
    }


def _change(row: dict[str, Any], seq: int, schema: TableSchema) -> dict[str, Any]:
    from penstock.log import columns as log_columns

    unsent = set(row[log_columns.UNCHANGED] or ())
    values = {
        column.name: "(not sent: unchanged)"
        if column.name in unsent
        else row[log_columns.stored_name(column.name)]
        for column in schema.columns
    }
    return {
        "step": seq,
        "tx": row[log_columns.TX],
        "at": str(Lsn(row[log_columns.TX])),
        "op_index": row[log_columns.OP_INDEX],
        "operation": _OPERATIONS.get(row[log_columns.OP], row[log_columns.OP]),
        "committed": row[log_columns.COMMIT_TS].isoformat(),
        "xid": row[log_columns.XID],
        "values": values,
        "changed": [],
    }


def _transactions(log: Path, manifest: Manifest) -> tuple[list[dict[str, Any]], bool]:
    """What each transaction did, by stream and operation."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables, rows = [], 0
    is_cut = False
    for table in manifest.tables:
        for file in table.files:
            if rows >= _ROWS_MAX:
                is_cut = True
                break
            try:
                part = pq.read_table(log / file.path, columns=["_tx", "_xid", "_commit_ts", "_op"])
            except FileNotFoundError:
                continue
            rows += part.num_rows
            names = pa.array([str(table.stream)] * part.num_rows, pa.string())
            tables.append(part.append_column("stream", names))
    if not tables:
        return [], is_cut
    grouped = (
        pa.concat_tables(tables)
        .group_by(["_tx", "_xid", "_commit_ts", "stream", "_op"])
        .aggregate([([], "count_all")])
        .sort_by([("_tx", "descending"), ("stream", "ascending"), ("_op", "ascending")])
    )
    found: dict[int, dict[str, Any]] = {}
    for row in grouped.to_pylist():
        if row["_tx"] not in found:
            if len(found) >= TRANSACTIONS_SHOWN:
                is_cut = True
                break
            found[row["_tx"]] = {
                "at": str(Lsn(row["_tx"])),
                "xid": row["_xid"],
                "committed": row["_commit_ts"].isoformat(),
                "did": [],
            }
        name = _OPERATIONS.get(row["_op"], row["_op"])
        found[row["_tx"]]["did"].append(
            {"stream": row["stream"], "operation": name, "rows": row["count_all"]}
        )
    return list(found.values()), is_cut


def _described(manifest: Manifest) -> dict[str, Any]:
    files = [file for table in manifest.tables for file in table.files]
    return {
        "step": manifest.seq,
        "from": str(manifest.start),
        "to": str(manifest.end),
        "sealed_at": manifest.sealed_at,
        "transactions": manifest.transactions,
        "rows": sum(file.rows for file in files),
        "bytes": manifest.bytes,
        "tables": len(manifest.tables),
        "operations": _summed([file.operations for file in files]),
    }


def _summed(operations: list[dict[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in operations:
        for name, count in each.items():
            sums[_OPERATIONS.get(name, name)] = sums.get(_OPERATIONS.get(name, name), 0) + count
    return sums


def _changed(before: TableSchema, after: TableSchema) -> list[str]:
    old = {column.name: column for column in before.columns}
    new = {column.name: column for column in after.columns}
    found = [f"{name} came" for name in new if name not in old]
    found += [f"{name} went" for name in old if name not in new]
    found += [
        f"{name} changed its type" for name in new if name in old and _kind(old[name]) != _kind(new[name])
    ]
    if before.key != after.key:
        found.append(f"the key is {', '.join(after.key) or 'none'} now")
    return found or ["the table was rewritten or made anew, its columns are the same"]


def _kind(column: Any) -> Any:
    fields = column.to_json()
    return {name: fields[name] for name in fields if "type" in name}


def _read(log: Path, seq: int) -> Manifest | None:
    try:
        return read_manifest(log, seq)
    except FileNotFoundError:
        return None
