"""From a spec to the source that it names: the one place of capture that knows all kinds."""

from __future__ import annotations

from penstock.capture.source import CaptureSource
from penstock.capture.source_spec import MongoSpec, MysqlSpec
from penstock.capture.spec import CaptureSpec


def open_source(spec: CaptureSpec) -> CaptureSource:
    """Nothing is asked of the server yet."""
    if isinstance(spec.source, MongoSpec):
        from penstock.capture.mongodb.source import MongoCapture

        return MongoCapture(spec.source, spec)
    if isinstance(spec.source, MysqlSpec):
        from penstock.capture.mysql.source import MysqlCapture

        return MysqlCapture(spec.source, spec)
    from penstock.capture.postgres.source import PostgresCapture

    return PostgresCapture(spec.source, spec)


def load_compiled() -> None:
    """Have compiled code ready by the time that it is needed: before anybody says which kind it is for, that
    of Postgres. Other kinds have theirs loaded when they are set up."""
    from penstock.capture.postgres.source import load_compiled as load_postgres

    load_postgres()
