"""Takes over from OLake: its state file and the source's log, and an honest answer for each stream.

OLake's tables are not ours, so a position in its file is worth something to us only where our table need not
hold what is before it. Hence the rule, by the stream's mode *here*:

- `strict_cdc` carries on: our table begins empty at the position L where OLake's ends, and follows the log
  from there. Together the two hold every change once: OLake's table has the transactions before L, ours takes
  those at L or later. That needs the source to have all of the log from L on, and L to be between two
  transactions: both are asked of the source before anything is written. A stream of which OLake's own
  destination alone knows whether its last round was committed, or whose load has chunks left, is refused: let
  OLake finish that sync first;
- every other mode loads the table anew, since rows that are in OLake's table only would be missing in ours.
  Chunks that OLake had left and cursors are of no use for that, and are named in the answer.

What carries on is written as a start that was begun and not finished (`lake.joining`): a load record with L
as its point, and the state that names it. The next sync finishes it like any that was cut short.

Before either, the change log is made to begin at the least L (`CaptureSource.begin_at`): of Postgres by
OLake's slot, which is there; of MySQL by an empty first step, which knows the set of transactions before L;
of MongoDB by the pipeline's document at the cluster. In that order nothing is lost by a crash: as long as
there is no state the same command can be run again, and once there is one the log begins where it says.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from penstock import durable, failpoints
from penstock.capture import open as capture_open
from penstock.capture.from_config import spec_of
from penstock.config import Config
from penstock.core.errors import StateError
from penstock.core.stream import StreamId
from penstock.lake.lane_state import LaneStream
from penstock.lake.load import settings_of
from penstock.ledger import state_json, two_phase
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord, LoadRecords
from penstock.ledger.olake import ImportedFile, ImportedStream, imported_file, selected_streams
from penstock.ledger.state import Chunk, StateDocument
from penstock.ledger.store import StateStore
from penstock.ledger.takeover import MigratedStream, Wanted, plan_take_over
from penstock.ledger.threads import new_generation, new_load_id
from penstock.log.manifest import list_sequence, read_manifest
from penstock.resolution import resolve_from_source
from penstock.sources.base import Source, TableEnd
from penstock.sources.open import open_source

_OWN_DIRECTORY = "Give the pipeline that takes over a state directory of its own."


def migrate(config: Config, file: Path, catalog: Path | None = None) -> list[MigratedStream]:
    """Make the state of a new pipeline from an OLake state file; what becomes of each stream."""
    store = StateStore(config.state)
    if store.load() is not None:
        raise StateError(f"There is a state in {config.state} already.", remedy=_OWN_DIRECTORY)
    log = config.state / "log"
    _require_no_changes(log)
    imported = _read_state(file)
    written = _read_catalog(catalog) if catalog is not None else {}
    streams = {stream.info.stream: stream for stream in resolve_from_source(config)}
    wanted = [Wanted(name, stream.mode, stream.write) for name, stream in streams.items()]
    plan = plan_take_over(imported, config.source.type, wanted, written)
    document = plan.document
    if plan.carried:
        source = open_source(config.source)
        points = _points(source, streams, plan.carried)
        _forget_beginning(log)
        with closing(capture_open.open_source(spec_of(config, list(points)))) as capture:
            points = capture.begin_at(points)
        origin = f"{source.identity().system_id}.{source.name}"
        records = LoadRecords(config.state / "load")
        for name, point in points.items():
            record = _begun(streams[name], point, origin)
            records.save(record)
            document = _with_start(document, record)
        failpoints.reach("migrate.begun")
    store.save(document)
    return plan.told


def _points(
    source: Source, streams: Mapping[StreamId, LaneStream], carried: Mapping[StreamId, ImportedStream]
) -> dict[StreamId, LoadPoint]:
    """Where the streams carry on, as the source says."""
    ends = [
        TableEnd(streams[name].info, each.position, each.place)
        for name, each in carried.items()
        if each.position is not None and each.place is not None
    ]
    positions = source.positions_behind(ends)
    return {
        end.table.stream: LoadPoint(position, "", end.place)
        for end, position in zip(ends, positions, strict=True)
    }


def _require_no_changes(log: Path) -> None:
    """A log of one empty step without a state is the beginning that a command like this one made."""
    numbers = list_sequence(log)
    if not numbers:
        return
    if len(numbers) > 1 or read_manifest(log, numbers[0]).tables:
        raise StateError(f"There is a change log in {log} already.", remedy=_OWN_DIRECTORY)


def _forget_beginning(log: Path) -> None:
    """OLake may have gone on since."""
    if log.exists():
        with durable.storage_errors(f"Could not remove the change log in {log}."):
            shutil.rmtree(log)
            durable.sync_directory(log.parent)


def _read_state(file: Path) -> ImportedFile:
    try:
        return imported_file(state_json.decode(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, StateError) as error:
        raise StateError(
            f"{file} cannot be read as an OLake state file.",
            detail=error.message if isinstance(error, StateError) else "",
            remedy="Give the state.json that OLake wrote last.",
        ) from error


def _read_catalog(file: Path) -> dict[str, str]:
    try:
        return selected_streams(state_json.decode(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"{file} cannot be read as an OLake streams file.",
            remedy="Give the streams.json that OLake was run with, or leave it away.",
        ) from error


def _begun(stream: LaneStream, point: LoadPoint, origin: str) -> LoadRecord:
    target, name = stream.target(), stream.info.stream
    return LoadRecord(
        load_id=new_load_id(),
        generation=new_generation(origin),
        stream=name,
        method="ctid",
        key_column=None,
        schema=target.schema,
        settings=settings_of(stream.mode, target),
        points=(point,),
        chunks=(LoadChunk(str(name), None, None, 0),),
    )


def _with_start(document: StateDocument, record: LoadRecord) -> StateDocument:
    return two_phase.plan_load(
        document,
        record.stream,
        sync_mode="strict_cdc",
        load_id=record.load_id,
        generation=record.generation,
        chunks=[Chunk(None, None)],
    )
