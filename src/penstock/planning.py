"""What a pipeline would do next, and where it stands: asked, not changed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from penstock.capture.from_config import lanes_of
from penstock.config import Config
from penstock.core.errors import PenstockError
from penstock.core.report import (
    PausedStatus,
    PipelineStatus,
    PlannedStream,
    StreamStatus,
    TableHealth,
)
from penstock.core.stream import StreamId
from penstock.destinations.base import Destination, DestinationTable
from penstock.destinations.iceberg import IcebergTable
from penstock.destinations.iceberg_health import read_health
from penstock.destinations.records import TableRecord
from penstock.lake.dead_letters import open_letters
from penstock.lake.destination import destination_of
from penstock.lake.lane_state import LaneStream
from penstock.ledger.lanes import LANES_FILE, notes_of_left_lanes
from penstock.ledger.load_record import LoadRecords
from penstock.ledger.standing import committed_to, state_of
from penstock.ledger.state import StateDocument
from penstock.ledger.state import StreamState as Entry
from penstock.ledger.store import StateStore
from penstock.log import retention
from penstock.log.reader import ChangeLog
from penstock.resolution import resolve_from_source
from penstock.sources.base import LogHold
from penstock.sources.open import open_source


def plan(config: Config) -> list[PlannedStream]:
    """What the next sync does to each stream. The source is asked, so that errors show before a sync does."""
    document = StateStore(config.state).load() or StateDocument.new()
    return [_planned(stream, document) for stream in resolve_from_source(config)]


def _planned(stream: LaneStream, document: StateDocument) -> PlannedStream:
    name = stream.info.stream
    entry = document.stream(name)
    estimated = stream.info.estimated_rows
    if entry is not None and entry.paused is not None:
        return PlannedStream(str(name), "stand still", None, f"paused since {entry.paused.since}")
    if name in document.processing or (entry is not None and entry.next_cdc_pos is not None):
        return PlannedStream(str(name), "recover", None, "an earlier sync ended in the middle of a round")
    if entry is not None and entry.reload is not None and entry.reload.by_difference:
        return PlannedStream(str(name), "load", estimated, "only rows that differ from the source's")
    if entry is not None and entry.is_loading:
        return PlannedStream(str(name), "resume load", estimated, f"{len(entry.chunks or ())} chunks left")
    if stream.mode == "full_refresh":
        return PlannedStream(str(name), "load", estimated, "the table is replaced when the load is complete")
    if stream.mode == "strict_cdc" and (entry is None or not entry.has_completed_backfill):
        return PlannedStream(str(name), "follow", None, "from where it joins; no row is loaded")
    if stream.mode == "incremental" and entry is not None and entry.has_completed_backfill:
        return PlannedStream(str(name), "read on", None, "rows from its last cursor on, less the lookback")
    if entry is None or not entry.has_completed_backfill:
        return PlannedStream(str(name), "load", estimated, "then its changes are followed")
    position = entry.cdc_from or document.lsn
    return PlannedStream(str(name), "follow", None, f"from {position}")


def status(config: Config) -> PipelineStatus:
    """Where everything stands. A source that cannot be reached is a note, not an error."""
    document = StateStore(config.state).load() or StateDocument.new()
    notes: list[str] = []
    hold = _hold(config, notes)
    modes = {stream.id: stream for stream in config.streams if not stream.id.is_pattern}
    names = sorted(set(document.streams) | set(modes))
    destination = destination_of(config)
    kept = _LogKept(config.state)
    streams = []
    for name in names:
        configured = modes.get(name)
        mode = configured.mode if configured else None
        one = _stream_status(name, document, destination, mode, kept)
        streams.append(replace(one, health=_health(destination.table(name), config)))
    notes += [_paused_note(stream.stream, stream.paused) for stream in streams if stream.paused]
    if not document.streams:
        notes.append("Nothing has been synced yet: run `penstock sync`.")
    for stream in streams:
        if stream.dead_letters:
            notes.append(_dead_letter_note(stream))
    notes += notes_of_left_lanes(config.state / LANES_FILE, lanes_of(config))
    return PipelineStatus(
        position=str(document.level) if document.level is not None else None,
        slot_position=str(hold.position) if hold and hold.position is not None else None,
        retained_wal_bytes=hold.retained_bytes if hold else None,
        log_bytes=retention.size(config.state / "log"),
        streams=streams,
        notes=notes,
    )


def _stream_status(
    name: StreamId,
    document: StateDocument,
    destination: Destination,
    mode: str | None,
    kept: _LogKept,
) -> StreamStatus:
    entry = document.stream(name)
    table = destination.table(name)
    record, letters = table.record(), table.dead_letters_path()
    visible = record is not None and record.directory is not None
    return StreamStatus(
        stream=str(name),
        mode=entry.sync_mode if entry else mode or "cdc",
        write=record.write if record is not None else "",
        state=state_of(document, name),
        rows=record.rows if record is not None and visible else None,
        files=record.file_count if record is not None and visible else None,
        committed_to=committed_to(document, name),
        chunks_left=len(entry.chunks or ()) if entry else 0,
        dead_letters=record.dead_letters.count if record is not None else 0,
        dead_keys=_dead_keys(table, record),
        dead_letters_path=str(letters) if letters is not None else None,
        paused=kept.of(entry, document) if entry is not None else None,
    )


def _health(table: DestinationTable, config: Config) -> TableHealth | None:
    """By metadata alone. Parquet tables have no such figures: a version has the files it needs."""
    if not isinstance(table, IcebergTable):
        return None
    return read_health(table, int(config.maintenance.target_file_bytes), time.time())


def _dead_keys(table: DestinationTable, record: TableRecord | None) -> int | None:
    """Only of an upsert table one can say what is there now and what is not."""
    if record is None or record.write != "upsert":
        return None
    if not record.dead_letters.count:
        return 0
    return int(open_letters(table.dead_letter_paths(), len(record.schema.key)).num_rows)


def _dead_letter_note(stream: StreamStatus) -> str:
    rows = f"{stream.dead_letters} {'row was' if stream.dead_letters == 1 else 'rows were'}"
    note = f"{stream.stream}: {rows} not taken, for values that the table cannot hold"
    if stream.dead_keys:
        keys = f"{stream.dead_keys} {'key is' if stream.dead_keys == 1 else 'keys are'}"
        note += f"; {keys} missing from it, because the newest version is such a row"
    return f"{note}. See `penstock dlq show {stream.stream}`."


class _LogKept:
    """How much of the change log is kept for a stream that stands still."""

    def __init__(self, state: Path) -> None:
        self._log = ChangeLog(state / "log")
        self._records = LoadRecords(state / "load")

    def of(self, entry: Entry, document: StateDocument) -> PausedStatus | None:
        if entry.paused is None:
            return None
        position = document.lsn if entry.stream in document.global_streams else entry.cdc_from
        held = [position] if position is not None else []
        if entry.is_loading:
            held += self._records.open_points({entry.stream})
        steps = [each for each in self._log.manifests() if held and each.end > min(held)]
        size = sum(each.bytes for each in steps)
        return PausedStatus(entry.paused.since, entry.paused.reason, len(steps), size)


def _paused_note(stream: str, paused: PausedStatus) -> str:
    why = f" ({paused.reason})" if paused.reason else ""
    kept = f"{paused.log_steps_kept} steps of the change log ({paused.log_bytes_kept:,} bytes)"
    return (
        f"{stream} is paused since {paused.since}{why}: {kept} and the source's own log from there on are "
        f"kept for it until `penstock resume {stream}` and a sync."
    )


def _hold(config: Config, notes: list[str]) -> LogHold | None:
    try:
        return open_source(config.source).hold()
    except PenstockError as error:
        notes.append(f"The source could not be asked: {error.message}")
        return None
