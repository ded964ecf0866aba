"""How far the load of a stream is, as a target keeps it beside the lane's position (`Standing.loads`).

{"load", "point", "next": {…}, …}   loading: told are the rows before `next`, and the changes before `point`
{"load", "point", "behind": true}   told are all rows, and the changes before `point`
{"point"}                           it follows with the lane, from `point` on: the lane is not there yet
{}                                  it follows with the lane
{…, "gap": true}                    changes are missing behind `point`: it stands still until somebody decides
{…, "without_rows": true}           only its changes are told: if its rows are wanted later, they are loaded
{…, "since"}                        of its changes, those from there on were told, and none before that counts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from penstock.core.position import Lsn
from penstock.sources.chunk import ChunkMethod

_NOT_KNOWN = Lsn(0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading goes on: leaves are read in the order of their names, each from its lower end."""

    leaf: str
    low: str | None


BEGINNING = Place("", None)


@dataclass(frozen=True, slots=True)
class LoadState:
    """`name` is the load's: another one if the table is read anew. `storage`: the files it was read from.

    `since`: told are the changes with `since <= tx < point`, or up to the lane's position, each once; 0: it
    is not known, for the lane began before that was written down. Whoever compares the target with the log
    begins there (`comparison`).
    """

    point: Lsn
    name: str = ""
    next: Place | None = None
    is_behind: bool = False
    method: ChunkMethod = "ctid"
    storage: str = ""
    rows: int = 0
    has_gap: bool = False
    has_rows: bool = True
    since: Lsn = _NOT_KNOWN

    @property
    def is_loading(self) -> bool:
        """Whether its changes are left out of what the lane follows."""
        return self.next is not None or self.is_behind

    def to_json(self, lane: Lsn) -> dict[str, Any]:
        """`lane`: how far the lane itself is."""
        fields: dict[str, Any] = {} if self.has_rows else {"without_rows": True}
        if self.since:
            fields["since"] = str(self.since)
        if not self.is_loading:
            return fields | ({"point": str(self.point)} if self.point > lane else {})
        fields |= {"load": self.name, "point": str(self.point), "rows": self.rows}
        if self.has_gap:
            fields["gap"] = True
        if self.next is None:
            return fields | {"behind": True}
        place = {"leaf": self.next.leaf, "from": self.next.low}
        return fields | {"next": place, "method": self.method, "storage": self.storage}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> LoadState:
        place = fields.get("next")
        return cls(
            point=Lsn.parse(fields["point"]) if "point" in fields else Lsn(0),
            name=fields.get("load", ""),
            next=None if place is None else Place(place["leaf"], place["from"]),
            is_behind=fields.get("behind", False),
            method=cast(Literal["ctid", "key"], fields.get("method", "ctid")),
            storage=fields.get("storage", ""),
            rows=fields.get("rows", 0),
            has_gap=fields.get("gap", False),
            has_rows=not fields.get("without_rows", False),
            since=Lsn.parse(fields["since"]) if "since" in fields else _NOT_KNOWN,
        )

    def stopped_at(self, lane: Lsn) -> LoadState:
        """Changes are missing behind what was told: no more is told, and the log is kept from there on."""
        if self.is_loading:
            return replace(self, has_gap=True)
        return replace(self, point=max(self.point, lane), is_behind=True, has_gap=True)

    def stopped_behind(self, tx: int) -> LoadState:
        """The log does not tell what a transaction changed. What is before it was told, or will not be; what
        is behind it may be told once somebody has decided."""
        point = Lsn(tx + 1)
        return replace(self, point=point, is_behind=self.next is None, has_gap=True)

    def without_rows(self) -> LoadState:
        """As of a stream whose rows nobody wants (any more): its changes go on from `point`."""
        return replace(self, next=None, is_behind=self.is_loading, has_rows=False)

    def gone_on(self) -> LoadState:
        """Somebody has decided to go on without what is missing."""
        return replace(self, has_gap=False)


def least_point(loads: Mapping[str, Any]) -> Lsn | None:
    """What the log is still needed from, for streams that load; None: for none."""
    states = map(LoadState.from_json, loads.values())
    return min((state.point for state in states if state.is_loading), default=None)
