"""From a spec to a cluster whose changes can be read: each step in its order, each with its own error.

what the server is → the lease → which cluster it is → the pipeline's document → where to go on. The change
log decides where: its end; else the pipeline's own document, or a lane that needs more. Whether the server
still has everything from there on, it says itself when it is asked for the next change (correctness 55).

A cluster that was put back to an earlier copy of its volumes, or that lost what a majority had, has its id
and its document of the pipeline from the copy, and its times go on beyond ours: nothing of that tells. The
last event that the log has does: a cluster that has it has all before it, and one that lost any has lost the
last. So the server is asked for it. One that is older than the oplog tells nothing; but an oplog that ended
before it, and went on after it, would not reach back to the log's end either, for which it is asked first.
Nor does one of a collection that the user may not follow any more: that is told instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock import failpoints
from penstock.capture.mongodb.log import MongoLog
from penstock.capture.mongodb.selection import Selection
from penstock.capture.source import Wanted
from penstock.capture.source_spec import MongoSpec
from penstock.capture.spec import CaptureSpec, Started
from penstock.core.errors import AnotherSourceError, PositionGoneError, SourceError
from penstock.core.position import Lsn
from penstock.core.resume_token import ResumeToken
from penstock.log.manifest import Manifest, newest_manifest
from penstock.sources.mongodb.check import SERVER_VERSION_MIN
from penstock.sources.mongodb.check_streams import grant
from penstock.sources.mongodb.connection import Client, query_errors
from penstock.sources.mongodb.control import Control
from penstock.sources.mongodb.rights import FOLLOW, read_rights
from penstock.sources.mongodb.source import (
    TIMELINE,
    has_change_at,
    read_version,
    require_kept,
    version_number,
)

_MONGOS = "isdbgrid"
_RESYNC = "Run `penstock resync --yes` to load the tables again."


def set_up(
    source: MongoSpec, spec: CaptureSpec, wanted: Wanted, client: Client, take_lead: Callable[[], Lsn]
) -> MongoLog:
    """`take_lead` returns when the lease is held, with the term's epoch."""
    version = read_version(client)
    sharded = _require_changes(client, version)
    epoch = take_lead()
    control = Control(client)
    cluster = control.cluster_id()
    newest = newest_manifest(spec.log_directory)
    if newest is not None and newest.system_id != cluster:
        raise AnotherSourceError(
            f"The change log was read from another cluster: its id is {newest.system_id}, this one's is "
            f"{cluster}.",
            remedy=f"Check the source's url, or use another state directory. {_RESYNC}",
        )
    held = control.held_from(source.name)
    begun = held is not None
    if held is None:
        _require_beginning(source.name, newest, wanted.lanes)
        held = control.mark(source.name)
        control.hold(source.name, held)
        failpoints.reach("capture.slot_created")
    read_from = _read_from(held, newest, wanted.lanes)
    if begun:
        require_kept(client, source.database, read_from)
        if newest is not None:
            _require_same_past(client, source, newest, epoch)
    published = control.select(source.name, wanted.streams)
    selection = Selection(wanted.streams, wanted.full_identity)
    started = Started(
        system_id=cluster,
        timeline=TIMELINE,
        server_version=version_number(version),
        slot_created=not begun,
        slot_position=min(held, read_from),
        log_end=newest.end if newest else None,
        epoch=epoch,
        published=published,
    )
    return MongoLog(started, newest, read_from, source, selection, version, sharded)


def _require_same_past(client: Client, source: MongoSpec, newest: Manifest, epoch: Lsn) -> None:
    last = newest.place
    # A log that an earlier version wrote does not say it; a stream of one database has no events of others.
    if last is None or last.server != source.database:
        return
    is_there = epoch >= newest.end
    if is_there and not has_change_at(client, source.database, ResumeToken(last.text).time):
        _require_rights(client, source)
        is_there = False
    if not is_there:
        raise AnotherSourceError(
            "The cluster does not have the last change that the change log has: it was put back to an "
            "earlier state, from a copy or a backup, or members were forced into losing changes.",
            remedy=f"{_RESYNC} If the url leads to a copy by mistake, correct it.",
        )


def _require_rights(client: Client, source: MongoSpec) -> None:
    """That a change which was not found is not one of a collection that could not be asked."""
    rights = read_rights(client)
    if rights.may(FOLLOW, source.database):
        return
    followed = Control(client).selected(source.name)
    hidden = [each for each in followed if not rights.may(FOLLOW, each.namespace, each.name)]
    if hidden:
        raise SourceError(
            f"The user {rights.user} may not follow {hidden[0]} any more ({FOLLOW}). The last change that "
            "the change log has may be of it, so nobody can tell whether the cluster still has that.",
            remedy=f"{grant(rights, hidden[0].namespace)} For a collection that is no stream any more it is "
            "needed for one start. Or run `penstock resync --yes` to load the tables again.",
        )


def _require_changes(client: Client, version: tuple[int, int, int]) -> bool:
    """That there are change streams, as we need them; whether the cluster is sharded."""
    if version[:2] < SERVER_VERSION_MIN:
        least = ".".join(map(str, SERVER_VERSION_MIN))
        raise SourceError(
            f"The server is MongoDB {version[0]}.{version[1]}; Penstock needs {least} or later.",
            remedy="Upgrade the server.",
        )
    with query_errors("asking what the server is"):
        hello = client.admin.command("hello")
    sharded = hello.get("msg") == _MONGOS
    if not sharded and "setName" not in hello:
        raise SourceError(
            "The server is not of a replica set: it keeps no oplog, so changes cannot be followed.",
            remedy="Start it with --replSet (a set of one member will do) and run rs.initiate() once.",
        )
    return sharded


def _require_beginning(name: str, newest: Manifest | None, lanes: Mapping[str, Lsn | None]) -> None:
    """That nothing of ours was ever read: else somebody has taken the pipeline away."""
    if newest is not None or any(position is not None for position in lanes.values()):
        raise PositionGoneError(
            f"The cluster does not know the pipeline {name} any more: it was torn down.", remedy=_RESYNC
        )


def _read_from(held: Lsn, newest: Manifest | None, lanes: Mapping[str, Lsn | None]) -> Lsn:
    """Where the log ends; without one, the least that anybody needs."""
    if newest is not None:
        return newest.end
    return min([held, *(position for position in lanes.values() if position is not None)])
