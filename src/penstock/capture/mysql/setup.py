"""From a spec to a server whose log can be read: each step in its order, each with its own error.

settings of the log → the lock → where to go on. The change log decides where: by the place and the GTID set
of its newest manifest (`core.failover`). On the server that was read last, positions go on as its places do.
On another one, or one that began to count anew, they go on behind the last position: the place that is
numbered so is the beginning of the file from which the server sends what our set lacks, which it is asked for
here. That is sealed as an empty step before a lane hears of any position on the new server: asked another
time, when it has gone on to another file, it would number its places otherwise.

The server holds nothing for us and knows nothing of us, so only the change log can say where it begins. It
does from its first moment on: an empty step is sealed where the server is now (`beginning`), before a lane
hears of any position. Whoever is killed after that finds it, and what was written meanwhile is read.

The source's identity is that of the server with which the change log began. Each time that reading goes on by
GTID, the timeline is the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from penstock.capture.mysql.beginning import FIRST_TIMELINE, begin, go_on_at
from penstock.capture.mysql.log import CAPTURE_PROGRAM, MysqlLog
from penstock.capture.source import Wanted
from penstock.capture.source_spec import MysqlSpec
from penstock.capture.spec import CaptureSpec, Started
from penstock.core.binlog_place import BinlogPlace, Numbering
from penstock.core.errors import AnotherSourceError, PositionGoneError, SourceError, StateError
from penstock.core.failover import Server, Standing, go_on
from penstock.core.mariadb_gtid import MariaDbPosition
from penstock.core.position import Lsn
from penstock.log.manifest import Manifest, newest_manifest
from penstock.sources.mysql.binlog.events import Carry, Rotation, Tables, scan
from penstock.sources.mysql.binlog.stream import BinlogStream, FilePosition, GtidPosition
from penstock.sources.mysql.connection import Connection, connect, rows, server_version
from penstock.sources.mysql.server import folds_names, gtid_position, read_server, require_server

_RESYNC = "Run `penstock resync --yes` to load the tables again and begin a new change log."
_FIRST_EVENT_WITHIN_S = 60.0
#: What must be so for rows to be in the log, and to be told apart; and, of MySQL, for places to be known on
#: another server, and for knowing when what is logged can be seen.
_SETTINGS = {"binlog_format": "ROW", "binlog_row_metadata": "FULL", "gtid_mode": "ON"}


@dataclass(frozen=True, slots=True)
class _Start:
    numbering: Numbering
    place: FilePosition | GtidPosition
    first: BinlogPlace
    timeline: int

    @property
    def file(self) -> str:
        return self.first.name


def set_up(
    source: MysqlSpec, spec: CaptureSpec, wanted: Wanted, connection: Connection, take_lead: Callable[[], Lsn]
) -> MysqlLog:
    """`take_lead` returns when the lock is held, with the term's epoch."""
    require_settings(connection)
    epoch = take_lead()
    found = newest_manifest(spec.log_directory)
    if found is None:
        _require_nothing_begun(wanted)
    newest = found or begin(source, spec.log_directory, connection, epoch)
    server = read_server(connection)
    start = _going_on(source, newest, server)
    assert newest.place is not None, "asked for above"
    if server.flavor == "mariadb":
        _require_same_log(connection, start, newest.place.gtid_set)
    if start.timeline != newest.timeline:
        newest = go_on_at(spec.log_directory, newest, start.first, server.uuid, start.timeline, epoch)
    assert newest.place is not None, "it has been told"
    major, minor, patch = server_version(connection)
    started = Started(
        system_id=newest.system_id,
        timeline=start.timeline,
        server_version=10_000 * major + 100 * minor + patch,
        slot_created=found is None,
        slot_position=newest.end,
        log_end=None if found is None else found.end,
        epoch=epoch,
        published=(),
    )
    return MysqlLog(
        started=started,
        newest=newest,
        read_from=newest.end,
        source=source,
        streams=wanted.streams,
        flavor=server.flavor,
        server=server.uuid,
        numbering=start.numbering,
        start=start.place,
        file=start.file,
        gtid_set=newest.place.gtid_set,
        awaited=_awaited(connection, start, newest.place.gtid_set) if server.flavor == "mariadb" else "",
        folds_names=folds_names(connection),
    )


def require_settings(connection: Connection) -> None:
    names = ", ".join(f"'{name}'" for name in _SETTINGS)
    found = rows(
        connection,
        f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})",
        doing="reading the server's settings",
    )
    for name, value in found:
        if str(value).upper() != _SETTINGS[str(name).lower()]:
            raise SourceError(
                f"The server's {name} is {value}: its log does not have what is needed of each change.",
                remedy=f"Set {name} = {_SETTINGS[str(name).lower()]}; `penstock check` says all that is so.",
            )


def _require_nothing_begun(wanted: Wanted) -> None:
    held = [position for position in wanted.lanes.values() if position is not None]
    if held:
        raise PositionGoneError(
            f"The change log is gone, and a lane goes on from {min(held)}: its places went with it.",
            remedy=_RESYNC,
        )


def _going_on(source: MysqlSpec, newest: Manifest, server: Server) -> _Start:
    if newest.place is None:
        raise StateError("The change log is not one of MySQL: it does not say its places.", remedy=_RESYNC)
    place = BinlogPlace.parse(newest.place.text)
    how = go_on(Standing(newest.place.server, place, newest.place.gtid_set), server)
    if how == "by place":
        numbering = Numbering(place.base, int(newest.end) - place.number)
        return _Start(numbering, FilePosition(place.name, place.pos), place, newest.timeline)
    gtids = GtidPosition(newest.place.gtid_set)
    first = _first_place(source, gtids, server.uuid)
    return _Start(Numbering.going_on(newest.end, first), gtids, first, newest.timeline + 1)


def _require_same_log(connection: Connection, start: _Start, read: str) -> None:
    """Of MariaDB, that our place has our transactions before it. A server is known by its `server_id`, which
    is 1 on all that were not told otherwise, and ids of transactions are made of nothing else: neither they
    nor a file and a byte tell one such server from another. Domains that the server was told to forget may be
    missing. On a server that took over, domains may be in another order (`_awaited`)."""
    if isinstance(start.place, GtidPosition) or start.timeline != FIRST_TIMELINE:
        return
    passed = dict(MariaDbPosition.parse(gtid_position(connection, start.file, start.place.offset)))
    last = dict(MariaDbPosition.parse(read))
    if bool(passed) != bool(last) or any(last.get(domain) != gtid for domain, gtid in passed.items()):
        raise AnotherSourceError(
            "The server has the place that was read last, and other transactions before it: it is another "
            "server with the same server_id, or it was reset or restored.",
            detail=f"At {start.first}, read: {read or 'none'}, there: {MariaDbPosition(passed)}",
            remedy=f"Connect to the former server. {_RESYNC}",
        )


def _awaited(connection: Connection, start: _Start, read: str) -> str:
    """Of MariaDB, what was read last of domains in which our place is not behind it (`gtids`): only a server
    that went on by ids can have another order of domains than the one before it."""
    if isinstance(start.place, GtidPosition) or start.timeline == FIRST_TIMELINE:
        return ""
    passed = dict(MariaDbPosition.parse(gtid_position(connection, start.file, start.place.offset)))
    last = MariaDbPosition.parse(read)
    return str(MariaDbPosition({domain: gtid for domain, gtid in last if passed.get(domain) != gtid}))


def _first_place(source: MysqlSpec, start: GtidPosition, server: str) -> BinlogPlace:
    """In which file the server begins to send: the first thing it says."""
    connection = connect(source.url, program_name=CAPTURE_PROGRAM)
    require_server(connection, server)
    with closing(BinlogStream(connection, start, source.server_id, pipeline=source.name)) as stream:
        batch = stream.read(_FIRST_EVENT_WITHIN_S)
        if batch is not None:
            for rare in scan(batch, 0, 1, Carry(), Tables(stream.is_mariadb)).rare:
                if isinstance(rare.event, Rotation):
                    return BinlogPlace(rare.event.file, rare.event.offset)
    raise SourceError(
        "The server does not say from which file it sends its log.",
        remedy="Run the same command again; if it happens again, report it with the server's version.",
    )
