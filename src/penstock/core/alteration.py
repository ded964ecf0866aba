"""What a statement that alters a table makes of its columns, where that is certain.

A source without numbers for columns cannot tell a rename from a drop and an addition by looking at two
versions of a table. A statement can: `schema` is the table after it, `origins` says of each of its columns
which one it was before (None: it was added, and older rows hold its `missing_value`, or null), and `dropped`
are those that are gone. So every column of the table before is an origin or dropped, or this is of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Alteration:
    schema: TableSchema
    origins: Mapping[str, str | None]
    dropped: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema.to_json(),
            "origins": dict(self.origins),
            "dropped": list(self.dropped),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Alteration:
        return cls(TableSchema.from_json(fields["schema"]), dict(fields["origins"]), tuple(fields["dropped"]))
