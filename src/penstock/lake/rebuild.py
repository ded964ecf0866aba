"""The state made anew from what the destination's own markers say, when the state directory is gone.

A table holds every change up to its marker's `to`, M. The slot was acknowledged up to C only after every
table held what there was for it up to C: so a table whose marker is older than C had nothing in between, and
each table goes on from the later of M and C. With the state the log is gone too; the slot still has
everything after C, so the log begins anew there, and changes up to M are left out for that table.

That the marker was written from this source and through this slot is said by its generation, which begins
with both. Not taken up, but loaded again as if they were new: tables of another source or an older format,
tables that are being loaded anew (the reason was in the state), resumed loads that readers have not been
shown, and partitioned tables, whose list of leaves was in the state.
Also tables whose marker is older than C, if the source may have been acknowledged by the change log alone
(`wal.acknowledge: log`, `wal.on_wal_pressure: acknowledge_log`): what is in between was only there. Nor are
tables taken up by a state that was emptied on purpose, or that was there before its slot: a slot that we made
ourselves has not seen what came before it (`Turns` writes that down before it has one made).

What nobody can tell while the state is away: a slot that was dropped and made again under the same name, a
destination put back to an older backup, a stream that was taken out of the file and put in again. After one
of those, `penstock resync` is the way; the note that is printed says so.
"""

from __future__ import annotations

from penstock.core.position import Lsn
from penstock.core.stream import StreamId
from penstock.destinations.records import Marker
from penstock.lake.lane_state import LaneState
from penstock.ledger import two_phase
from penstock.ledger.threads import origin_of


def rebuild_state(
    lane: LaneState, origin: str, slot_position: Lsn, *, slot_knows_tables: bool = True
) -> None:
    """Take up the tables there are; nothing if the state knows any stream, or was made before its slot.

    `slot_knows_tables`: the slot was never acknowledged further than the tables were.
    """
    document = lane.ledger.document
    if document.streams or document.was_emptied:
        return
    for stream, configured in lane.streams.items():
        marker = _marker(lane, stream, origin)
        if marker is None or marker.to is None:
            continue
        if marker.to < slot_position and not slot_knows_tables:
            lane.listener.note(
                f"{stream}: there is no state, and by `wal` in the pipeline file the source may have "
                "forgotten changes that only the change log had; the table is loaded anew."
            )
            continue
        document = two_phase.take_up(
            document,
            stream,
            sync_mode=configured.mode,
            generation=marker.generation,
            committed_to=marker.to,
            cdc_from=max(marker.to, slot_position),
        )
        lane.listener.note(
            f"{stream}: there is no state, but a table; going on from {marker.to}. If the slot or the table "
            "was replaced or put back meanwhile, run `penstock resync` for it."
        )
    for stream in document.streams:
        document = two_phase.join_global(document, stream)
    lane.ledger.write(document)


def _marker(lane: LaneState, stream: StreamId, origin: str) -> Marker | None:
    configured = lane.streams[stream]
    record = lane.table(stream).record()
    if configured.mode not in ("cdc", "strict_cdc") or configured.info.kind == "partitioned":
        return None
    if record is None or record.marker is None:
        return None
    if record.load is not None or record.readable_from is not None:
        return None
    return record.marker if origin_of(record.marker.generation) == origin else None
