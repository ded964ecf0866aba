"""Which dialect a state file is written in: what it says; or, of another tool's file, what it looks like."""

from __future__ import annotations

from penstock.ledger.dialect import Dialect, Fields, Postgres, SourceName
from penstock.ledger.dialect_mongodb import MongoDb, is_mongodb
from penstock.ledger.dialect_mysql import MySql, is_mysql

DIALECTS: dict[SourceName, Dialect] = {"postgres": Postgres(), "mysql": MySql(), "mongodb": MongoDb()}


def dialect_of(raw: Fields) -> Dialect:
    """ValueError if the file is of a source that this version does not know."""
    own = raw.get("penstock") or {}
    if own:  # ours; those of Postgres do not say so
        named = own.get("source", "postgres")
        if named not in DIALECTS:
            raise ValueError(f"it is of a source that this Penstock does not know: {named!r}")
        return DIALECTS[named]
    if is_mysql(raw):
        return DIALECTS["mysql"]
    return DIALECTS["mongodb" if is_mongodb(raw) else "postgres"]
