"""Which table a collection's events belong to, as the catalog has it when the first of them comes.

An event names its collection and nothing else of it. Its number, by which one that was dropped and made anew
is told from the old one, and in the layout `fields` its columns, come from the catalog, which may have moved
on since: a collection that is gone by then has the number 0, "not known", and of its fields all but `_id` are
in `_rest`. After a drop or a rename the catalog is asked again.

A collection in which no field was seen is asked for each time that events of it come: nobody remembers a
sample without fields, so whoever looks next may find some, and those are its columns from then on.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.capture.log_reading import CapturedTable
from penstock.capture.mongodb.selection import Selection
from penstock.core.schema import TableSchema
from penstock.core.stream import StreamId
from penstock.sources.mongodb.catalog import discover
from penstock.sources.mongodb.connection import Client
from penstock.sources.mongodb.remembered import RememberedFields
from penstock.sources.mongodb.types import ID, Layout, document_columns, field_columns


class Collections:
    def __init__(
        self,
        selection: Selection,
        connect: Callable[[], Client],
        layout: Layout,
        remembered: RememberedFields | None,
    ) -> None:
        self.selection = selection
        self._connect = connect
        self._layout: Layout = layout
        self._remembered = remembered
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
