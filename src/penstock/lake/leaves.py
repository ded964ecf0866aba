"""The leaves of a partitioned table, as the state remembers them."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.stream import StreamId
from penstock.ledger.state import StateDocument
from penstock.sources.tables import SourceTable


def leaf_marks(info: SourceTable) -> dict[str, str]:
    """Each leaf with what changes when it is created anew, or detached and attached again."""
    if info.kind != "partitioned":
        return {}
    return {str(leaf.stream): f"{leaf.oid}/{leaf.attached}" for leaf in info.leaves}


def with_leaves(document: StateDocument, info: SourceTable) -> StateDocument:
    """The document with the leaves that the table was loaded from, or found to follow."""
    return with_marks(document, info.stream, leaf_marks(info))


def with_marks(document: StateDocument, stream: StreamId, marks: Mapping[str, str]) -> StateDocument:
    if not marks:
        return document
    draft = document.draft()
    draft.own(stream)["leaves"] = dict(marks)
    return draft.done()


def known_leaves(document: StateDocument, info: SourceTable) -> dict[str, str] | None:
    if info.kind != "partitioned":
        return None
    marks = document.draft().own(info.stream).get("leaves")
    return dict(marks) if isinstance(marks, dict) else None
