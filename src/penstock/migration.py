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

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.config import Config
from penstock.core.errors import StateError
from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.lake.lane_state import LaneStream
from penstock.lake.load import settings_of
from penstock.ledger import state_json, two_phase
from penstock.ledger.load_record import LoadChunk, LoadPoint, LoadRecord, LoadRecords
from penstock.ledger.olake import ImportedStream, imported_streams, selected_streams
from penstock.ledger.state import Chunk, StateDocument
from penstock.ledger.store import StateStore
from penstock.ledger.threads import new_generation, new_load_id
from penstock.resolution import resolve_from_source
from penstock.sources.open import open_source

Action = Literal["carries on", "is loaded anew", "begins with the next sync", "is left out"]


@dataclass(frozen=True, slots=True)
class MigratedStream:
    """What becomes of a stream, and why."""

    stream: str
    action: Action
    detail: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def migrate(config: Config, file: Path, catalog: Path | None = None) -> list[MigratedStream]:
    """Make the state of a new pipeline from an OLake state file; what becomes of each stream."""
    store = StateStore(config.state)
    if store.load() is not None:
        raise StateError(
            f"There is a state in {config.state} already.",
            remedy="Give the pipeline that takes over a state directory of its own.",
        )
    imported = {each.stream: each for each in _read_state(file)}
    written = _read_catalog(catalog) if catalog is not None else {}
    streams = {stream.info.stream: stream for stream in resolve_from_source(config)}
    carried = {
        name: position
        for name, stream in streams.items()
        if (position := _carried(stream, imported.get(name))) is not None
    }
    document = StateDocument.new()
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
    told = [_told(name, stream, imported.get(name), written) for name, stream in sorted(streams.items())]
    left_out = sorted({*map(str, imported), *written} - set(map(str, streams)))
    told += [MigratedStream(name, "is left out", "the pipeline file has no such stream") for name in left_out]
    return told


def _read_state(file: Path) -> list[ImportedStream]:
    try:
        return imported_streams(state_json.decode(file.read_bytes()))
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


def _carried(stream: LaneStream, imported: ImportedStream | None) -> Lsn | None:
    """From where a stream carries on; None: it does not."""
    if stream.mode != "strict_cdc" or imported is None or imported.position is None:
        return None
    if imported.in_doubt:
        raise StateError(
            "OLake was stopped in the middle of a round: whether its table holds it, only its destination "
            "knows.",
            stream=str(imported.stream),
            remedy="Run OLake's sync once more to its end, then migrate; or set `mode: cdc` to load anew.",
        )
    return imported.position


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


def _told(
    name: StreamId, stream: LaneStream, imported: ImportedStream | None, written: dict[str, str]
) -> MigratedStream:
    other = written.get(str(name))
    besides = "" if other in (None, stream.write) else f"; `{other}` there, `{stream.write}` here"
    if imported is not None and imported.position is not None and stream.mode == "strict_cdc":
        return MigratedStream(str(name), "carries on", f"empty, from {imported.position}{besides}")
    if stream.mode == "strict_cdc":
        return MigratedStream(str(name), "begins with the next sync", f"OLake did not follow it{besides}")
    reasons = ["its rows are in OLake's table only"]
    if imported is not None and imported.chunks_left:
        reasons.append(f"{imported.chunks_left} chunks that OLake had left are read with the others")
    if imported is not None and imported.cursors:
        reasons.append(f"OLake's cursor ({', '.join(imported.cursors)}) is not needed")
    return MigratedStream(str(name), "is loaded anew", "; ".join(reasons) + besides)
