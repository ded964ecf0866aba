"""Whether the log has all that a pipeline needs which takes over from another: it is asked, not made so."""

from __future__ import annotations

from penstock.core.errors import PositionGoneError, SourceError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.sources.postgres.connection import Connection, query_errors
from penstock.sources.postgres.slots import read_slot, require_usable
from penstock.sources.tables import SourceTable


def require_slot(connection: Connection, name: str, least: Lsn) -> None:
    """That the slot is there and not beyond `least`."""
    slot = require_usable(read_slot(connection, name), name, connection.info.dbname)
    if slot.confirmed_flush is None or slot.confirmed_flush > least:
        raise PositionGoneError(
            f"The slot {name} is at {slot.confirmed_flush}, beyond {least} where OLake's tables end: "
            "changes in between are no longer kept.",
            remedy="Set `mode: cdc` for the streams to load them anew, or give the newest state.json.",
        )


def require_published(connection: Connection, publication: str, table: SourceTable) -> None:
    with query_errors("reading pg_publication_tables"):
        rows = connection.execute(
            "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (publication,)
        ).fetchall()
    published = {StreamId(schema, name) for schema, name in rows}
    leaves = {leaf.stream for leaf in table.leaves}
    if table.stream not in published and not (leaves and leaves <= published):
        raise SourceError(
            f"The publication {publication} does not have this table, so its changes since OLake's last sync "
            "are not in the log.",
            stream=str(table.stream),
            remedy="Name the publication that OLake used (source: publication), or set `mode: cdc`.",
        )
