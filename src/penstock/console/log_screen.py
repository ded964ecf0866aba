"""The change log on the screen: its steps, the transactions of one, schemas that streams had.

All that is kept is bounded: a page of steps, of a step the newest transactions. Steps that retention removes
while they are read are passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.core.errors import ConfigError
from penstock.core.position import Lsn
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.log.manifest import Manifest, list_sequence, read_manifest

STEPS_SHOWN = 50
TRANSACTIONS_SHOWN = 200
SCHEMA_STEPS_MAX = 5000
_REWRITTEN = "the table was rewritten or made anew, its columns are the same"
OPERATIONS = {"i": "insert", "u": "update", "d": "delete", "t": "truncate", "r": "read"}


def steps(log: Path, before: int = 0) -> dict[str, Any]:
    """The newest steps, or those before one."""
    numbers = list_sequence(log)
    wanted = [seq for seq in numbers if not before or seq < before][-STEPS_SHOWN:][::-1]
    found = [_described(each) for seq in wanted if (each := read_step(log, seq)) is not None]
    oldest = read_step(log, numbers[0]) if numbers else None
    return {
        "steps": found,
        "total": len(numbers),
        "begins": None if oldest is None else str(oldest.start),
        "more": bool(wanted) and wanted[-1] != numbers[0],
    }


def step(log: Path, seq: int) -> dict[str, Any]:
    """One step: its tables, and its transactions."""
    manifest = read_step(log, seq)
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
    """The versions a stream's table had, and what changed from each to the next: as far as the log reaches
    back, or as so many steps do (`is_cut`).

    A version that comes back is told again. Partitions have versions of their own, and follow one another:
    what one of them has been through before is told once.
    """
    from penstock.log.reader import ChangeLog

    reader = ChangeLog(log)
    numbers = list_sequence(log)
    told: list[str] = []  # ids, as they followed one another
    stands: dict[str, int] = {}  # of each leaf, with which of them its newest file was written
    found: list[dict[str, Any]] = []
    for seq in numbers[-SCHEMA_STEPS_MAX:]:
        manifest = read_step(log, seq)
        table = None if manifest is None else manifest.table(stream)
        for file in () if manifest is None or table is None else table.files:
            at = stands.get(file.leaf)
            if at is not None and told[at] == file.schema_id:
                continue
            known = told[at + 1 :] if at is not None else told
            if file.schema_id in known:
                stands[file.leaf] = len(told) - len(known) + known.index(file.schema_id)
                continue
            schema = reader.schema(file.schema_id)
            before = None if not told else reader.schema(told[-1 if at is None else at])
            same = f"it is of {file.leaf}, its columns are the same" if at is None else _REWRITTEN
            stands[file.leaf] = len(told)
            told.append(file.schema_id)
            found.append(
                {
                    "id": file.schema_id,
                    "step": seq,
                    "since": manifest.sealed_at if manifest is not None else "",
                    "columns": len(schema.columns),
                    "key": list(schema.key),
                    "changes": [] if before is None else _changed(before, schema) or [same],
                }
            )
    return {"stream": str(stream), "versions": found[::-1], "is_cut": len(numbers) > SCHEMA_STEPS_MAX}


def _transactions(log: Path, manifest: Manifest) -> tuple[list[dict[str, Any]], bool]:
    """What each of the newest transactions did, by stream and operation, and whether there are more.

    All of the step's files are asked, and of each what is at least as new as the newest transactions found
    so far: what is kept is small, and what is shown of a transaction is all that it did.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    names = ["_tx", "_xid", "_commit_ts", "_op"]
    kept: pa.Table | None = None
    oldest: int | None = None
    files = [(table.stream, file) for table in manifest.tables for file in table.files]
    for stream, file in sorted(files, key=lambda each: each[1].last_tx, reverse=True):
        if oldest is not None and file.last_tx < oldest:
            break
        wanted = None if oldest is None else pc.field("_tx") >= oldest
        try:
            dataset = ds.dataset(log / file.path, format="parquet")
            for batch in dataset.to_batches(columns=names, filter=wanted, use_threads=False):
                part = _counted(pa.Table.from_batches([batch]), str(stream))
                kept = part if kept is None else _summed_up(pa.concat_tables([kept, part]))
                kept, oldest = _newest(kept)
        except FileNotFoundError:
            continue
    if kept is None:
        return [], False
    order = [("_tx", "descending"), ("stream", "ascending"), ("_op", "ascending")]
    found: dict[int, dict[str, Any]] = {}
    for row in kept.sort_by(order).to_pylist():
        one = found.setdefault(
            row["_tx"],
            {
                "at": str(Lsn(row["_tx"])),
                "xid": row["_xid"],
                "committed": row["_commit_ts"].isoformat(),
                "did": [],
            },
        )
        name = OPERATIONS.get(row["_op"], row["_op"])
        one["did"].append({"stream": row["stream"], "operation": name, "rows": row["rows"]})
    return list(found.values())[:TRANSACTIONS_SHOWN], len(found) > TRANSACTIONS_SHOWN


_BY = ["_tx", "_xid", "_commit_ts", "stream", "_op"]


def _counted(rows: Any, stream: str) -> Any:
    import pyarrow as pa

    grouped = rows.group_by(["_tx", "_xid", "_commit_ts", "_op"]).aggregate([([], "count_all")])
    named = grouped.append_column("stream", pa.repeat(pa.scalar(stream), grouped.num_rows))
    return named.select([*_BY, "count_all"]).rename_columns([*_BY, "rows"])


def _summed_up(parts: Any) -> Any:
    grouped = parts.group_by(_BY).aggregate([("rows", "sum")])
    return grouped.select([*_BY, "rows_sum"]).rename_columns([*_BY, "rows"])


def _newest(parts: Any) -> tuple[Any, int | None]:
    """Of the newest transactions, and one more, which tells that there are others; and the oldest of them,
    once there are so many.
    """
    import pyarrow.compute as pc

    numbers = pc.unique(parts.column("_tx")).sort("descending")
    if len(numbers) <= TRANSACTIONS_SHOWN:
        return parts, None
    oldest = numbers[TRANSACTIONS_SHOWN].as_py()
    return parts.filter(pc.field("_tx") >= oldest), oldest


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
            sums[OPERATIONS.get(name, name)] = sums.get(OPERATIONS.get(name, name), 0) + count
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
    return found


def _kind(column: Any) -> Any:
    fields = column.to_json()
    return {name: fields[name] for name in fields if "type" in name}


def read_step(log: Path, seq: int) -> Manifest | None:
    try:
        return read_manifest(log, seq)
    except FileNotFoundError:
        return None
