"""Whether the server that answers now has what we must go on from (correctness 53). Decisions only, no I/O.

A binlog place means something on the server that it was read from. What means the same everywhere is the
GTID set of that place: every transaction that we have delivered. Hence:

- the same server goes on at the place, by file and byte, unless it began to count anew: then by GTID;
- another server goes on by GTID, if its executed set holds all of ours (else what was delivered is missing
  there: its tables have another history than ours) and its purged set holds nothing but ours (else
  transactions that we never saw are gone from its log). What it executed beyond ours is what we read next;
- another server without GTIDs shows nothing that could be compared: nobody can tell where to go on.

MySQL's GTIDs are sets, MariaDB's are positions by domain; both compare by `<=` and say what is missing by
`-`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.core.binlog_place import BinlogPlace
from penstock.core.errors import AnotherSourceError, PositionGoneError, SourceError
from penstock.core.gtid import GtidSet
from penstock.core.mariadb_gtid import MariaDbPosition

Flavor = Literal["mysql", "mariadb"]
GoOn = Literal["by place", "by gtid"]

_SHOWN_CHARACTERS_MAX = 300
_RESYNC = "Load the tables anew with `penstock resync`; every change up to now is in what is read then."


@dataclass(frozen=True, slots=True)
class Standing:
    """Where we stand: the server last read from ("": another tool did not say), the place, its GTID set."""

    server_uuid: str
    place: BinlogPlace
    gtid_set: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """The server that answers now. `first`: where its oldest binlog file begins; `last`: where it is.

    `executed` and `purged` are "" where it has no GTIDs. MariaDB: `gtid_binlog_state`, and the position
    before its oldest file.
    """

    flavor: Flavor
    uuid: str
    first: BinlogPlace
    last: BinlogPlace
    executed: str = ""
    purged: str = ""


def go_on(standing: Standing, server: Server) -> GoOn:
    """How to find the place again there. PositionGoneError, AnotherSourceError: it cannot be found."""
    # A place of another tool is taken at its word, if this server has it.
    is_same = standing.server_uuid in ("", server.uuid) and standing.place.base == server.last.base
    if is_same and server.first.number <= standing.place.number <= server.last.number:
        if standing.gtid_set and server.executed:
            _require_held(standing, server)  # it may have counted anew and come as far again
        return "by place"
    if standing.gtid_set and server.executed:
        _require_held(standing, server)
        _require_kept(standing, server)
        return "by gtid"
    if is_same and standing.place.number < server.first.number:
        raise PositionGoneError(
            f"The binlog place {standing.place} is gone: the oldest that the server has is {server.first}.",
            remedy=_RESYNC + " Let the server keep its binlogs longer (`binlog_expire_logs_seconds`).",
        )
    if is_same:
        raise AnotherSourceError(
            f"The server's binlog ends at {server.last}, before {standing.place} which was read already: it "
            "was reset or restored.",
            remedy=_RESYNC,
        )
    raise AnotherSourceError(
        "This is another server than the one that was read so far, and there are no GTIDs by which to find "
        "the place in its binlog.",
        detail=f"Read from {standing.server_uuid or 'an unknown server'}, now {server.uuid or 'unknown'}.",
        remedy="Connect to the former server, or turn GTIDs on for the next time; " + _lower(_RESYNC),
    )


def _require_held(standing: Standing, server: Server) -> None:
    missing = _missing(server.flavor, standing.gtid_set, server.executed, is_state=True)
    if missing:
        logged = " in its log (a replica: with `log_slave_updates`)" * (server.flavor == "mariadb")
        raise AnotherSourceError(
            "Transactions already delivered are missing there: this server has another history.",
            detail=f"Missing: {_shown(missing)}",
            remedy=f"Connect to a server that has them{logged}, or {_lower(_RESYNC)}",
        )


def _require_kept(standing: Standing, server: Server) -> None:
    gone = _missing(server.flavor, server.purged, standing.gtid_set, is_state=False)
    if gone:
        raise PositionGoneError(
            "The position is gone: this server has purged transactions that were not read yet.",
            detail=f"Purged: {_shown(gone)}",
            remedy=_RESYNC + " Or connect to a server whose binlog still has them.",
        )


def _missing(flavor: Flavor, wanted: str, held: str, *, is_state: bool) -> str:
    """What of `wanted` is not in `held`, a server's binlog state or a position; empty if all of it is."""
    try:
        if flavor == "mysql":
            return str(GtidSet.parse(wanted) - GtidSet.parse(held))
        position = MariaDbPosition.of_binlog_state(wanted)
        return str(
            position.beyond_state(held) if is_state else position - MariaDbPosition.of_binlog_state(held)
        )
    except ValueError as error:
        raise SourceError(
            f"A GTID set cannot be read as one of {'MySQL' if flavor == 'mysql' else 'MariaDB'}.",
            remedy="Run `penstock state check`; if the state is good, please report the server's version.",
        ) from error


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
