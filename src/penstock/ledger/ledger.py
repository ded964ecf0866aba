"""The state in use: one document, replaced only by durable ones."""

from __future__ import annotations

from penstock.ledger.state import StateDocument
from penstock.ledger.store import StateStore


class Ledger:
    """What this process believes is committed. `write` returns when the belief is on disk."""

    def __init__(self, store: StateStore) -> None:
        self.store = store
        self.document = store.load() or StateDocument.new()

    def write(self, document: StateDocument) -> None:
        """Make `document` the state; a document that says nothing new costs nothing."""
        if document != self.document or document.state_version is None:
            self.document = self.store.save(document)
