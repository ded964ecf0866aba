"""What a table looks like at the source: columns with their source types, key, identity.

A `TableSchema` is immutable and has an id that is a hash of its content, so the same table seen twice
gives the same id on every machine. The log refers to schemas by id; field metadata of Parquet files
carries each column's source type, so a file can be read without the catalog.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.core.stream import StreamId


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """One column as the source declares it.

    `type_name` is the base type's own name (`int4`, `numeric`, `timestamptz`, `_text` for text[];
    of a domain, that of its base type), `type_text` what people write (`numeric(12,2)`).
    """

    name: str
    type_oid: int
    type_modifier: int
    type_name: str
    type_text: str
    attribute_number: int = 0  # 0: not known (the catalog had moved on)
    nullable: bool = True
    toastable: bool = False
    # The value that rows older than this column read as (`attmissingval`), as text.
    missing_value: str | None = None
    # Changes whenever the catalog's entry of the column does (its `xmin`); empty: not known.
    version: str = ""
    # Of an array, its elements' type: the name of a built-in one, else `schema.name`. Empty: not an array, or
    # one whose elements are not separated by commas.
    element: str = ""
    # What the pipeline file has the column held as in the table (`HeldAs`); empty: by the source's type.
    held_as: str = ""
    # The kind of source whose type this is (`source.type`); empty: Postgres, the first there was.
    family: str = ""
    # Computed by the source from other columns of the row, and stored.
    generated: bool = False
    # The column that has this one's values in rows from before it was there (a field that came to documents
    # later, `sources/mongodb/types.py`). Whoever holds that one holds this one. Empty: none has.
    moved_from: str = ""

    def to_json(self) -> dict[str, Any]:
        # What was added to the format later is left out while it says nothing: ids stay what they were.
        added = {
            "element": self.element,
            "held_as": self.held_as,
            "family": self.family,
            "generated": self.generated,
            "moved_from": self.moved_from,
        }
        return {
            "name": self.name,
            "type_oid": self.type_oid,
            "type_modifier": self.type_modifier,
            "type_name": self.type_name,
            "type_text": self.type_text,
            "attribute_number": self.attribute_number,
            "nullable": self.nullable,
            "toastable": self.toastable,
            "missing_value": self.missing_value,
            "version": self.version,
            **{name: value for name, value in added.items() if value},
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> SourceColumn:
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        return cls(**known)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of a stream in the order of the table, and the columns that identify a row.

    `key` holds the replica identity's columns (the primary key by default); empty means none.
    `deferrable_key`: uniqueness is checked at commit, so a key may be held twice in mid-transaction.
    `storage` names the files that held the rows when the schema was read: it changes when the source
    rewrites the table, which writes values without a single event in the log. Empty: not known.

    `unpublished`, of a version in the log, are generated columns that the table has and the rows do not: the
    source was told to leave them out. They are not in `columns`.

    Of a stream that holds a part of its table (`core/selection.py`): `columns` are those it holds, `chosen`
    the names it lists (empty: all), `where` is its filter, `hidden` are the columns that only that reads.
    """

    stream: StreamId
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...] = ()
    replica_identity: str = "d"  # d default, f full, i index, n nothing: as pg_class has it
    deferrable_key: bool = False
    relation_oid: int = 0
    storage: str = ""
    chosen: tuple[str, ...] = ()
    where: str = ""
    hidden: tuple[SourceColumn, ...] = ()
    unpublished: tuple[SourceColumn, ...] = ()
    id: str = field(init=False)

    def __post_init__(self) -> None:
        content = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        object.__setattr__(self, "id", hashlib.sha256(content.encode()).hexdigest()[:16])

    def _content(self) -> dict[str, Any]:
        # What was added to the format later is left out while it says nothing: ids stay what they were.
        added: dict[str, Any] = {
            "chosen": list(self.chosen),
            "where": self.where,
            "hidden": [column.to_json() for column in self.hidden],
            "unpublished": [column.to_json() for column in self.unpublished],
        }
        return {
            "stream": {"namespace": self.stream.namespace, "name": self.stream.name},
            "columns": [column.to_json() for column in self.columns],
            "key": list(self.key),
            "replica_identity": self.replica_identity,
            "deferrable_key": self.deferrable_key,
            "relation_oid": self.relation_oid,
            "storage": self.storage,
            **{name: value for name, value in added.items() if value},
        }

    def to_json(self) -> dict[str, Any]:
        return {"format_version": 1, "id": self.id, **self._content()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TableSchema:
        return cls(
            stream=StreamId(fields["stream"]["namespace"], fields["stream"]["name"]),
            columns=tuple(SourceColumn.from_json(column) for column in fields["columns"]),
            key=tuple(fields["key"]),
            replica_identity=fields["replica_identity"],
            deferrable_key=fields["deferrable_key"],
            relation_oid=fields["relation_oid"],
            storage=fields.get("storage", ""),
            chosen=tuple(fields.get("chosen", ())),
            where=fields.get("where", ""),
            hidden=tuple(SourceColumn.from_json(column) for column in fields.get("hidden", ())),
            unpublished=tuple(SourceColumn.from_json(column) for column in fields.get("unpublished", ())),
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def shape(self) -> str:
        """A fingerprint of which columns there are and what identifies a row; equal for equal tables."""
        columns = [
            (each.attribute_number, each.name, each.type_oid, each.type_modifier) for each in self.columns
        ]
        content = json.dumps([self.relation_oid, columns, self.key], separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def lasting(self) -> TableSchema:
        """Without columns that take over values of another one: they come to a table while it is in use, and
        rows that are read without them have those values all the same."""
        lasting = tuple(column for column in self.columns if not column.moved_from)
        if len(lasting) == len(self.columns):
            return self
        return replace(self, columns=lasting)

    def held_as(self, choices: Mapping[str, str]) -> TableSchema:
        """The same table with these columns held as chosen, and all others by their source's type."""
        columns = tuple(replace(column, held_as=choices.get(column.name, "")) for column in self.columns)
        return self if columns == self.columns else replace(self, columns=columns)

    def column(self, name: str) -> SourceColumn:
        return next(column for column in self.columns if column.name == name)
