"""Orders to a running instance, over its socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.shapes.admin import ask, serve_admin
from tests.shape_wire import Wire


@pytest.mark.parametrize(
    ("table", "is_meant"), [("public.items", True), ("items", True), ("other.items", False)]
)
def test_shapes_are_dropped_by_the_name_of_their_table(tmp_path: Path, table: str, is_meant: bool) -> None:
    """Without a schema it is in `public`, as in requests."""
    with Wire(tmp_path / "shapes") as wire:
        shape = wire.synced()
        server = wire.run(serve_admin(tmp_path / "admin", wire.shapes))
        try:
            answer = ask(tmp_path / "admin", {"request": "drop", "table": table})
        finally:
            wire.run(_closed(server))
        assert answer == {"dropped": [shape.handle] if is_meant else []}


async def _closed(server: asyncio.Server) -> None:
    server.close()
    await server.wait_closed()
