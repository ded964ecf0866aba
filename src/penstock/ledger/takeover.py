"""What becomes of each stream when a pipeline takes over from OLake. Decisions only, no I/O.

`migration.py` says why: a stream that is `strict_cdc` here carries on where OLake's table ends, every other
is loaded anew. The rule is the same for every source, since a file's positions are numbers here, with the
source's words beside them; what the source must still have, and be asked for, is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from penstock.core.errors import StateError
from penstock.core.stream import StreamId
from penstock.ledger import two_phase
from penstock.ledger.dialect import SourceName
from penstock.ledger.olake import ImportedFile, ImportedStream
from penstock.ledger.state import StateDocument

Action = Literal["carries on", "is loaded anew", "begins with the next sync", "is left out"]
_NAMES: dict[SourceName, str] = {"postgres": "Postgres", "mysql": "MySQL", "mongodb": "MongoDB"}


@dataclass(frozen=True, slots=True)
class MigratedStream:
    """What becomes of a stream, and why."""

    stream: str
    action: Action
    detail: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A stream of the pipeline file."""

    stream: StreamId
    mode: str
    write: str


@dataclass(frozen=True, slots=True)
class TakeOver:
    """`carried`: streams whose table begins empty where OLake's ends. `document`: the state to begin with."""

    carried: dict[StreamId, ImportedStream]
    told: list[MigratedStream]
    document: StateDocument


def plan_take_over(
    file: ImportedFile, source: SourceName, wanted: Iterable[Wanted], written: Mapping[str, str]
) -> TakeOver:
    """`written`: how OLake's streams.json has its streams written, by stream id.

    StateError if the file is another kind of source's, or leaves open where a stream would carry on.
    """
    imported = {each.stream: each for each in file.streams}
    if file.source != source and any(each.position is not None for each in file.streams):
        raise StateError(
            f"The file is of a {_NAMES[file.source]} source, and the pipeline file names {_NAMES[source]}.",
            remedy="Give the state.json that OLake wrote for this source.",
        )
    streams = sorted(wanted, key=lambda each: each.stream)
    carried = {
        each.stream: found
        for each in streams
        if (found := _carried(each, imported.get(each.stream))) is not None
    }
    told = [_told(each, imported.get(each.stream), written) for each in streams]
    left_out = sorted({*map(str, imported), *written} - {str(each.stream) for each in streams})
    told += [MigratedStream(name, "is left out", "the pipeline file has no such stream") for name in left_out]
    return TakeOver(carried, told, _begun(file, source))


def _begun(file: ImportedFile, source: SourceName) -> StateDocument:
    document = StateDocument.new(source=source)
    if source != "mysql" or file.server_id is None:
        return document
    # It is nobody else's there, as long as OLake is stopped.
    return two_phase.bound_to_server(document, server_id=file.server_id, server_uuid="")


def _carried(wanted: Wanted, imported: ImportedStream | None) -> ImportedStream | None:
    """From where a stream carries on; None: it does not."""
    if wanted.mode != "strict_cdc" or imported is None:
        return None
    if imported.chunks_left:
        raise StateError(
            f"OLake had {imported.chunks_left} chunks of its load left: its table ends nowhere yet.",
            stream=str(imported.stream),
            remedy="Run OLake's sync once more to its end, then migrate; or set `mode: cdc` to load anew.",
        )
    if imported.position is None:
        return None
    if imported.in_doubt:
        raise StateError(
            "OLake was stopped in the middle of a round: whether its table holds it, only its destination "
            "knows.",
            stream=str(imported.stream),
            remedy="Run OLake's sync once more to its end, then migrate; or set `mode: cdc` to load anew.",
        )
    return imported


def _told(wanted: Wanted, imported: ImportedStream | None, written: Mapping[str, str]) -> MigratedStream:
    name = str(wanted.stream)
    other = written.get(name)
    besides = "" if other in (None, wanted.write) else f"; `{other}` there, `{wanted.write}` here"
    if imported is not None and imported.place is not None and wanted.mode == "strict_cdc":
        return MigratedStream(name, "carries on", f"empty, from {imported.place.text}{besides}")
    if wanted.mode == "strict_cdc":
        return MigratedStream(name, "begins with the next sync", f"OLake did not follow it{besides}")
    reasons = ["its rows are in OLake's table only"]
    if imported is not None and imported.chunks_left:
        reasons.append(f"{imported.chunks_left} chunks that OLake had left are read with the others")
    if imported is not None and imported.cursors:
        reasons.append(f"OLake's cursor ({', '.join(imported.cursors)}) is not needed")
    return MigratedStream(name, "is loaded anew", "; ".join(reasons) + besides)
