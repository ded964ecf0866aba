"""A snapshot of a streaming standby, and the position in the primary's log that it stands for.

Promise: the snapshot shows a transaction ⇔ its commit record begins before `position`. So loads from a
standby meet the log of the primary as loads under a slot's consistent point do, by the same comparison.

Why: a standby shows a transaction from when its commit record is replayed, in the order of the log. What is
replayed is told by `pg_last_wal_replay_lsn()`, the end of the last record. But that moves all the time, and a
commit may be shown while its record is still being replayed, before the position moves. So replay is paused,
and then, as statements of their own:

    R  = pg_last_wal_replay_lsn()            every commit record that ends by R is shown from here on
    the snapshot is exported
    pg_get_wal_replay_pause_state() = paused     the replaying process is between two records
    R' = pg_last_wal_replay_lsn()            every record it began before is finished, and ends by R'

If R = R', the snapshot shows exactly the commits that end by R. Records do not overlap, so those are the
ones that begin before R. Whoever pauses or resumes meanwhile, either these answers come out so or the
snapshot is thrown away: nothing rests on our being alone. Replay that somebody else has paused is not paused
again, and is left paused.

Replay is never left paused by us, also when this process is killed: the server is sent all statements, from
the pause to the resumption, as **one message**, and carries them out whether or not the client is still there
(nothing is sent to it in between, so nothing fails because it is gone). If a statement fails, the server
leaves out the rest; then the client resumes. Left over is a client that is killed in the moment in which its
session at the replica is ended as well: then replay stays paused, and the next run says so and what to do. A
pause that somebody else makes within the milliseconds of ours ends with it. Waiting for replay to pause is
done in transactions of a tenth of a second at most, since replay may be waiting for our own to end.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import psycopg

from penstock.core.errors import PenstockError, SourceError
from penstock.core.position import Lsn
from penstock.sources.postgres.connection import Connection, connect, query_error, query_errors, safe_url

#: The server tells the client nothing before the end, and does not look whether it is still there.
QUIET = {"client_min_messages": "error", "client_connection_check_interval": "0"}

_WAITS_S = (0.001,) * 50 + (0.01,) * 45 + (0.1,) * 50
_POLL_S = 0.1
_PAUSE_STATE = "SELECT pg_get_wal_replay_pause_state()"
_OURS = "current_setting('penstock.paused') = 'true'"
_PAUSE = f"""
    BEGIN;
    SELECT set_config('penstock.paused', (pg_get_wal_replay_pause_state() = 'not paused')::text, false);
    SELECT pg_wal_replay_pause() WHERE {_OURS};
    COMMIT;
"""
_WAIT = "BEGIN; SELECT pg_sleep({}) WHERE pg_get_wal_replay_pause_state() <> 'paused'; COMMIT;"
# At this isolation level each statement sees what is there when it begins.
_EXPORT = f"""
    BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;
    SELECT 'before', pg_last_wal_replay_lsn()::text;
    SELECT 'snapshot', pg_export_snapshot();
    SELECT 'state', pg_get_wal_replay_pause_state();
    SELECT 'after', pg_last_wal_replay_lsn()::text;
    SELECT pg_wal_replay_resume() WHERE {_OURS};
"""
_SCRIPT = (_PAUSE + "\n".join(map(_WAIT.format, _WAITS_S)) + _EXPORT).encode()


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """Lives as long as the transaction that `connection` was left in."""

    connection: Connection
    name: str
    position: Lsn


@dataclass(frozen=True, slots=True, repr=False)
class Replica:
    """A standby of the server at `primary_url`, which is given `wait_s` to come to a position."""

    primary_url: str
    url: str
    wait_s: float

    def snapshot(self, connection: Connection, reaching: Lsn) -> ReplicaSnapshot:
        """A snapshot at `reaching` or later. `connection` goes to the replica, with settings `QUIET`."""
        self.require_standby()
        deadline = time.monotonic() + self.wait_s
        while True:
            replayed = _replayed(connection)
            snapshot = self._export(connection) if replayed >= reaching else None
            if snapshot is not None:
                # On its timeline a standby only goes forward: what it is on now, it was on at the snapshot.
                self.require_standby()
                return snapshot
            if time.monotonic() > deadline:
                raise self._late(connection, replayed, reaching)
            time.sleep(_POLL_S)

    def require_standby(self) -> None:
        """An error unless the server replays the log that the primary writes."""
        where = f"The server at {safe_url(self.url)} (`source.replica_url`)"
        remedy = "Give the url of a streaming standby of the source's server, or leave `replica_url` out."
        source_id, source_timeline = _identify(self.primary_url)
        system_id, timeline = _identify(self.url)
        if system_id != source_id:
            raise SourceError(f"{where} belongs to another cluster than the source.", remedy=remedy)
        with connect(self.url) as connection, query_errors("asking whether the replica is a standby"):
            row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if row is None or not row[0]:
            raise SourceError(f"{where} is not a standby.", remedy=remedy)
        if timeline != source_timeline:
            raise SourceError(
                f"{where} replays timeline {timeline}, the source writes timeline {source_timeline}.",
                remedy="Wait until it follows the source (recovery_target_timeline = 'latest'), or make "
                "the standby anew if it went on after the source had been promoted.",
            )

    def _export(self, connection: Connection) -> ReplicaSnapshot | None:
        """None if replay did not stand still around the snapshot."""
        with query_errors("asking whether replay is paused at the replica"):
            running = connection.execute(_PAUSE_STATE).fetchone() == ("not paused",)
        try:
            answers = _answers(connection)
        except BaseException as error:
            if running:
                self._resume()
            if not isinstance(error, psycopg.Error):
                raise
            if not isinstance(error, psycopg.errors.SerializationFailure) or connection.broken:
                raise query_error(error, "taking a snapshot at the replica") from error
            answers = {}  # replay went ahead of us
        if answers.get("state") == "paused" and answers["before"] == answers["after"]:
            return ReplicaSnapshot(connection, answers["snapshot"], Lsn.parse(answers["before"]))
        with query_errors("taking a snapshot at the replica"):
            connection.execute("ROLLBACK")
        return None

    def _resume(self) -> None:
        """After an error between pause and resumption."""
        with contextlib.suppress(PenstockError, psycopg.Error), connect(self.url) as connection:
            connection.execute("SELECT pg_wal_replay_resume()")

    def _late(self, connection: Connection, replayed: Lsn, reaching: Lsn) -> SourceError:
        with query_errors("asking whether replay is paused at the replica"):
            row = connection.execute(_PAUSE_STATE).fetchone()
        again = "then run the same command again"
        if replayed >= reaching:
            message = f"replay could not be paused in {self.wait_s:.0f} seconds: something holds it up."
            remedy = f"Look for what replay waits for in pg_stat_activity there, {again}."
        elif row is not None and row[0] != "not paused":
            message = f"replay is paused at {replayed}, and the load needs what is at {reaching}."
            remedy = f"If nobody needs the pause, run SELECT pg_wal_replay_resume() there; {again}."
        else:
            message = f"it has replayed the log up to {replayed} in {self.wait_s:.0f} seconds, and the load "
            message += f"needs what is at {reaching}."
            remedy = f"Wait until it has caught up or raise `load.replica_wait`, {again}."
        return SourceError(f"The replica at {safe_url(self.url)} lags: {message}", remedy=remedy)


def _identify(url: str) -> tuple[str, int]:
    """System identifier and timeline; of a standby, the timeline that is being replayed."""
    with (
        connect(url, application_name="penstock replica", replication=True) as connection,
        query_errors("identifying the system"),
    ):
        row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    assert row is not None
    return str(row[0]), int(row[1])


def _replayed(connection: Connection) -> Lsn:
    with query_errors("asking how far the replica is"):
        row = connection.execute("SELECT pg_last_wal_replay_lsn()::text").fetchone()
    return Lsn.parse(row[0]) if row is not None and row[0] is not None else Lsn(0)


def _answers(connection: Connection) -> dict[str, str]:
    """The named answers of the script. It is one message because it has no parameters."""
    cursor = connection.execute(_SCRIPT)
    answers: dict[str, str] = {}
    while True:
        if cursor.description is not None and len(cursor.description) == 2:
            answers.update(cursor.fetchall())
        if not cursor.nextset():
            return answers
