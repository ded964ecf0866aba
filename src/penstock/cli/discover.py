"""`penstock discover`: which tables there are, and what each is like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.settings import open_pipeline, settings_of
from penstock.cli.tables import count, size, table

if TYPE_CHECKING:
    from penstock.sources.tables import SourceTable

_IDENTITIES = {"d": "default", "f": "full", "i": "index", "n": "nothing"}


def discover(context: typer.Context) -> None:
    """List the source's tables with their keys, replica identity and estimated size."""
    settings = settings_of(context)
    tables = open_pipeline(settings).discover()
    if settings.json:
        settings.emit_json({"tables": [_to_json(item) for item in tables]})
        return
    rows = [
        (
            str(item.stream),
            item.kind,
            str(len(item.schema.columns)),
            ", ".join(item.primary_key) or "none",
            _identity(item),
            count(item.estimated_rows),
            size(item.bytes),
        )
        for item in tables
    ]
    columns = ("stream", "kind", "columns", "primary key", "replica identity", "rows (estimated)", "size")
    settings.out.print(table(columns, rows, right=("columns", "rows (estimated)", "size")))


def _identity(item: SourceTable) -> str:
    return _IDENTITIES.get(item.schema.replica_identity, item.schema.replica_identity)


def _to_json(item: SourceTable) -> dict[str, Any]:
    return {
        "stream": str(item.stream),
        "kind": item.kind,
        "primary_key": list(item.primary_key),
        "replica_identity": _identity(item),
        "rows_estimated": item.estimated_rows,
        "bytes": item.bytes,
        "publications": sorted(item.publications),
        "columns": [
            {"name": column.name, "type": column.type_text, "nullable": column.nullable}
            for column in item.schema.columns
        ],
    }
