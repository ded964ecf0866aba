"""Which values of a shape are held, and which nulls count for it, as it is kept with the shape over a crash:
in the record of the commit log that has the items and the position it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.offset import LogOffset
from penstock.shapes.subquery.values import Value

Held = list[dict[Value, int]]


@dataclass(frozen=True, slots=True)
class HeldState:
    """`held` by subquery, with the transaction that activated each; `trigger`: where it is told behind;
    `nulls` by subquery: of the values with a null, those that count."""

    trigger: LogOffset
    held: Held
    nulls: list[frozenset[Value]]

    def to_json(self) -> dict[str, Any]:
        held = [[[list(value), xid] for value, xid in each.items()] for each in self.held]
        nulls = [[list(value) for value in each] for each in self.nulls]
        return {"trigger": str(self.trigger), "held": held, "nulls": nulls}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> HeldState:
        held = [{tuple(value): xid for value, xid in each} for each in fields["held"]]
        nulls = [frozenset(map(tuple, each)) for each in fields["nulls"]]
        return cls(LogOffset.parse(fields["trigger"]), held, nulls)
