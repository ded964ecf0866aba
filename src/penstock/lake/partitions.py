"""Partitions that came or went between two syncs (correctness 31).

DETACH, ATTACH and DROP change a partitioned table's rows without a row in the log. So the list of
leaves is kept in the state and compared at the start of each sync:

- a leaf is gone: its rows must go, and nothing in the log says which: the table is loaded again;
- a leaf is new and was *created* as a partition: every row in it is in the log, nothing to do;
- a leaf is new and was *attached*: it may have brought rows along: the table is loaded again.

Created and attached are told apart by the catalog itself. CREATE TABLE … PARTITION OF writes the table's
columns and its place in the tree in one transaction; ATTACH comes in a later one, or, in the same one,
writes the columns again by the same command that writes the place in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.stream import StreamId
from penstock.lake.lane import LakeLane
from penstock.ledger.ledger import Ledger
from penstock.sources.postgres.catalog import Leaf
from penstock.sources.postgres.connection import Connection, query_errors

_ATTACHED = """
    SELECT DISTINCT inherits.inhrelid::bigint
    FROM pg_inherits AS inherits JOIN pg_attribute AS attribute ON attribute.attrelid = inherits.inhrelid
    WHERE inherits.inhrelid = ANY(%s::bigint[]::oid[]) AND CASE
        WHEN attribute.attnum = -1 THEN attribute.xmin::text <> inherits.xmin::text  -- never written again
        WHEN attribute.attnum > 0
            THEN attribute.xmin::text = inherits.xmin::text AND attribute.cmin::text = inherits.cmin::text
        ELSE false END
"""


def reconcile_partitions(connection: Connection, ledger: Ledger, lane: LakeLane) -> None:
    """Have tables whose partitions changed behind the log's back loaded again."""
    draft = ledger.document.draft()
    for stream, leaves in _partitioned(ledger, lane).items():
        known = draft.own(stream).get("leaves")
        if known is not None:
            _compare(connection, lane, stream, set(known), leaves)


def remember_partitions(ledger: Ledger, lane: LakeLane) -> None:
    """Keep today's leaves, as the tables were loaded and followed."""
    draft = ledger.document.draft()
    for stream, leaves in _partitioned(ledger, lane).items():
        draft.own(stream)["leaves"] = sorted(leaves)
    ledger.write(draft.done())


def _partitioned(ledger: Ledger, lane: LakeLane) -> dict[StreamId, dict[str, Leaf]]:
    """The leaves of each partitioned table that is loaded and follows the log."""
    return {
        stream: {str(leaf.stream): leaf for leaf in configured.info.leaves}
        for stream, configured in lane.streams.items()
        if configured.info.kind == "partitioned"
        and configured.mode != "full_refresh"
        and (state := ledger.document.stream(stream)) is not None
        and state.has_completed_backfill
    }


def _compare(
    connection: Connection, lane: LakeLane, stream: StreamId, known: set[str], leaves: dict[str, Leaf]
) -> None:
    if gone := sorted(known - set(leaves)):
        lane.reload(stream, f"partitions were detached or dropped ({', '.join(gone)})")
    elif attached := _attached(connection, [leaves[name] for name in set(leaves) - known]):
        lane.reload(stream, f"partitions were attached ({', '.join(attached)})")


def _attached(connection: Connection, leaves: Sequence[Leaf]) -> list[str]:
    if not leaves:
        return []
    with query_errors("reading the partitions"):
        rows = connection.execute(_ATTACHED, ([leaf.oid for leaf in leaves],)).fetchall()
    oids = {oid for (oid,) in rows}
    return sorted(str(leaf.stream) for leaf in leaves if leaf.oid in oids)
