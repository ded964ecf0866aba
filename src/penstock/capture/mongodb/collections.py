"""Which table a collection's events belong to, as the catalog has it when the first of them comes.

An event names its collection and nothing else of it. Its number, by which one that was dropped and made anew
is told from the old one, and in the layout `fields` its columns, come from the catalog, which may have moved
on since: a collection that is gone by then has the number 0, "not known", and of its fields all but `_id` are
in `_rest`. After a drop or a rename the catalog is asked again.

A collection in which no field was seen is asked for each time that events of it come: nobody remembers a
sample without fields, so whoever looks next may find some, and those are its columns from then on.

In the layout `fields` a field that comes later gets a column when a change shows a value of it (`grown`): a
version of the table for the rows from that change on, as after an `ALTER TABLE … ADD COLUMN`, with rows from
before as they were. It is remembered before any row is written so. Hence the versions of a collection in the
log only ever become wider, also over restarts and leaders; that is `sources.mongodb.remembered`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from penstock import failpoints
from penstock.capture.log_reading import CapturedTable
from penstock.capture.mongodb.selection import Selection
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.sources.mongodb.catalog import discover
from penstock.sources.mongodb.connection import Client
from penstock.sources.mongodb.documents import Documents
from penstock.sources.mongodb.new_fields import new_fields
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.types import ID, Layout, document_columns, field_columns

_logger = structlog.get_logger("penstock.capture")


@dataclass(frozen=True, slots=True)
class Room:
    """`later_max`: how many fields of a collection may get columns later. `taken`: names that tables give to
    other columns."""

    later_max: int = 0
    taken: tuple[str, ...] = ()


NO_ROOM = Room()


class Collections:
    def __init__(
        self,
        selection: Selection,
        connect: Callable[[], Client],
        layout: Layout,
        remembered: RememberedFields | None,
        room: Room = NO_ROOM,
    ) -> None:
        self.selection = selection
        self._connect = connect
        self._layout: Layout = layout
        self._remembered = remembered
        self._room = room
        self._client: Client | None = None
        self._tables: dict[StreamId, CapturedTable] = {}

    def table(self, stream: StreamId) -> CapturedTable | None:
        """None: its changes are not ours to keep."""
        found = self._tables.get(stream)
        if found is None and stream in self.selection:
            schema, is_settled = self._describe(stream)
            found = CapturedTable(schema, stream)
            if is_settled:
                self._tables[stream] = found
        return found

    def grown(self, table: CapturedTable, documents: Documents) -> CapturedTable | None:
        """The table from now on, since these documents have fields that it has no column for; None: as it is.

        One of which nothing is remembered gets its columns from a sample, and one that is gone gets none.
        """
        schema = table.schema
        room = self._room.later_max - sum(1 for column in schema.columns if column.moved_from)
        if self._remembered is None or not schema.relation_oid or room <= 0:
            return None
        found = new_fields(documents, schema.names, room, self._room.taken)
        if not found:
            return None
        fields = self._remembered.add_later(str(schema.relation_oid), found, self._room.later_max)
        failpoints.reach("capture.fields_remembered")
        columns = field_columns(fields)
        if len(columns) <= len(schema.columns):
            return None
        wider = CapturedTable(replace(schema, columns=columns), table.leaf)
        self._tables[schema.stream] = wider
        added = len(columns) - len(schema.columns)
        _logger.info("fields that came later are columns now", stream=str(schema.stream), fields=added)
        if added >= room:
            _logger.warning("no field that comes now gets a column", stream=str(schema.stream))
        return wider

    def forget(self, stream: StreamId) -> None:
        """It is another one from now on, or none."""
        self._tables.pop(stream, None)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _describe(self, stream: StreamId) -> tuple[TableSchema, bool]:
        """Whether it stays as it is, too."""
        if self._client is None:
            self._client = self._connect()
        for table in discover(self._client, [stream], layout=self._layout, remembered=self._remembered):
            if table.can_be_captured:
                return table.schema, self._layout == "document" or bool(table.fields)
        columns = document_columns() if self._layout == "document" else field_columns(())
        return TableSchema(stream, columns, (ID,)), True
