"""How a table follows its source from one schema to the next, or that it cannot without a new load.

`plan_evolution` compares two schemas of a stream and says where each column of the new table comes from.
Columns are the same if their attribute numbers are: Postgres never gives a number twice, so a rename keeps
it and a column dropped and added under the same name has another one (correctness 29).

What existing rows hold in an added column is the catalog's `missing_value` (a constant default: no row was
written), or null; in a generated one they have values that no event told, whether the column is new or was
not published before. That asks for a new load, unless older rows are to stay as they were told
(`LaneStream.keeps_older_rows`): then it is null in them, like any column that came later. One that is no
longer published is not dropped, and rows change in it without a word (`TableSchema.unpublished`): that too
asks for a new load; where rows are to stay as they were told, `work` has it held on to. If rows were
rewritten meanwhile (a volatile default; but VACUUM FULL too clears
`missing_value`, so any change of `TableSchema.storage` counts) no event tells their values: `resync`. So it
is for a type whose values may have changed, a column altered in a table that was rewritten, a column
dropped and added again, a changed key, and a table that was dropped and created anew.

`unsure` is for what no one can tell: columns whose number is not known because the catalog had moved on
when the change was read, where a rename and a drop with an addition look alike, or a default is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from penstock.core.schema import SourceColumn, TableSchema
from penstock.sources.types import types_of

Kind = Literal["same", "rewrite", "resync", "unsure"]


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """A column of the new table: the old column it is, or what its existing rows hold (None: null)."""

    name: str
    from_name: str | None
    fill: str | None = None  # as text, to be cast like any value of the column


@dataclass(frozen=True, slots=True)
class Evolution:
    """`rewrite`: existing rows change shape by `columns`. `resync`, `unsure`: `reason` says why.

    `hidden` are the columns that only the stream's filter reads: the log has them, the table does not.
    """

    kind: Kind
    columns: tuple[ColumnSource, ...]
    reason: str = ""
    hidden: tuple[ColumnSource, ...] = ()


def plan_evolution(old: TableSchema, new: TableSchema, *, keeps_older_rows: bool = False) -> Evolution:
    """A hidden column that changed its values is as good as one of the table: rows went in or out with it."""
    if not old.hidden and not new.hidden:
        return _plan(old, new, keeps_older_rows=keeps_older_rows)
    whole = _plan(_with_hidden(old), _with_hidden(new), keeps_older_rows=keeps_older_rows)
    held = len(new.columns)
    columns, hidden = whole.columns[:held], whole.columns[held:]
    same = [source.from_name for source in columns] == list(old.names) == list(new.names)
    kind: Kind = "same" if whole.kind == "rewrite" and same else whole.kind
    return Evolution(kind, columns, whole.reason, hidden)


def _with_hidden(schema: TableSchema) -> TableSchema:
    return replace(schema, columns=(*schema.columns, *schema.hidden), hidden=())


def _plan(old: TableSchema, new: TableSchema, *, keeps_older_rows: bool) -> Evolution:
    if old.relation_oid and new.relation_oid and old.relation_oid != new.relation_oid:
        return Evolution("resync", (), "the table was dropped and created anew")
    if any(column.attribute_number == 0 for column in (*old.columns, *new.columns)):
        pairs = _pair_by_name(old, new)
        if isinstance(pairs, str):
            return Evolution("unsure", (), pairs)
    else:
        by_number = {column.attribute_number: column for column in old.columns}
        pairs = [(column, by_number.get(column.attribute_number)) for column in new.columns]
    columns = tuple(
        ColumnSource(now.name, None, now.missing_value)
        if before is None
        else ColumnSource(now.name, before.name)
        for now, before in pairs
    )
    reason = _why_resync(old, new, pairs, keeps_older_rows=keeps_older_rows)
    if reason:
        return Evolution("resync", columns, reason)
    same = [source.from_name for source in columns] == list(old.names) == list(new.names)
    return Evolution("same" if same else "rewrite", columns)


_Pairs = list[tuple[SourceColumn, SourceColumn | None]]


def _pair_by_name(old: TableSchema, new: TableSchema) -> _Pairs | str:
    """Columns of the same name as the same column, or why that is not certain."""
    by_name = {column.name: column for column in old.columns}
    pairs: _Pairs = [(column, by_name.get(column.name)) for column in new.columns]
    added = [now for now, before in pairs if before is None]
    gone = [column for column in old.columns if column.name not in new.names]
    for now, before in pairs:
        if (
            before
            and before.attribute_number * now.attribute_number
            and (before.attribute_number != now.attribute_number)
        ):
            return f"column {now.name} was dropped and added again, and the catalog has moved on since"
    if added and gone:
        return (
            f"column {gone[0].name} was renamed to {added[0].name}, or dropped and the other added: "
            "the catalog has moved on since and cannot tell"
        )
    unknown = [column for column in added if column.attribute_number == 0]
    if unknown:
        return f"the default that column {unknown[0].name} was added with is no longer in the catalog"
    return pairs


def _why_resync(old: TableSchema, new: TableSchema, pairs: _Pairs, *, keeps_older_rows: bool) -> str:
    origin = {now.name: before.name if before else None for now, before in pairs}
    if [origin[name] for name in new.key] != list(old.key):
        return "the key changed"
    gone = set(old.names) - {before.name for _, before in pairs if before is not None}
    for column in old.columns:
        if new.unpublished and column.generated and column.name in gone:
            return f"column {column.name} is generated, and changes came without it: it was not published"
    rewritten = bool(old.storage and new.storage and old.storage != new.storage)
    for now, before in pairs:
        if before is None:
            if now.name in gone:
                return f"column {now.name} was dropped and added again"
            if now.generated and keeps_older_rows:
                continue
            if now.generated:
                return f"column {now.name} is generated, and no event tells what older rows have in it"
            # Any rewrite writes a constant default into the rows and clears it from the catalog.
            if rewritten and now.missing_value is None:
                return f"column {now.name} was added and may have got values that were written without events"
        elif not types_of(now).keeps_values(before, now):
            return f"the type of column {now.name} changed from {before.type_text} to {now.type_text}"
        elif rewritten and _was_altered(before, now):
            return f"column {now.name} was altered and the table rewritten"
    return ""


def _was_altered(before: SourceColumn, now: SourceColumn) -> bool:
    """Whether ALTER … USING may have given the rows other values: it touches the column's catalog entry.

    So does a rewrite that clears the default that older rows read, which changes no value.
    """
    if (before.type_oid, before.type_modifier) != (now.type_oid, now.type_modifier):
        return True
    if before.missing_value is not None and now.missing_value is None:
        return False
    return bool(before.version and now.version and before.version != now.version)
