"""Fixtures of unit tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # most tests need none of what it imports
    from tests.shape_wire import Wire


@pytest.fixture
def wire(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wire]:
    """A server whose new shapes have three rows. Its parameters, if a test gives any, are settings."""
    from tests.shape_wire import Snapshot, Wire, item

    with Wire(tmp_path / "shapes", **getattr(request, "param", {})) as wire:
        wire.shapes.snapshot = Snapshot([item(number) for number in range(3)])
        yield wire


@pytest.fixture
def meanwhile() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """Runs something while the test goes on."""
    with ThreadPoolExecutor(32) as threads:
        yield threads.submit
