"""Whether a statement that changes rows of a table may have changed those of another, by the catalog.

Nothing is taken for granted: a table that is not seen may be a view, and triggers are shown only to users
who have the privilege TRIGGER, so without it each table may have some. Privileges that come in another way
than by a plain grant to the user count as not given. The catalog is as it is now, and not as it was then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from penstock.core.stream import StreamId
from penstock.sources.mysql import catalog_queries as queries
from penstock.sources.mysql.catalog import TRANSACTIONAL_ENGINES
from penstock.sources.mysql.connection import Connection

#: Databases in which only the server itself makes tables, which have no triggers.
_SERVERS_OWN = ("information_schema", "mysql", "performance_schema")
#: Those whose tables hold rows of their own, and none of other tables or servers.
_ENGINES = TRANSACTIONAL_ENGINES | {"aria", "archive", "blackhole", "csv", "memory", "myisam"}
_NAME = "`((?:[^`]|``)+)`"
_GRANT = re.compile(rf"GRANT ([A-Z ,]+) ON (?:\*\.\*|{_NAME}\.(?:\*|{_NAME})) TO \S*@\S*.*", re.DOTALL)


def reach_beyond(connection: Connection, target: StreamId, read: Collection[StreamId]) -> str | None:
    """Why a statement of `target` that reads these may have changed rows of others; None: it did not."""
    kinds = _kinds(connection, {target, *read})
    is_servers_own = target.namespace.lower() in _SERVERS_OWN
    for stream in sorted({target, *read}):
        is_table = kinds.get(stream)
        if not is_table and not (is_servers_own and stream == target and is_table is None):
            return (
                f"{stream} is a view, or a table that the user does not see, by which others may be changed."
            )
    if is_servers_own:
        return None
    if queries.count_triggers(connection, target.namespace, target.name):
        return "The table has triggers, which may have changed rows of others."
    if queries.count_cascades_from(connection, target.namespace, target.name):
        return "Foreign keys of other tables follow this one, so rows of theirs may have changed."
    if not sees_triggers(queries.grants(connection), target):
        return "The user does not see whether the table has triggers, which may have changed rows of others."
    return None


def _kinds(connection: Connection, streams: Collection[StreamId]) -> dict[StreamId, bool]:
    """Whether each that is seen is a table with rows of its own."""
    databases, names = ({each.namespace for each in streams}, {each.name for each in streams})
    found = queries.tables(connection, sorted(databases), sorted(names))
    return {
        StreamId(row["database"], row["table"]): row["type"] in ("BASE TABLE", "SYSTEM VERSIONED")
        and (row["engine"] or "").lower() in _ENGINES
        for row in found
    }


def sees_triggers(grants: Iterable[str], stream: StreamId) -> bool:
    """Without I/O. A grant for a database counts if all that name it have the privilege: the one that names
    it best is the one that the server goes by."""
    of_database: list[bool] = []
    of_others: list[bool] = []
    for grant in grants:
        if grant.startswith("REVOKE"):
            return False  # part of what a grant of all databases gives
        found = _GRANT.fullmatch(grant)
        if found is None:
            continue
        given = {each.strip() for each in found[1].split(",")}
        has = not given.isdisjoint({"TRIGGER", "ALL", "ALL PRIVILEGES"})
        database, table = (None if each is None else each.replace("``", "`") for each in found.group(2, 3))
        if table is None and database is not None:
            if re.sub(r"\\([_%\\])", r"\1", database) == stream.namespace:
                of_database.append(has)
        elif database is None or (database, table) == (stream.namespace, stream.name):
            of_others.append(has)
    return any(of_others) or (bool(of_database) and all(of_database))
