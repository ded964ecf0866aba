"""Which server answers and how far its binary log is: what `core.failover` decides by.

Promise: `last` and `executed` are of one moment on MySQL, where one statement says both. MariaDB says the
position that belongs to the place it told before. `first` and `purged` are read before `last`: what is said
to be there may be purged by then, which the reading of the log finds out, but nothing that is there is taken
for purged.

MySQL servers have a uuid. MariaDB's have none that lasts: there it is made of `server_id`, which replication
wants to be different on all servers that know each other.
"""

from __future__ import annotations

from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import SourceError
from penstock.core.failover import Server
from penstock.sources.mysql.connection import Connection, Row, code_of, is_mariadb, rows

_READING = "reading the position of the binary log"
_LOG_IS_OFF, _SYNTAX = 1381, 1064
_BEGINNING = 4  # of a file's first event
#: Newest first: MySQL 8.4 has no MASTER, others know nothing else.
_STATUS = ("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")


def read_server(connection: Connection) -> Server:
    """SourceError if the server keeps no log, or the user may not ask."""
    first = BinlogPlace(_files(connection)[0], _BEGINNING)
    return _mariadb(connection, first) if is_mariadb(connection) else _mysql(connection, first)


def server_uuid(connection: Connection) -> str:
    mariadb = is_mariadb(connection)
    [(found,)] = rows(
        connection,
        f"SELECT @@global.{'server_id' if mariadb else 'server_uuid'}",
        doing="asking which server this is",
    )
    return f"mariadb-{found}" if mariadb else str(found)


def _mysql(connection: Connection, first: BinlogPlace) -> Server:
    [(purged,)] = rows(connection, "SELECT @@global.gtid_purged", doing=_READING)
    status = _status(connection)
    return Server(
        "mysql",
        server_uuid(connection),
        first,
        BinlogPlace(str(status[0]), int(status[1])),
        executed=_joined(status[4]),
        purged=_joined(purged),
    )


def _mariadb(connection: Connection, first: BinlogPlace) -> Server:
    purged = _gtid_position(connection, first)
    status = _status(connection)
    last = BinlogPlace(str(status[0]), int(status[1]))
    executed = _gtid_position(connection, last)
    return Server("mariadb", server_uuid(connection), first, last, executed=executed, purged=purged)


def _gtid_position(connection: Connection, place: BinlogPlace) -> str:
    """What a replica has that has read up to there; empty if nothing was logged with an id before."""
    [(found,)] = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (place.name, place.pos), doing=_READING)
    return _joined(found)


def _files(connection: Connection) -> list[str]:
    try:
        found = rows(connection, "SHOW BINARY LOGS", doing=_READING)
    except SourceError as error:
        if error.__cause__ is not None and code_of(error.__cause__) == _LOG_IS_OFF:
            raise _log_is_off() from error
        raise
    if not found:
        raise _log_is_off()
    return [str(row[0]) for row in found]


def _status(connection: Connection) -> Row:
    for statement in _STATUS:
        try:
            found = rows(connection, statement, doing=_READING)
        except SourceError as error:
            if error.__cause__ is not None and code_of(error.__cause__) == _SYNTAX:
                continue
            raise
        if found:
            return found[0]
    raise _log_is_off()


def _joined(gtids: object) -> str:
    """The server breaks long sets into lines."""
    return "".join(str(gtids or "").split())


def _log_is_off() -> SourceError:
    return SourceError(
        "The server keeps no binary log.", remedy="Run `penstock check`: it says how to turn it on."
    )
