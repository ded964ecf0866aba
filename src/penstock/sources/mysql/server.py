"""Which server answers and how far its binary log is: what `core.failover` decides by.

MySQL writes a transaction to the log before others can see it, by as long as a replica takes to acknowledge
it where that is waited for, and has it in `gtid_executed` only then. Hence these questions, each with a
promise of its own:

- `read_server`: `executed` has every transaction that the log had up to `last` when it was asked, and maybe
  more. `first` and `purged` are read before `last`: what is said to be there may be purged by then, which the
  reading of the log finds out, but nothing that is there is taken for purged.
- `visible_place`: whoever reads a table from now on sees every transaction up to there. By what is under way:
  quick, unless that takes long. Of a place whose set is known, `wait_until_visible` says it.
- `logged_before`: exactly the transactions before a file begins, as the file itself says.

MariaDB computes positions from its log (`gtid_position`), and says where in it a snapshot was taken. What it
has executed is the last of each server in each domain: within a domain numbers may come in any order.

MySQL servers have a uuid. MariaDB's have none that lasts: there it is made of `server_id`, which replication
wants to be different on all servers that know each other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from penstock.core.binlog_place import OFFSET_MAX, BinlogPlace
from penstock.core.errors import AnotherServerError, SourceError
from penstock.core.failover import Server
from penstock.core.gtid import GtidSet
from penstock.core.position import Lsn
from penstock.sources.mysql.connection import Connection, Row, code_of, is_mariadb, rows

_READING = "reading the position of the binary log"
_LOG_IS_OFF, _SYNTAX = 1381, 1064
_CLOCK = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)"
_VISIBLE_WITHIN_S, _LOOK_EVERY_S = 60.0, 0.01
_SHOWN_CHARACTERS_MAX = 300
_BEGINNING = 4  # of a file's first event
#: Newest first: MySQL 8.4 has no MASTER, others know nothing else.
_STATUS = ("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")


@dataclass(frozen=True, slots=True)
class LogFiles:
    """`sizes`: the files that there are, with their bytes, in order. `last`: where the log ends."""

    sizes: tuple[tuple[str, int], ...]
    last: BinlogPlace


def read_files(connection: Connection) -> LogFiles:
    sizes = _files(connection)
    return LogFiles(tuple(sizes), log_end(connection))


def read_server(connection: Connection) -> Server:
    """SourceError if the server keeps no log, or the user may not ask."""
    first = BinlogPlace(_files(connection)[0][0], _BEGINNING)
    return _mariadb(connection, first) if is_mariadb(connection) else _mysql(connection, first)


def clock(connection: Connection) -> Lsn:
    """The server's, in microseconds: a number that grows over terms and failovers, as places do not."""
    [(now_us,)] = rows(connection, _CLOCK, doing="asking the time")
    return Lsn(int(now_us))


def server_uuid(connection: Connection) -> str:
    mariadb = is_mariadb(connection)
    [(found,)] = rows(
        connection,
        f"SELECT @@global.{'server_id' if mariadb else 'server_uuid'}",
        doing="asking which server this is",
    )
    return f"mariadb-{found}" if mariadb else str(found)


def require_server(connection: Connection, uuid: str) -> None:
    """That it is still this one: behind an address that moved, places of the log would mean others."""
    if server_uuid(connection) != uuid:
        connection.close()
        raise AnotherServerError(
            "Another server answers than the one whose log is being read.",
            remedy="Nothing is wrong if it took over: what goes on from here finds its place in the new "
            "server's log. Run the same command again.",
        )


def folds_names(connection: Connection) -> bool:
    """Whether statements may write a table's name in other letters than the catalog does."""
    [(found,)] = rows(connection, "SELECT @@lower_case_table_names", doing="reading the server's settings")
    return int(found) != 0


def visible_place(connection: Connection, within_s: float) -> BinlogPlace | None:
    """None: something that was under way when it was asked is not over yet. It may be in the log and wait for
    a replica to acknowledge it; or be one that the server applies as a replica, which has its id from its
    beginning on and is logged when it ends, however long that takes."""
    if is_mariadb(connection):
        return _snapshot_place(connection)
    end = log_end(connection)
    in_flight = _owned(connection)
    deadline = time.monotonic() + within_s
    while in_flight & _owned(connection):
        if time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_EVERY_S)
    return end


def wait_until_visible(connection: Connection, gtid_set: str) -> None:
    """MySQL: that all of these, which are in the log, can be seen."""
    logged = GtidSet.parse(gtid_set)
    deadline = time.monotonic() + _VISIBLE_WITHIN_S
    while unseen := logged - _executed(connection):
        if time.monotonic() > deadline:
            raise SourceError(
                "Transactions in the binary log do not become visible: they wait for something.",
                detail=f"Their ids: {str(unseen)[:_SHOWN_CHARACTERS_MAX]}",
                remedy="See whether a replica that is waited for (semi-synchronous replication) is down.",
            )
        time.sleep(_LOOK_EVERY_S)


def log_end(connection: Connection) -> BinlogPlace:
    """Where the next event will be written."""
    status = _status(connection)
    return place_of(str(status[0]), int(status[1]))


def place_of(file: str, offset: int) -> BinlogPlace:
    if offset > OFFSET_MAX:
        raise SourceError(
            f"The file {file} of the binary log is longer than 4 GiB, where places cannot be told any more.",
            remedy="Run `FLUSH BINARY LOGS` at the server, then the same command again; let the application "
            "change so much in several transactions.",
        )
    return BinlogPlace(file, offset)


def logged_before(connection: Connection, file: str) -> str:
    """MySQL's set of all transactions of earlier files."""
    events = rows(connection, "SHOW BINLOG EVENTS IN %s LIMIT 5", (file,), doing=_READING)
    return next((_joined(event[5]) for event in events if event[2] == "Previous_gtids"), "")


def _mysql(connection: Connection, first: BinlogPlace) -> Server:
    [(purged,)] = rows(connection, "SELECT @@global.gtid_purged", doing=_READING)
    last = log_end(connection)
    # What was in flight then is owned or executed by now: asked in this order, none of it is missed.
    owned = _owned(connection)
    executed = _executed(connection)
    return Server(
        "mysql",
        server_uuid(connection),
        first,
        last,
        executed=str(executed | GtidSet.parse(",".join(sorted(owned)))),
        purged=_joined(purged),
    )


def _executed(connection: Connection) -> GtidSet:
    [(executed,)] = rows(connection, "SELECT @@global.gtid_executed", doing=_READING)
    return GtidSet.parse(_joined(executed))


def _owned(connection: Connection) -> frozenset[str]:
    """Ids of transactions that have been given one and are not committed yet, with those in the log."""
    [(text,)] = rows(connection, "SELECT @@global.gtid_owned", doing=_READING)
    found: set[str] = set()
    for part in filter(None, _joined(text).split(",")):
        source, *pieces = part.split(":")
        for piece in pieces:
            number, _, _thread = piece.partition("#")
            if number.isdigit():
                found.add(f"{source}:{number}")
            else:
                source = f"{source.partition(':')[0]}:{number}"  # a tag holds for the numbers behind it
    return frozenset(found)


def _snapshot_place(connection: Connection) -> BinlogPlace:
    """Of a snapshot that is taken and let go: later ones show more."""
    rows(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT", doing=_READING)
    found = rows(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'", doing=_READING)
    rows(connection, "COMMIT", doing=_READING)
    named = {str(name).lower(): value for name, value in found}
    return place_of(str(named["binlog_snapshot_file"]), int(named["binlog_snapshot_position"]))


def _mariadb(connection: Connection, first: BinlogPlace) -> Server:
    purged = gtid_position(connection, first.name, first.pos)
    last = log_end(connection)
    [(executed,)] = rows(connection, "SELECT @@global.gtid_binlog_state", doing=_READING)
    return Server("mariadb", server_uuid(connection), first, last, executed=_joined(executed), purged=purged)


def gtid_position(connection: Connection, file: str, offset: int) -> str:
    """MariaDB's: what a replica has that has read up to there; empty if no id was logged before."""
    [(found,)] = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file, offset), doing=_READING)
    return _joined(found)


def _files(connection: Connection) -> list[tuple[str, int]]:
    try:
        found = rows(connection, "SHOW BINARY LOGS", doing=_READING)
    except SourceError as error:
        if error.__cause__ is not None and code_of(error.__cause__) == _LOG_IS_OFF:
            raise _log_is_off() from error
        raise
    if not found:
        raise _log_is_off()
    return [(str(row[0]), int(row[1])) for row in found]


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
