"""The state in use: one document, replaced only by durable ones.

Loads and rounds write it from their own threads; `rebase` says why neither undoes what the other wrote.
"""

from __future__ import annotations

import threading

from penstock.ledger.dialect import PlaceOf, SourceName
from penstock.ledger.rebase import rebased
from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore


class Ledger:
    """What this process believes is committed. `write` returns when the belief is on disk."""

    def __init__(
        self, store: StateStore, source: SourceName = "postgres", place_of: PlaceOf | None = None
    ) -> None:
        """`place_of`: the source's words for a position, from the log; Postgres' positions need none.

        StateError if the state holds positions of another kind of source.
        """
        self.store = store
        self.document = (store.load() or StateDocument.new(source=source)).of_source(source)
        self._place_of = place_of
        self._lock = threading.Lock()

    def write(self, document: StateDocument) -> None:
        """Make `document` the state, or what it changed a part of it, if the state has moved on meanwhile.

        A document that says nothing new costs nothing.
        """
        if self._place_of is not None:
            document = document.placed(self._place_of)
        with self._lock:
            document = rebased(document, self.document)
            if document != self.document or document.state_version is None:
                self.document = self.store.save(document).settled()
