"""Which source capture reads, as a value: a class for each kind of database, told apart in JSON by `type`.

Nothing here is asked of a server: `capture.open` makes of such a value what reads.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

PublicationMode = Literal["auto", "manual"]


@dataclass(frozen=True, slots=True)
class PostgresSpec:
    url: str = field(repr=False)
    slot: str
    publication: str
    publication_mode: PublicationMode = "auto"
    failover: bool = False  # of the slot, if it is made
    replica_url: str | None = field(default=None, repr=False)  # where tables are read, if not at `url`
    replica_wait_s: float = 0.0
    messages: tuple[str, ...] = ()  # prefixes of emitted messages that are kept; "*" at the end matches more

    type: ClassVar[Literal["postgres"]] = "postgres"

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self), "messages": list(self.messages)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> PostgresSpec:
        return cls(**{**fields, "messages": tuple(fields["messages"])})


@dataclass(frozen=True, slots=True)
class MysqlSpec:
    """`name`: of the pipeline's lock. `server_id`: as which replica the log is read."""

    url: str = field(repr=False)
    name: str
    server_id: int

    type: ClassVar[Literal["mysql"]] = "mysql"

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> MysqlSpec:
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class MongoSpec:
    """`name` tells pipelines of one cluster apart; `database` empty: streams are of the whole cluster."""

    url: str = field(repr=False)
    name: str
    database: str = ""
    layout: Literal["document", "fields"] = "document"
    fields_path: str | None = None  # where the fields that collections were found to have are kept
    new_fields: int = 0  # how many fields of a collection may get columns later
    names_taken: tuple[str, ...] = ()  # that tables give to other columns

    type: ClassVar[Literal["mongodb"]] = "mongodb"

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self), "names_taken": list(self.names_taken)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> MongoSpec:
        return cls(**fields | {"names_taken": tuple(fields["names_taken"])})


SourceSpec: TypeAlias = PostgresSpec | MysqlSpec | MongoSpec
_KINDS: dict[str, type[PostgresSpec] | type[MysqlSpec] | type[MongoSpec]] = {
    kind.type: kind for kind in (PostgresSpec, MysqlSpec, MongoSpec)
}


def source_of_json(fields: dict[str, Any]) -> SourceSpec:
    return _KINDS[fields["type"]].from_json({name: each for name, each in fields.items() if name != "type"})
