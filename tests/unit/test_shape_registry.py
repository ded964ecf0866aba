from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.core.errors import StateError
from penstock.shapes.engine.registry import ShapeRegistry
from penstock.shapes.shape import Shape
from tests.logged_changes import TABLE, definition


def add(registry: ShapeRegistry, where: str | None = None, *, hidden: bool = False) -> Shape:
    wanted = definition(where)
    storage = cast(Any, SimpleNamespace())
    shape = Shape(registry.new_handle(wanted), wanted, registry.new_slot(), storage, hidden=hidden)
    registry.add(shape)
    return shape


def test_a_shape_is_found_by_handle_and_by_what_it_is(tmp_path: Path) -> None:
    registry = ShapeRegistry(tmp_path)
    shape = add(registry, "owner = 1")

    assert registry.find(shape.handle) is shape
    assert registry.existing(definition("owner   =   1")) is shape
    assert registry.existing(definition("owner = 2")) is None
    assert registry.tables() == [TABLE]

    assert registry.remove(shape)
    assert not registry.remove(shape)
    assert registry.find(shape.handle) is None
    assert registry.existing(shape.definition) is None
    assert registry.tables() == []


def test_handles_and_slots_are_not_given_twice(tmp_path: Path) -> None:
    registry = ShapeRegistry(tmp_path)
    shapes = [add(registry, f"owner = {n}") for n in range(500)]

    assert len({shape.handle for shape in shapes}) == 500
    assert len({shape.slot for shape in shapes}) == 500
    assert len({registry.new_handle(definition()) for _ in range(500)}) == 500


def test_slots_that_became_free_are_used_again_in_time(tmp_path: Path) -> None:
    registry = ShapeRegistry(tmp_path)
    slots = set()
    for _ in range(10_000):
        slot = registry.new_slot()
        slots.add(slot)
        registry.free_slot(slot)

    assert len(slots) < 200


def test_those_not_read_for_the_longest_time_come_first_and_inner_ones_never(tmp_path: Path) -> None:
    registry = ShapeRegistry(tmp_path)
    shapes = [add(registry, f"owner = {n}", hidden=n == 0) for n in range(4)]
    for shape, at in zip(shapes, (1.0, 4.0, 2.0, 3.0), strict=True):
        shape.last_read = at

    assert registry.longest_unread(2) == [shapes[2], shapes[3]]


def test_when_shapes_were_read_outlives_a_restart(tmp_path: Path) -> None:
    registry = ShapeRegistry(tmp_path)
    shape = add(registry)
    shape.last_read = 1234.5
    registry.save_reads(registry.all())

    again = ShapeRegistry(tmp_path)
    found = Shape(shape.handle, shape.definition, 0, shape.storage)
    again.add(found)

    assert found.last_read == 1234.5


def test_the_stack_stays_the_same_and_says_whose_changes_it_has(tmp_path: Path) -> None:
    registry = ShapeRegistry(tmp_path)
    assert registry.stack.system_id == ""
    registry.read_from("7411", 3)

    again = ShapeRegistry(tmp_path).stack

    assert again == registry.stack
    assert (again.system_id, again.timeline) == ("7411", 3)
    assert len(again.stack_id) == 16


@pytest.mark.parametrize("content", ["{", "[]", '{"format_version": 99}', '{"format_version": 1, "x": 1}'])
def test_a_stack_that_cannot_be_read_is_an_error_with_a_way_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "stack.json").write_text(content)

    with pytest.raises(StateError) as caught:
        ShapeRegistry(tmp_path)
    assert caught.value.remedy
