"""`TableVersions`: the versions of a table's columns that changes came in, and whether its shapes read them.

What is promised: no row is rendered for a shape that cannot read the version it came in; and a version that
all shapes of the table can read costs one lookup for each batch. A shape that comes later is asked about the
versions that were seen, for rows in them may still come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from penstock.capture.transactions import ChangeRows, TableVersion
from penstock.core.stream import StreamId
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.engine.broken_shapes import BrokenShapes
from penstock.shapes.engine.consumer import Consumer, Doubt
from penstock.shapes.engine.consumer_registry import ConsumerRegistry
from penstock.shapes.engine.table_changes import can_read, shown_columns


class TableVersions:
    """Belongs to the engine's thread. `on_new_version` is told of tables that came in one never seen."""

    def __init__(
        self, slots: ConsumerRegistry, broken: BrokenShapes, on_new_version: Callable[[StreamId], None]
    ) -> None:
        self._slots = slots
        self._broken = broken
        self._on_new_version = on_new_version
        # By schema id, the versions of a table that were seen; None: not all of its shapes can read it.
        self._seen: dict[StreamId, dict[str, TableVersion | None]] = {}

    def shape_added(self, definition: ShapeDefinition) -> None:
        seen = self._seen.get(definition.table, {})
        for schema_id, version in seen.items():
            if version is not None and not can_read(definition, version):
                seen[schema_id] = None

    def forget(self, table: StreamId) -> None:
        """It has no shapes any more."""
        self._seen.pop(table, None)

    def check(self, changes: ChangeRows, consumers: Mapping[int, Consumer]) -> None:
        """These changes come to these shapes: those that cannot read them go, if they are news to them, and
        those that show all columns show the ones that came."""
        versions, version = self._seen.setdefault(changes.stream, {}), changes.version
        if versions.get(changes.schema_id) is not None:
            return
        unreadable = Doubt(changes, np.arange(len(changes)), "schema")
        all_can = True
        for consumer in consumers.values():
            definition = consumer.shape.definition
            if not can_read(definition, version):
                self._broken.doubt(consumer, unreadable)
                all_can = False
            elif len(columns := shown_columns(definition, version)) > len(consumer.view.columns):
                self._slots.look_as(consumer, replace(consumer.view, columns=columns))
        if changes.schema_id not in versions:
            self._on_new_version(changes.stream)
        versions[changes.schema_id] = version if all_can else None
