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
from penstock.lake.leaves import known_leaves, leaf_marks, with_leaves
from penstock.ledger.ledger import Ledger
from penstock.sources.postgres.catalog import Leaf, TableInfo
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
    """Have tables whose partitions changed behind the log's back loaded again; remember what was compared."""
    for stream, configured in lane.streams.items():
        info, state = configured.info, ledger.document.stream(stream)
        follows = state is not None and state.has_completed_backfill and configured.mode != "full_refresh"
        if info.kind != "partitioned" or not follows:
            continue
        known = known_leaves(ledger.document, info)
        # Without its rows, a table has nothing of what came or went beside the log.
        beside_the_log = configured.mode != "strict_cdc"
        if known is None or not beside_the_log or _is_whole(connection, lane, stream, known, info):
            ledger.write(with_leaves(ledger.document, info))


def _is_whole(
    connection: Connection, lane: LakeLane, stream: StreamId, known: dict[str, str], info: TableInfo
) -> bool:
    """Whether everything that happened to the partitions is in the log; else the table is loaded again."""
    marks = leaf_marks(info)
    gone = sorted(name for name, mark in known.items() if marks.get(name) != mark)
    added = [leaf for leaf in info.leaves if str(leaf.stream) not in known]
    if gone:
        lane.follow_source(stream, f"partitions were detached, dropped or made anew ({', '.join(gone)})")
    elif attached := _attached(connection, added):
        lane.follow_source(stream, f"partitions were attached ({', '.join(attached)})")
    else:
        return True
    return False


def _attached(connection: Connection, leaves: Sequence[Leaf]) -> list[str]:
    if not leaves:
        return []
    with query_errors("reading the partitions"):
        rows = connection.execute(_ATTACHED, ([leaf.oid for leaf in leaves],)).fetchall()
    oids = {oid for (oid,) in rows}
    return sorted(str(leaf.stream) for leaf in leaves if leaf.oid in oids)
