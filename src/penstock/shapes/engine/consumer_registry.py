"""`ConsumerRegistry`: what the collector must know of shapes while it deals with whole batches, by slot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.shapes.engine.consumer import Consumer
from penstock.shapes.rendering.renderer import View

_FIRST = 1024


class ConsumerRegistry:
    """Consumers by slot, which view each has, and which are special (`Consumer.is_special`)."""

    def __init__(self) -> None:
        self.consumers: dict[int, Consumer] = {}
        self.is_special = np.zeros(_FIRST, np.bool_)
        self._view_of = np.zeros(_FIRST, np.int32)
        self._views: dict[View, int] = {}
        self._users: dict[int, int] = {}
        self._by_number: dict[int, View] = {}
        self._next = 0

    def add(self, consumer: Consumer) -> None:
        slot = consumer.shape.slot
        if slot >= len(self._view_of):
            size = max(slot + 1, 2 * len(self._view_of))
            self._view_of = np.resize(self._view_of, size)
            self.is_special = np.resize(self.is_special, size)
        self.consumers[slot] = consumer
        number = self._views.get(consumer.view)
        if number is None:
            number = self._views[consumer.view] = self._next
            self._by_number[number] = consumer.view
            self._next += 1
        consumer.view = self._by_number[number]  # equal views are one object
        self._users[number] = self._users.get(number, 0) + 1
        self._view_of[slot] = number
        self.note(consumer)

    def remove(self, consumer: Consumer) -> None:
        del self.consumers[consumer.shape.slot]
        number = self._views[consumer.view]
        self._users[number] -= 1
        if not self._users[number]:
            del self._users[number], self._by_number[number], self._views[consumer.view]

    def look_as(self, consumer: Consumer, view: View) -> None:
        """Have it rendered for another view from now on."""
        self.remove(consumer)
        consumer.view = view
        self.add(consumer)

    def note(self, consumer: Consumer) -> None:
        """What it is may have changed."""
        self.is_special[consumer.shape.slot] = consumer.is_special

    def views(self, slots: npt.NDArray[np.int32]) -> list[tuple[View, npt.NDArray[np.bool_] | slice]]:
        """The views these have, each with those that have it."""
        numbers = self._view_of[slots]
        if not len(numbers) or (numbers == numbers[0]).all():
            return [(self._by_number[int(number)], slice(None)) for number in numbers[:1]]
        return [(self._by_number[number], numbers == number) for number in np.unique(numbers).tolist()]
