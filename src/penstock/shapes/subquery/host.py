"""What shapes with subqueries need of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.shapes.engine.consumer import Consumer
from penstock.shapes.rendering.renderer import Chosen
from penstock.shapes.shape import Shape
from penstock.shapes.storage import LogItems
from penstock.shapes.subquery.moves import Flight
from penstock.shapes.subquery.outer import OuterShape

_T = TypeVar("_T")


class LayersHost(Protocol):
    """The engine, as this side knows it. All in its thread."""

    @property
    def last_tx(self) -> int: ...

    def deliver(self, consumer: Consumer, items: LogItems) -> None: ...

    def deliver_all(self, chosen: list[Chosen]) -> None:
        """What was changed of any shapes: of each, whole transactions."""

    def give_up(self, consumer: Consumer, reason: str, error: Exception | None = None) -> None:
        """The shape goes, soon."""

    def not_usable(self, shape: Shape) -> None:
        """Its first snapshot cannot be used."""

    def settled(self, shape: Shape) -> None:
        """A new shape has all that its snapshot lacks."""

    def note(self, consumer: Consumer) -> None:
        """Whether it is special may have changed."""

    def ask(self, outer: OuterShape, flight: Flight) -> None:
        """Have rows queried; `advance` is called when they are there, `failed` if they will not be."""

    def read(
        self, job: Callable[[], _T], then: Callable[[_T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Have it done elsewhere, and the outcome dealt with here."""
