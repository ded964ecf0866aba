"""A client that understands events of shapes with subqueries, and is strict about everything it is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Row = dict[str, str | None]


class EventClient:
    """Its rows, by key; of each the tags and the active positions."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._tags: dict[str, tuple[list[list[str]], list[bool]]] = {}

    def take(self, items: Iterable[dict[str, Any]]) -> None:
        for item in items:
            headers = item["headers"]
            if "event" in headers:
                self._move(headers)
            elif "operation" in headers:
                self._change(item["key"], headers, item["value"])

    def _change(self, key: str, headers: dict[str, Any], value: Row) -> None:
        operation = headers["operation"]
        assert (key in self.rows) == (operation != "insert"), f"{operation} of {key}"
        if operation == "delete":
            del self.rows[key]
            self._tags.pop(key, None)
            return
        self.rows[key] = {**self.rows.get(key, {}), **value}
        if "tags" in headers:
            active = list(headers["active_conditions"])
            tags = [tag.split("/") for tag in headers["tags"]]
            if operation == "update" and (removed := headers.get("removed_tags")):
                before = ["/".join(tag) for tag in self._tags[key][0]]
                assert set(removed) <= set(before), "tags are removed that were not there"
                assert not set(removed) & set(headers["tags"])
            self._tags[key] = tags, active
            assert self._is_in(key), f"{operation} of {key}, which no disjunct has"

    def _move(self, headers: dict[str, Any]) -> None:
        is_active = headers["event"] == "move-in"
        patterns = {(each["pos"], each["value"]) for each in headers["patterns"]}
        for key in list(self.rows):
            tags, active = self._tags[key]
            for tag in tags:
                for position, slot in enumerate(tag):
                    if slot and (position, slot) in patterns:
                        active[position] = is_active
            if not is_active and not self._is_in(key):
                del self.rows[key], self._tags[key]

    def _is_in(self, key: str) -> bool:
        tags, active = self._tags[key]
        return any(all(active[position] for position, slot in enumerate(tag) if slot) for tag in tags)
