"""A place in a source's log in the source's own words; `position.py` has the numbers that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the source's words: a binlog place and its GTID set, or the data of a resume token."""

    text: str
    gtid_set: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"at": self.text, **({"gtid_set": self.gtid_set} if self.gtid_set else {})}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Place:
        return cls(str(fields["at"]), str(fields.get("gtid_set", "")))
