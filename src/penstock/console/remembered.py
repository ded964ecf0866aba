"""What was said last of tables, and of what lanes could not deliver, for moments in which nobody says it.

While the source is away, or a process is started again, the instance says nothing of them; they are what
they were. So the last word stays, with the moment at which it was said, until there is another.
"""

from __future__ import annotations

from typing import Any

_OF_TABLES = ("rows", "files", "dead_letters", "differences")


class Remembered:
    def __init__(self) -> None:
        self._streams: dict[str, dict[str, Any]] = {}
        self._letters: dict[str, int] = {}

    def note(self, status: dict[str, Any], at: str) -> None:
        """What an instance says of itself."""
        for stream in status["streams"]:
            if stream["rows"] is not None:
                said = {name: stream[name] for name in _OF_TABLES}
                self._streams[stream["stream"]] = {**said, "known_at": at}
        running = {each["name"] for each in status["processes"] if each["state"] == "running"}
        for lane in status["lanes"]:
            if lane["lane"] in running:
                self._letters[lane["lane"]] = lane.get("dead_letters", 0)

    @property
    def streams(self) -> dict[str, dict[str, Any]]:
        """Of each stream, by the newest word of its table, and when that was: `known_at`."""
        return dict(self._streams)

    @property
    def letters(self) -> dict[str, int]:
        """Of each lane, how many letters it had when it ran."""
        return dict(self._letters)
