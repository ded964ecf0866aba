"""What a change of a table means for its shapes, and who notices it.

`compare` is the rule: a shape is *rotated* (its clients fetch anew under another handle) when rows it has
already given would read otherwise now, or no longer be named by the same key:

    the table is gone, another one has its name, it was renamed          rotate
    a partition was attached or detached (correctness 47), or the table,
      with partitions of its own, became one of another                   rotate
    the key, or what kind of table it is                                  rotate
    a column that the shape shows, filters or names rows by was dropped,
      renamed, or has another type, collation or set of labels            rotate
    a column was added: older rows have a value in it, or it is part of
      the key since there is no other                                     rotate
      null in all of them, or the shape does not show it                  refresh
    nullability                                                           refresh

A *refresh* gives the shape the present card: new columns and the schema header. Changes that appear in the
log are compared at once (`look_at`); the periodic turn finds those that do not: a table that is dropped, a
partition, a column of a table nobody writes to; and a table that somebody has taken out of the publication,
whose shapes would never hear of a change again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from penstock.core.errors import PenstockError
from penstock.core.stream import StreamId
from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.shape import Shape, SnapshotProblem
from penstock.shapes.source.catalog import CardColumn, Catalog, TableCard, read_cards
from penstock.shapes.source.connection_pool import ConnectionPool
from penstock.sources.postgres.connection import Connection, query_errors

_STOP_WITHIN_S = 5.0
#: The tables of a publication, leaf by leaf; nothing if it is not there, which is capture's to say.
_PUBLISHED = """
SELECT ARRAY(SELECT t.relid::bigint FROM pg_get_publication_tables(p.pubname) AS t)
FROM pg_publication AS p WHERE p.pubname = %(publication)s
"""
_logger = structlog.get_logger("penstock.shapes")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`card`: the table as it is now, for a refresh."""

    kind: Literal["rotate", "refresh"]
    reason: str
    card: TableCard | None = None


def compare(definition: ShapeDefinition, card: TableCard | None) -> Verdict | None:
    """What a shape has to do about its table being as `card` says; None: nothing."""
    known = definition.card
    if card == known:
        return None
    if card is None or card.oid != known.oid or card.stream != known.stream:
        return Verdict("rotate", "the table was dropped, renamed or made anew")
    if card.kind != known.kind or card.unlogged != known.unlogged:
        return Verdict("rotate", "the table is of another kind")
    if card.partitions != known.partitions or card.is_branch:
        return Verdict("rotate", "a partition was attached or detached")
    if card.key != known.key:
        return Verdict("rotate", "the primary key is another one")
    if changed := _changed_column(definition, card):
        return Verdict("rotate", f"a column was {changed}")
    return Verdict("refresh", "the table has other columns, or others that may be null", card)


def is_published(card: TableCard, published: frozenset[int]) -> bool:
    """Whether all changes of a table are: of a partitioned one, those of each leaf."""
    leaves = {int(path.rpartition("/")[2].partition(":")[0]) for path in card.partitions}
    return card.oid in published or (card.kind == "p" and leaves <= published)


def _changed_column(definition: ShapeDefinition, card: TableCard) -> str:
    before = {column.name: column for column in definition.card.columns}
    now = {column.name: column for column in card.columns}
    for name in columns_used(definition):
        if name not in now or _essence(now[name]) != _essence(before[name]):
            return "dropped, renamed or changed"
    added = [column for name, column in now.items() if name not in before]
    if added and not definition.key:
        return "added to a table without a primary key"
    if not definition.selected_explicitly and any(not _reads_null(column) for column in added):
        return "added that older rows have a value in"
    return ""


def columns_used(definition: ShapeDefinition) -> frozenset[str]:
    """What a shape shows, filters by, or names rows by."""
    where = definition.where.columns if definition.where is not None else frozenset()
    return where.union(definition.columns, definition.key or definition.card.selectable)


def _essence(column: CardColumn) -> CardColumn:
    """The column without what concerns no value that it has: nullability and defaults."""
    source = replace(column.source, nullable=True, missing_value=None, toastable=False)
    return replace(column, source=source, has_default=False)


def _reads_null(column: CardColumn) -> bool:
    """Whether rows that are older than the column have null in it."""
    return not (column.not_null or column.has_default or column.generated)


class SchemaReconciler:
    """Compares tables with what their shapes know of them, in a thread of its own.

    `shapes` gives those there are; `on_verdict` is told what to do, from that thread.
    """

    def __init__(
        self,
        connections: ConnectionPool,
        catalog: Catalog,
        shapes: Callable[[], Iterable[Shape]],
        on_verdict: Callable[[Shape, Verdict], None],
        every_s: float,
        publication: str = "",
    ) -> None:
        self._publication = publication
        self._connections = connections
        self._catalog = catalog
        self._shapes = shapes
        self._on_verdict = on_verdict
        self._every_s = every_s
        self._told: set[StreamId] = set()
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shapes-reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_WITHIN_S)

    def look_at(self, stream: StreamId) -> None:
        """Have a table compared soon: something was said of it. Any thread; returns at once."""
        self._told.add(stream)
        self._catalog.forget(stream)
        self._wanted.set()

    def reconcile(self, streams: Iterable[StreamId] | None = None) -> None:
        """Compare these tables, or all that have shapes, now."""
        wanted = None if streams is None else frozenset(streams)
        shapes = [
            shape
            for shape in self._shapes()
            if shape.state != "gone" and (wanted is None or shape.definition.table in wanted)
        ]
        tables = sorted({shape.definition.table for shape in shapes} | (wanted or frozenset()))
        if not tables:
            return
        # A shape that is ready was made after its table was published.
        were_published = {shape for shape in shapes if shape.state == "ready"}
        with self._connections.connection() as connection:
            cards = {card.stream: card for card in read_cards(connection, streams=tables)}
            published = self._published(connection)
        for table in tables:
            if table in cards:
                self._catalog.put(cards[table])
            else:
                self._catalog.forget(table)
        lost = {
            card.stream
            for card in cards.values()
            if published is not None and not is_published(card, published)
        }
        for shape in shapes:
            table = shape.definition.table
            verdict = compare(shape.definition, cards.get(table))
            if table in lost and shape in were_published:
                verdict = Verdict("rotate", "the table was taken out of the publication")
            if verdict is not None:
                self._on_verdict(shape, verdict)

    def _published(self, connection: Connection) -> frozenset[int] | None:
        """None: that is not known."""
        with query_errors("reading the publication"):
            found = connection.execute(_PUBLISHED, {"publication": self._publication}).fetchone()
        return None if found is None else frozenset(found[0])

    def _run(self) -> None:
        due = time.monotonic() + self._every_s
        while True:
            self._wanted.wait(max(0.0, due - time.monotonic()))
            self._wanted.clear()
            if self._stopped.is_set():
                return
            told = {self._told.pop() for _ in range(len(self._told))}
            is_due = time.monotonic() >= due
            if is_due:
                due = time.monotonic() + self._every_s
            try:
                self.reconcile(None if is_due else told)
            except (PenstockError, SnapshotProblem) as error:
                _logger.warning("tables could not be compared", reason=error.message)
                self._told |= told  # for the next turn
