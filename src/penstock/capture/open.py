"""From a spec to the source that it names: the one place of capture that knows all kinds."""

from __future__ import annotations

from collections.abc import Callable

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


def import_likely() -> Callable[[], None]:
    """Import what is needed for Postgres, before anybody says which kind it is; what has its compiled code
    loaded. Other kinds have theirs loaded when they are set up."""
    from penstock.capture.postgres.source import load_compiled

    return load_compiled
