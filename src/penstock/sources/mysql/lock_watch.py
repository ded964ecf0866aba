"""Whether somebody waits to have a table for himself: an ALTER, a TRUNCATE, a LOCK TABLES.

MySQL lets go of a table when a transaction goes back to a savepoint from before its reading; MariaDB keeps it
until the transaction ends if the server writes a binary log, as sources of ours do. An ALTER would then wait
for as long as a snapshot is held, and everybody else behind the ALTER. So a session of its own looks: who may
not even begin to read the table, stands behind somebody who waits. It needs no right but that of reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import structlog

from penstock.core.errors import SourceError
from penstock.core.stream import StreamId
from penstock.sources.mysql.connection import Connection, code_of, connect, quoted, rows

LOOK_EVERY_S = 0.5
_LOCK_TIMED_OUT = 1205
_NO_SUCH_SESSION = 1094
_LOOKING = "looking for who waits for the table"
_logger = structlog.get_logger("penstock.mysql")


@contextmanager
def given_up_for_others(
    url: str, table: StreamId, sessions: Sequence[Connection], give_up: Callable[[], None]
) -> Iterator[None]:
    """While this is open, `sessions` are ended at the server when somebody waits for the table.

    `give_up` is told first, so that their readers know why.
    """
    numbers = [int(rows(each, "SELECT CONNECTION_ID()", doing=_LOOKING)[0][0]) for each in sessions]
    over = threading.Event()

    def watch(watching: Connection) -> None:
        while not over.wait(LOOK_EVERY_S):
            try:
                if _is_waited_for(watching, table):
                    give_up()
                    for number in numbers:
                        _end(watching, number)
                    return
            except SourceError:
                _logger.warning("nobody looks any more whether somebody waits for a table", stream=str(table))
                return

    with closing(connect(url, program_name="penstock verify")) as watching:
        rows(watching, "SET SESSION lock_wait_timeout = 0", doing=_LOOKING)
        thread = threading.Thread(target=watch, args=(watching,), name="penstock-locks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _is_waited_for(connection: Connection, table: StreamId) -> bool:
    name = f"{quoted(table.namespace)}.{quoted(table.name)}"
    try:
        rows(connection, f"SELECT 1 FROM {name} LIMIT 0", doing=_LOOKING)
    except SourceError as error:
        if error.__cause__ is not None and code_of(error.__cause__) == _LOCK_TIMED_OUT:
            return True
        raise
    return False


def _end(connection: Connection, number: int) -> None:
    try:
        rows(connection, f"KILL CONNECTION {number}", doing=_LOOKING)
    except SourceError as error:
        if error.__cause__ is None or code_of(error.__cause__) != _NO_SUCH_SESSION:
            raise
