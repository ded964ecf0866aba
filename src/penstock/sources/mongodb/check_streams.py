"""What each stream needs of its collection: findings from the catalog and the user's rights, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.core.held_as import HeldAs
from penstock.core.stream import StreamId
from penstock.core.where import Condition, WhereError
from penstock.sources.finding import Finding, Level, StreamNeed
from penstock.sources.mongodb.catalog import CollectionInfo
from penstock.sources.mongodb.rights import FOLLOW, Rights
from penstock.sources.mongodb.types import TYPES

IMAGES_VERSION = (6, 0)

_FULL_REFRESH = "Set `mode: full_refresh` for it, or leave it out."


@dataclass(frozen=True, slots=True)
class Server:
    """`database`: whose changes are read; empty: those of the whole cluster."""

    version: tuple[int, ...]
    rights: Rights
    database: str = ""


def check_streams(
    needs: Sequence[StreamNeed], tables: Sequence[CollectionInfo], server: Server
) -> list[Finding]:
    """Findings of all streams; one that has no problem gets one finding that says so."""
    findings: list[Finding] = []
    for need in needs:
        matching = [table for table in tables if need.stream.matches(table.stream)]
        if not matching:
            findings.append(_missing(need.stream, server.rights))
        for table in matching:
            if need.stream.is_pattern and need.reads_log and not table.can_be_captured:
                findings.append(_left_out(table, need.stream))
                continue
            found = [
                *_check_reading(table, need, server),
                *_check_columns(table, need),
                *_check_selection(table, need),
                *_check_cursor(table, need),
                *(_check_log(table, need, server) if need.reads_log else ()),
            ]
            if not any(finding.level == "error" for finding in found):
                found.insert(0, _fine(table))
            findings += found
    return findings


def _missing(stream: StreamId, rights: Rights) -> Finding:
    if not stream.is_pattern and not rights.may("listCollections", stream.namespace):
        return Finding(
            "privileges",
            "error",
            f"The user {rights.user} may not list the collections of {stream.namespace}.",
            grant(rights, stream.namespace),
            str(stream),
        )
    what = "No collection matches this pattern." if stream.is_pattern else "There is no such collection."
    level: Level = "warning" if stream.is_pattern else "error"
    remedy = "Correct the name in penstock.yaml; `penstock discover` lists the collections."
    return Finding("table", level, what, remedy, str(stream))


def _left_out(table: CollectionInfo, pattern: StreamId) -> Finding:
    message = f"{pattern} leaves this out: there is no change stream of a {table.kind}."
    return Finding("table", "warning", message, f"Name it on its own. {_FULL_REFRESH}", str(table.stream))


def _fine(table: CollectionInfo) -> Finding:
    kind = "" if table.kind == "collection" else f", a {table.kind}"
    message = f"About {table.estimated_rows:,} documents{kind}."
    return Finding("table", "ok", message, stream=str(table.stream))


def _finding(table: CollectionInfo, name: str, level: Level) -> Callable[[str, str], Finding]:
    return lambda message, remedy: Finding(name, level, message, remedy, str(table.stream))


def grant(rights: Rights, database: str, role: str = "read") -> str:
    """What an administrator runs, for the user to have a role in a database."""
    user, _, made_in = rights.user.rpartition("@")
    return (
        f'As an administrator run in the database {made_in}: db.grantRolesToUser("{user}", '
        f'[{{role: "{role}", db: "{database}"}}]).'
    )


def _grant_all(rights: Rights) -> str:
    return f"{grant(rights, 'admin', 'readAnyDatabase')} Or name the streams' `database` in the source."


def _check_reading(table: CollectionInfo, need: StreamNeed, server: Server) -> Iterator[Finding]:
    rights, follows = server.rights, need.reads_log and table.can_be_captured
    missing = [
        action
        for action in ["find", *([FOLLOW] if follows else [])]
        if not rights.may(action, table.stream.namespace, table.stream.name)
    ]
    for action in missing:
        yield _finding(table, "privileges", "error")(
            f"The user {rights.user} may not {'read it' if action == 'find' else 'follow its changes'} "
            f"({action}).",
            grant(rights, table.stream.namespace),
        )
    if follows and not missing and not rights.may(FOLLOW, server.database):
        whole = "database" if server.database else "cluster"
        limited = f"The user {rights.user} may follow this collection, and not the whole {whole}"
        if need.by_pattern or need.stream.is_pattern:
            yield _finding(table, "privileges", "error")(
                f"{limited}: a pattern takes a change stream of all collections.",
                f"{grant(rights, server.database) if server.database else _grant_all(rights)} Or name the "
                "collections.",
            )
        else:
            yield _finding(table, "change stream", "ok")(f"{limited}: it is read by a stream of its own.", "")


def _check_columns(table: CollectionInfo, need: StreamNeed) -> Iterator[Finding]:
    refused = _finding(table, "column types", "error")
    known = {column.name: column for column in table.schema.columns}
    for name, text in need.types.items():
        if name not in known:
            if not need.by_pattern:
                yield refused(
                    f"`types` names the column {name}, which the table does not have.",
                    f"Correct or remove it; the columns are: {', '.join(known)}.",
                )
        elif not TYPES.can_be_held_as(known[name], HeldAs.parse(text)):
            yield refused(
                f"The column {name} of type {known[name].type_text} cannot be held as {text}.",
                f"Possible in `types` for this column: {', '.join(TYPES.possible_types(known[name]))}.",
            )
    for name in need.columns or known:
        if need.rename.get(name, name) in need.added_columns:
            yield _finding(table, "column names", "error")(
                f"The field {name} has the name of a column that Penstock adds to the table.",
                f"Rename it at the destination: `rename: {{{name}: source{name}}}`.",
            )


def _check_selection(table: CollectionInfo, need: StreamNeed) -> Iterator[Finding]:
    refused = _finding(table, "selection", "error")
    for name in need.columns:
        if name not in table.schema.names:
            yield refused(
                f"`columns` names {name}, which the table does not have.",
                f"Correct or remove it; the columns are: {', '.join(table.schema.names)}.",
            )
    lacking = [name for name in table.schema.key if need.columns and name not in need.columns]
    if lacking and need.mode != "full_refresh":
        yield refused(
            "`columns` lacks _id, by which changes find their documents.",
            "Add _id to `columns`, or set `mode: full_refresh`.",
        )
    if need.where is None:
        return
    try:
        condition = Condition.compile(need.where, table.schema.columns)
    except WhereError as error:
        yield refused(
            f"`where`, {error}.", "Correct the condition; docs/guides/filter.md says what can be written."
        )
        return
    beside_key = sorted(condition.columns.difference(table.schema.key))
    if beside_key and need.reads_log and need.write == "append" and not table.images:
        yield refused(
            f"`where` reads {', '.join(beside_key)}, and without pre-images nobody can tell whether a "
            "deleted document was ever in this append table.",
            _enable_images(table),
        )


def _check_cursor(table: CollectionInfo, need: StreamNeed) -> Iterator[Finding]:
    if need.cursor is not None and (problem := need.cursor.problem(table.schema)) is not None:
        yield _finding(table, "cursor", "error")(*problem)


def _check_log(table: CollectionInfo, need: StreamNeed, server: Server) -> Iterator[Finding]:
    if not table.can_be_captured:
        yield _finding(table, "table kind", "error")(
            f"There is no change stream of a {table.kind}, so changes cannot be followed.", _FULL_REFRESH
        )
        return
    if table.kind == "capped collection":
        yield _finding(table, "table kind", "warning")(
            "It is a capped collection: documents that it drops for being full are in no change stream, and "
            "stay in the table.",
            "If that is not wanted, set `mode: full_refresh` for it.",
        )
        if need.write == "append" or need.deletes == "soft":
            yield _finding(table, "table kind", "error")(
                "A capped collection cannot be read as of one time: a change that comes while the table is "
                "loaded could be in an append table twice, or be undone in one that keeps deleted rows.",
                "Set `write: upsert` and `deletes: hard`, or `mode: full_refresh` for it.",
            )
    yield from _check_images(table, need, server)


def _check_images(table: CollectionInfo, need: StreamNeed, server: Server) -> Iterator[Finding]:
    wanted = need.replica_identity == "full"
    if table.images:
        yield _finding(table, "images", "ok")(
            "It keeps pre- and post-images: every change has the document before and after it.", ""
        )
    elif wanted and server.version < IMAGES_VERSION:
        yield _finding(table, "images", "error")(
            "`replica_identity: full` is asked for, and this server does not keep pre-images.",
            "Upgrade the server to 6.0 or later, or leave `replica_identity` out.",
        )
    elif wanted:
        yield _finding(table, "images", "error")(
            "`replica_identity: full` is asked for, and the collection does not keep pre-images.",
            _enable_images(table),
        )
    elif need.write == "append":
        yield _finding(table, "images", "warning")(
            "Without post-images a row of an update shows the document as it was a moment later, when it was "
            "looked up; it is marked as such.",
            _enable_images(table),
        )


def _enable_images(table: CollectionInfo) -> str:
    return (
        f"In the database {table.stream.namespace} run (MongoDB 6.0 or later): "
        f'db.runCommand({{collMod: "{table.stream.name}", changeStreamPreAndPostImages: {{enabled: true}}}}).'
    )
