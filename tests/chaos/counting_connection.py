"""A connection that counts the rows which its transactions have changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

_CHANGES = ("INSERT", "UPDATE", "DELETE")


class CountingConnection(psycopg.Connection[tuple[Any, ...]]):
    """`changed`: rows inserted, updated and deleted. What was rolled back does not count, whole or to a
    savepoint; nor does a transaction of which nobody knows whether it was committed."""

    changed = 0

    def execute(self, *args: Any, **kwargs: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        cursor = super().execute(*args, **kwargs)
        if (cursor.statusmessage or "").startswith(_CHANGES):
            self.changed += cursor.rowcount
        return cursor

    @contextmanager
    def transaction(self, *args: Any, **kwargs: Any) -> Iterator[psycopg.Transaction]:
        before = kept = self.changed
        try:
            with super().transaction(*args, **kwargs) as transaction:
                yield transaction
                kept = self.changed
        except BaseException:
            kept = before
            raise
        finally:
            self.changed = kept
