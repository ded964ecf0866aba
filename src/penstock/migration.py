"""Takes over from OLake: its state file and its slot, and an honest answer for each stream.

OLake's tables are not ours, so a position in its file is worth something to us only where our table need not
hold what is before it. Hence the rule, by the stream's mode *here*:

- `strict_cdc` carries on: our table begins empty at the position L where OLake's ends, and follows the log
  from there. Together the two hold every change once: OLake's table has the transactions whose commit
  record begins before L, ours takes those that begin at L or later. That needs the slot to be there and not
  beyond L, and the table to have been published all along: both are asked of the source before anything is
  written. A stream of which OLake's own destination alone knows whether its last round was committed is
  refused: let OLake finish that sync first;
- every other mode loads the table anew, since rows that are in OLake's table only would be missing in ours.
  Chunks that OLake had left and cursors are of no use for that, and are named in the answer.

What carries on is written as a start that was begun and not finished (`lake.joining`): a load record with L
as its point, and the state that names it. The next sync finishes it like any that was cut short.
"""

from __future__ import annotations

from pathlib import Path

from penstock.config import Config
from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.lake.lane_state import LaneStream
from penstock.lake.load import settings_of
from penstock.ledger import state_json, two_phase
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord, LoadRecords
from penstock.ledger.olake import ImportedFile, imported_file, selected_streams
from penstock.ledger.state import Chunk, StateDocument
from penstock.ledger.store import StateStore
from penstock.ledger.takeover import MigratedStream, Wanted, plan_take_over
from penstock.ledger.threads import new_generation, new_load_id
from penstock.resolution import resolve_from_source
from penstock.sources.open import open_source


def migrate(config: Config, file: Path, catalog: Path | None = None) -> list[MigratedStream]:
    """Make the state of a new pipeline from an OLake state file; what becomes of each stream."""
    store = StateStore(config.state)
    if store.load() is not None:
        raise StateError(
            f"There is a state in {config.state} already.",
            remedy="Give the pipeline that takes over a state directory of its own.",
        )
    imported = _read_state(file)
    written = _read_catalog(catalog) if catalog is not None else {}
    streams = {stream.info.stream: stream for stream in resolve_from_source(config)}
    wanted = [Wanted(name, stream.mode, stream.write) for name, stream in streams.items()]
    plan = plan_take_over(imported, "postgres", wanted, written)
    carried = {name: each.position for name, each in plan.carried.items() if each.position is not None}
    document = plan.document
    source = open_source(config.source)
    if carried:
        source.require_log_of([(streams[name].info, position) for name, position in carried.items()])
    origin = f"{source.identity().system_id}.{source.name}"
    records = LoadRecords(config.state / "load")
    for name, position in carried.items():
        record = _begun(streams[name], position, origin)
        records.save(record)
        document = _with_start(document, record)
    store.save(document)
    return plan.told


def _read_state(file: Path) -> ImportedFile:
    try:
        return imported_file(state_json.decode(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{file} cannot be read as an OLake state file.",
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


def _begun(stream: LaneStream, position: Lsn, origin: str) -> LoadRecord:
    target, name = stream.target(), stream.info.stream
    return LoadRecord(
        load_id=new_load_id(),
        generation=new_generation(origin),
        stream=name,
        method="ctid",
        key_column=None,
        schema=target.schema,
        settings=settings_of(stream.mode, target),
        points=(LoadPoint(position, ""),),
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
