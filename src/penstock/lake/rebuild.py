"""The state made anew from what the destination's own markers say, when the state directory is gone.

A table holds every change up to its marker's `to`, M. The slot was acknowledged up to C only after every
table held what there was for it up to C: so a table whose marker is older than C had nothing in between, and
each table goes on from the later of M and C. With the state the log is gone too; the slot still has
everything after C, so the log begins anew there, and changes up to M are left out for that table.

That the marker was written from this source and through this slot is said by its generation, which begins
with both. The leaves of a partitioned table, by which `partitions` tells whether rows came or went beside the
log, are in the marker as well. Not taken up, but loaded again as if they were new, history and all: tables of
another source or an older format, tables that are being loaded anew (the reason was in the state), resumed
loads that readers have not been shown, and partitioned tables whose marker is older than its leaves.
Not either: tables whose marker is of an earlier timeline and beyond where that was left. The standby that was
promoted never had what they hold last, and its own commits may have the same positions (correctness 6).
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
from penstock.lake.leaves import with_marks
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
        document = with_marks(document, stream, marker.leaves or {})
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
    if not configured.reads_log or record is None or record.marker is None:
        return None
    # Without its rows, a table has nothing of what came or went beside the log.
    if configured.info.kind == "partitioned" and configured.mode == "cdc" and record.marker.leaves is None:
        return None
    if record.load is not None or record.readable_from is not None:
        return None
    if origin_of(record.marker.generation) != origin:
        return None
    return record.marker if _is_of_this_history(lane, stream, record.marker) else None


def _is_of_this_history(lane: LaneState, stream: StreamId, marker: Marker) -> bool:
    """Whether the source's log, as it is now, has been through where the table is."""
    before, now = marker.timeline, lane.settings.timeline
    if before is None or before == now or marker.to is None:
        return True
    left = lane.settings.source.switch_point(before, now)
    if left is not None and marker.to <= left:
        return True
    lane.listener.note(
        f"{stream}: there is no state, and the table is at {marker.to} of timeline {before}, which is not "
        f"part of timeline {now} that the source is on since its promotion; what it holds is not taken up."
    )
    return False
