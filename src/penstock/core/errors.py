"""Errors people can act on.

Every error a user may meet has a stable `code`, the stream it concerns (if one), a sentence that
says what happened, and a `remedy` that says what to do next. The cause is chained, never formatted
into the message: a driver's message may quote a row or a password, ours never does.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Base of all errors Penstock raises on purpose. `exit_code` is what the command line returns."""

    code: ClassVar[str] = "penstock"
    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, *, remedy: str = "", stream: str | None = None, detail: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.stream = stream
        self.detail = detail

    def __str__(self) -> str:
        parts = [f"{self.stream}: {self.message}" if self.stream else self.message]
        if self.detail:
            parts.append(self.detail)
        if self.remedy:
            parts.append(f"What to do: {self.remedy}")
        return "\n".join(parts)

    def to_json(self) -> dict[str, str]:
        fields = {
            "code": self.code,
            "message": self.message,
            "stream": self.stream or "",
            "detail": self.detail,
            "remedy": self.remedy,
        }
        return {name: value for name, value in fields.items() if value}


def told_of(who: str, error: BaseException) -> PenstockError:
    """What may be said of an error: ours in full, anything else by its kind alone (it may quote rows)."""
    if isinstance(error, PenstockError):
        return error
    return PenstockError(
        f"{who[:1].upper()}{who[1:]} failed unexpectedly ({type(error).__name__}).",
        remedy="The log on stderr says where; please report it.",
    )


class ConfigError(PenstockError):
    """penstock.yaml cannot be read or asks for something that does not exist."""

    code = "config"
    exit_code = 2


class AddressError(ConfigError):
    """Nobody can listen there: the address is in use, perhaps by a predecessor that is ending."""

    code = "address"


class SourceError(PenstockError):
    """The source cannot be reached, or lacks something Penstock needs (see `penstock check`)."""

    code = "source"
    exit_code = 3


class SnapshotLostError(SourceError):
    """The snapshot that tables were read under is gone; reading goes on under another one."""

    code = "snapshot_lost"


class NoSnapshotError(SourceError):
    """No snapshot of this table can be had whose place in the source's log is known."""

    code = "no_snapshot"


class PositionGoneError(SourceError):
    """The source no longer has the position we must continue from (slot dropped, invalidated, moved)."""

    code = "position_gone"
    exit_code = 4


class SourceBusyError(SourceError):
    """Someone else holds the slot or the pipeline's lock."""

    code = "source_busy"
    exit_code = 5


class AnotherServerError(SourceError):
    """Behind the source's address another server answers than the one whose log is being read."""

    code = "another_server"


class TableChangedError(SourceError):
    """A table or a column is not there any more, or was altered since its rows were begun to be read."""

    code = "table_changed"


class TooManyFieldsError(SourceError):
    """The documents of a collection have more fields than can be columns."""

    code = "too_many_fields"


class CaptureAwayError(SourceError):
    """Capture is gone, does not lead, or has begun another term; a lane starts over with the next one."""

    code = "capture_away"


class StateError(PenstockError):
    """The state file is corrupt, or does not belong to this source."""

    code = "state"
    exit_code = 6


class AnotherSourceError(StateError):
    """The change log was read from another server, or is no part of what this one has since a failover."""

    code = "another_source"


class LogGoneError(StateError):
    """The change log no longer has what was asked of it: it was kept for as long as `log.retention` says."""

    code = "log_gone"


class DestinationError(PenstockError):
    """The destination refused or could not take a commit."""

    code = "destination"
    exit_code = 7


class DestinationAwayError(DestinationError):
    """The destination or its catalog cannot be reached, or does not answer, at the moment."""

    code = "destination_away"


class HistoryUnknownError(DestinationError):
    """What an Iceberg table holds cannot be told: others let the snapshots expire that said it."""

    code = "history_unknown"


class CommitConflictError(DestinationError):
    """Somebody else committed to this table since we looked; nothing of ours was written."""

    code = "commit_conflict"


class StaleLookupError(CommitConflictError):
    """Somebody else changed the table's files since rows were looked up in them; look again."""

    code = "stale_lookup"


class TargetError(DestinationError):
    """A stream's target cannot be reached or takes nothing at the moment; it is tried again."""

    code = "target"


class SchemaRefusedError(DestinationError):
    """A schema registry refuses a table's new schema: no record of it could be read."""

    code = "schema_refused"


class StaleTermError(DestinationError):
    """A later leader has written to the target: this one writes nothing more."""

    code = "stale_term"


class TooManyDeadLettersError(DestinationError):
    """A target refuses more events than `dead_letter` lets it: the lane stops before it loses its order."""

    code = "dead_letters"


class UnprovenError(DestinationError):
    """Whether events are at the target cannot be found out, and `on_unproven: stop` says to ask first."""

    code = "unproven"


class StorageError(PenstockError):
    """A local write failed: disk full, no permission."""

    code = "storage"
    exit_code = 8


class SparkError(PenstockError):
    """A Spark job failed for a reason of its own: a worker was killed, memory ran out."""

    code = "spark"
    exit_code = 9
