"""Whether a table still is what a shape was defined on, asked in the very transaction that reads its rows.

Reading the whole card takes several queries, and a thousand shapes of one table may be made at once. So a
card is kept with the versions (`xmin`) of the catalog's rows that it was made of, and read again only if one
of them is another. Partitions and the labels of enumerations have further rows: those cards are always read.
"""

from __future__ import annotations

import threading

from psycopg import sql

from penstock.core.stream import StreamId
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.source.catalog import TableCard, read_cards
from penstock.shapes.source.problems import schema_changed
from penstock.shapes.source.reconciler import compare
from penstock.sources.postgres.connection import Connection
from penstock.sources.postgres.publication import quoted

_KEPT_MAX = 10_000
_VERSIONS = """
(SELECT ARRAY[c.oid::text, c.xmin::text,
              (SELECT string_agg(concat_ws(':', a.attnum, a.xmin), ',' ORDER BY a.attnum)
               FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0),
              (SELECT string_agg(concat_ws(':', i.indexrelid, i.xmin), ',' ORDER BY i.indexrelid)
               FROM pg_index AS i WHERE i.indrelid = c.oid)]
 FROM pg_class AS c WHERE c.oid = to_regclass({}))
"""

Versions = tuple[str | None, ...]


def versions_of(table: StreamId) -> sql.Composable:
    """An expression: the oid of the table of that name, and the versions of its rows in the catalog; null if
    there is none."""
    return sql.SQL(_VERSIONS).format(sql.Literal(quoted(table)))


class PresentTables:
    """Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cards: dict[int, tuple[Versions, TableCard]] = {}

    def definition(
        self, connection: Connection, definition: ShapeDefinition, versions: Versions | None
    ) -> ShapeDefinition:
        """The same shape of its table as it is now, in these versions; a `SnapshotProblem` if that is another
        table."""
        verdict = compare(definition, None if versions is None else self._card(connection, versions))
        if verdict is None:
            return definition
        if verdict.card is None:
            raise schema_changed(definition.table)
        return definition.with_card(verdict.card)

    def _card(self, connection: Connection, versions: Versions) -> TableCard | None:
        oid = int(versions[0] or 0)
        kept = self._cards.get(oid)
        if kept is not None and kept[0] == versions:
            return kept[1]
        cards = read_cards(connection, oids=[oid])
        card = cards[0] if cards else None
        if card is not None and card.kind != "p" and not any(column.labels for column in card.columns):
            with self._lock:
                while len(self._cards) >= _KEPT_MAX:
                    self._cards.pop(next(iter(self._cards)))
                self._cards[oid] = (versions, card)
        return card
