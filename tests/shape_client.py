"""The published clients in a Node process, each shape under a name (`clients/drive.mjs`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import wait_until
from tests.node import NodeProcess

_SCRIPT = Path(__file__).parent / "clients" / "drive.mjs"
Row = dict[str, Any]
State = dict[str, Any]


class ShapeClient(NodeProcess):
    def __init__(self) -> None:
        super().__init__(_SCRIPT)

    def open(self, name: str, *, hook: bool = False, **options: Any) -> None:
        """`options` are the client's own: url, params, offset, handle, liveSse, log, …"""
        self.ask("open", name=name, options=options, hook=hook)

    def state(self, name: str) -> State:
        state: State = self.ask("state", name=name)
        assert not state["errors"], state["errors"]
        return state

    def messages(self, name: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.ask("messages", name=name)
        return messages

    def snapshot(self, name: str, **subset: Any) -> None:
        self.ask("snapshot", name=name, subset=subset)

    def close(self, name: str) -> None:
        self.ask("close", name=name)

    def wait(self, name: str, condition: Callable[[State], bool], what: str) -> State:
        """Until the shape is as wanted; its state then."""
        last: State = {}

        def come() -> bool:
            last.update(self.state(name))
            return condition(last)

        try:
            wait_until(come, what)
        except BaseException:
            print(json.dumps(last, indent=1))
            raise
        return last
