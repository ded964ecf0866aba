"""A place in a source's log in the source's own words; `position.py` has the numbers that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the source's words: a binlog place and its GTID set, or the data of a resume token.

    `server`: by whom the words are understood, where each server has its own; empty: not said.
    """

    text: str
    gtid_set: str = ""
    server: str = ""

    def to_json(self) -> dict[str, Any]:
        more = {"gtid_set": self.gtid_set, "server": self.server}
        return {"at": self.text, **{name: value for name, value in more.items() if value}}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Place:
        return cls(str(fields["at"]), str(fields.get("gtid_set", "")), str(fields.get("server", "")))
