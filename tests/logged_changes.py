"""A table as the live lane meets it, without a server: its changes as pieces of the tail, its definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.capture.tail_items import Piece, Transactions
from penstock.core.position import Lsn
from penstock.core.schema import SourceColumn, TableSchema
from penstock.core.stream import StreamId
from penstock.log import columns as log_columns
from penstock.shapes.definition import DefinitionRequest, ShapeDefinition, define
from penstock.shapes.source.catalog import CardColumn, TableCard

TABLE = StreamId("public", "items")
COLUMNS = (
    SourceColumn("id", 23, -1, "int4", "integer", attribute_number=1, nullable=False),
    SourceColumn("owner", 23, -1, "int4", "integer", attribute_number=2),
    SourceColumn("note", 25, -1, "text", "text", attribute_number=3),
)
CARD = TableCard(
    TABLE, 16384, "r", tuple(CardColumn(each, each.type_name, 0, -1) for each in COLUMNS), ("id",)
)

Row = dict[str, str | None]


@dataclass(frozen=True)
class Logged:
    """One change as the log has it. `kind`: i, u, d or t."""

    tx: int
    op: int
    kind: str
    new: Row | None = None
    old: Row | None = None
    xid: int = 1
    old_kind: str | None = None


def definition(where: str | None = None, **given: Any) -> ShapeDefinition:
    return define(DefinitionRequest(str(TABLE), where=where, **given), {TABLE: CARD}.get)


def piece(
    changes: Sequence[Logged], leaf: str = "public.items", columns: Sequence[SourceColumn] = COLUMNS
) -> Piece:
    schema = TableSchema(TABLE, tuple(columns), ("id",), "f", storage=leaf)
    rows = pa.RecordBatch.from_pylist(
        [_row(change, [column.name for column in columns]) for change in changes],
        schema=log_columns.log_schema(schema, leaf),
    )
    return Piece(TABLE, StreamId.parse(leaf), schema.id, rows)


def item(end: int, *pieces: Piece) -> Transactions:
    return Transactions(Lsn(end), pieces, 0.0)


def _row(change: Logged, names: Sequence[str]) -> dict[str, Any]:
    old = None if change.old is None else {name: change.old.get(name) for name in names}
    return {name: (change.new or {}).get(name) for name in names} | {
        log_columns.TX: change.tx,
        log_columns.OP_INDEX: change.op,
        log_columns.OP: change.kind,
        log_columns.XID: change.xid,
        log_columns.COMMIT_TS: 0,
        log_columns.OLD: old,
        log_columns.OLD_KIND: change.old_kind or ("n" if old is None else "f"),
    }
