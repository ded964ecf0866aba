"""`Members`: the shapes that have subqueries, the inner ones they have, and who depends on whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.shapes.definition import ShapeDefinition
from penstock.shapes.engine.consumer import Consumer
from penstock.shapes.subquery.materializer import Materializer
from penstock.shapes.subquery.normal_form import NormalForm
from penstock.shapes.subquery.outer import OuterShape


class Members:
    """`note` is told of consumers whose changes are wanted here, or are not any more."""

    def __init__(self, note: Callable[[Consumer], None]) -> None:
        self._note = note
        self.outers: dict[int, OuterShape] = {}  # by slot
        self.consumers: dict[int, Consumer] = {}  # of inner shapes, by slot
        self.unread: list[Materializer] = []  # whose values nobody has begun to read
        self._materializers: dict[tuple[str, tuple[str, ...]], Materializer] = {}
        self._by_slot: dict[int, list[Materializer]] = {}

    @property
    def has_any(self) -> bool:
        return bool(self._materializers)

    def of_slot(self, slot: int) -> Sequence[Materializer]:
        """Those of an inner shape: one for each choice of columns."""
        return self._by_slot.get(slot, ())

    def require(self, consumer: Consumer, columns: tuple[str, ...]) -> Materializer:
        shape = consumer.shape
        key = shape.definition.identity, columns
        found = self._materializers.get(key)
        if found is None:
            found = self._materializers[key] = Materializer(shape, columns, form_of(shape.definition))
            self._by_slot.setdefault(shape.slot, []).append(found)
            self.unread.append(found)
            self.consumers[shape.slot] = consumer
            consumer.feeds_layers = True
            self._note(consumer)
            if shape.slot in self.outers:
                self.outers[shape.slot].sinks.append(found)
        return found

    def are_ready(self, definition: ShapeDefinition) -> bool:
        """Whether the values of all its subqueries are known."""
        found = [self._materializers.get(key) for key in _keys(definition)]
        return all(each is not None and each.state == "ready" for each in found)

    def add(self, consumer: Consumer, salt: str) -> OuterShape:
        shape, form = consumer.shape, form_of(consumer.shape.definition)
        assert form is not None, "it has subqueries"
        sets = [self._materializers[key] for key in _keys(shape.definition)]
        outer = OuterShape(consumer, form, sets, salt)
        inner = (self.outers.get(each.shape.slot) for each in sets)
        outer.depth = 1 + max((each.depth for each in inner if each is not None), default=0)
        outer.sinks = list(self.of_slot(shape.slot))
        for subquery in form.subqueries:
            sets[subquery].dependents.append((outer, subquery))
        self.outers[shape.slot] = outer
        return outer

    def remove(self, slot: int) -> None:
        """A shape goes; inner ones that nobody needs then need not be followed."""
        outer = self.outers.pop(slot, None)
        for made in outer.materializers if outer is not None else ():
            made.dependents = [each for each in made.dependents if each[0] is not outer]
            if not made.dependents:
                self._forget(made)
        for made in list(self.of_slot(slot)):
            self._forget(made)

    def _forget(self, made: Materializer) -> None:
        slot = made.shape.slot
        self._materializers.pop((made.shape.definition.identity, made.columns), None)
        rest = [each for each in self.of_slot(slot) if each is not made]
        if slot in self.outers:
            self.outers[slot].sinks = rest
        if rest:
            self._by_slot[slot] = rest
        else:
            self._by_slot.pop(slot, None)
            consumer = self.consumers.pop(slot, None)
            if consumer is not None:
                consumer.feeds_layers = False
                self._note(consumer)
        if made in self.unread:
            self.unread.remove(made)
        if not made.loaded.done():
            made.loaded.cancel()


def form_of(definition: ShapeDefinition) -> NormalForm | None:
    where = definition.where
    return NormalForm.of(where.condition.expression) if where is not None and where.subqueries else None


def _keys(definition: ShapeDefinition) -> list[tuple[str, tuple[str, ...]]]:
    assert definition.where is not None
    return [(atom.definition.identity, atom.columns) for atom in definition.where.subqueries]
