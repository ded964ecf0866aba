"""Partitions that came or went between two syncs (correctness 31).

DETACH, ATTACH and DROP change a partitioned table's rows without a row in the log. So the list of
leaves is kept in the state and compared at the start of each sync:

- a leaf is gone: its rows must go, and nothing in the log says which: the table is loaded again;
- a leaf is new and was *created* as a partition: every row in it is in the log, nothing to do;
- a leaf is new and was *attached*: it may have brought rows along: the table is loaded again.

Created and attached are told apart by the source (`Source.attached_leaves`).
"""

from __future__ import annotations

from penstock.core.stream import StreamId
from penstock.lake.lane import LakeLane
from penstock.lake.leaves import known_leaves, leaf_marks, with_leaves
from penstock.ledger.ledger import Ledger
from penstock.sources.base import Source
from penstock.sources.tables import SourceTable


def reconcile_partitions(source: Source, ledger: Ledger, lane: LakeLane) -> None:
    """Have tables whose partitions changed behind the log's back loaded again; remember what was compared."""
    for stream, configured in lane.streams.items():
        info, state = configured.info, ledger.document.stream(stream)
        follows = state is not None and state.has_completed_backfill and configured.mode != "full_refresh"
        if info.kind != "partitioned" or not follows:
            continue
        known = known_leaves(ledger.document, info)
        # Without its rows, a table has nothing of what came or went beside the log.
        beside_the_log = configured.mode != "strict_cdc"
        if known is None or not beside_the_log or _is_whole(source, lane, stream, known, info):
            ledger.write(with_leaves(ledger.document, info))


def _is_whole(
    source: Source, lane: LakeLane, stream: StreamId, known: dict[str, str], info: SourceTable
) -> bool:
    """Whether everything that happened to the partitions is in the log; else the table is loaded again."""
    marks = leaf_marks(info)
    gone = sorted(name for name, mark in known.items() if marks.get(name) != mark)
    added = [leaf for leaf in info.leaves if str(leaf.stream) not in known]
    if gone:
        lane.follow_source(stream, f"partitions were detached, dropped or made anew ({', '.join(gone)})")
    elif attached := source.attached_leaves(added):
        names = sorted(str(leaf.stream) for leaf in attached)
        lane.follow_source(stream, f"partitions were attached ({', '.join(names)})")
    else:
        return True
    return False
