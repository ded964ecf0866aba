"""`KeptShape`: what storage keeps of a shape beside its rows, so that it goes on after a restart.

Two texts, which storage does not look into: what the shape is, and facts of its history. Those are what its
snapshot shows, as long as transactions may come again that are in there; or, of a shape with subqueries, what
it holds. What was written is read back the same; what was not written by us is an error, and the shape is
made anew.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.shape import Shape, SnapshotPoint
from penstock.shapes.storage import ShapeStorage
from penstock.shapes.subquery.held_state import HeldState


@dataclass(frozen=True, slots=True)
class KeptShape:
    definition: ShapeDefinition
    hidden: bool
    point: SnapshotPoint | None = None
    held: HeldState | None = None

    @classmethod
    def of(cls, shape: Shape, *, point: SnapshotPoint | None = None, held: HeldState | None = None) -> Self:
        return cls(shape.definition, shape.hidden, point, held)

    @classmethod
    def parse(cls, definition_text: str, facts_text: str) -> Self:
        fields, facts = json.loads(definition_text), json.loads(facts_text)
        definition = ShapeDefinition.from_json(fields["definition"])
        if definition.has_subqueries:
            return cls(definition, fields["hidden"], held=HeldState.from_json(facts["subqueries"]))
        return cls(definition, fields["hidden"], point=None if facts is None else _point_from(facts))

    def make_ready(self, storage: ShapeStorage) -> None:
        """Have it kept, from the next commit on."""
        kept = {"definition": self.definition.to_json(), "hidden": self.hidden}
        storage.make_ready(json.dumps(kept), json.dumps(self._facts()))

    def _facts(self) -> dict[str, Any] | None:
        if self.held is not None:
            return {"subqueries": self.held.to_json()}
        return None if self.point is None else asdict(self.point)


def _point_from(fields: dict[str, Any]) -> SnapshotPoint:
    return SnapshotPoint(fields["xmin"], fields["xmax"], tuple(fields["xip"]), fields["lsn"])
