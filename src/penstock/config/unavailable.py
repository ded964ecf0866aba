"""What the pipeline file may say in a later version, and must not be taken for granted in this one.

Somebody who asks for something and finds that nobody does it has been harmed; so each of these is refused by
name instead of being unknown, or worse, ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.config.problems import Problem

REMEDY = "Remove it, or wait for the version that brings it; CHANGELOG.md says what there is today."

LATER_SOURCES: tuple[str, ...] = ()
LATER_DESTINATIONS: tuple[str, ...] = ()
#: By `source.type`: what its streams cannot have (key, value; None: any), and lanes that cannot follow it.
LATER_STREAM_KEYS: dict[str, tuple[tuple[str, str | None], ...]] = {
    "mysql": (("replica_identity", "full"),),
}
#: By `source.type`: commands that end with an error.
LATER_COMMANDS: dict[str, tuple[str, ...]] = {
    "mysql": ("resync --diff --yes",),
    "mongodb": ("resync --diff --yes",),
}
LATER_LANES: dict[str, tuple[str, ...]] = {
    "mysql": ("shapes",),
    "mongodb": ("shapes",),
}


def unavailable(values: dict[str, Any]) -> list[Problem]:
    """Every use of something that this version cannot do yet."""
    problems: list[Problem] = []
    for section, kinds in (("source", LATER_SOURCES), ("destination", LATER_DESTINATIONS)):
        content = values.get(section)
        if isinstance(content, dict) and content.get("type") in kinds:
            problems.append(((section, "type"), f"`{content['type']}` is not available yet."))
    source = values.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    return [*problems, *_of_source(kind, values)] if isinstance(kind, str) else problems


def _of_source(kind: str, values: dict[str, Any]) -> Iterator[Problem]:
    """What is there for other sources."""
    streams, lanes = values.get("streams"), values.get("lanes")
    for index, stream in enumerate(streams if isinstance(streams, list) else ()):
        for key, value in LATER_STREAM_KEYS.get(kind, ()) if isinstance(stream, dict) else ():
            if key in stream and value in (None, stream[key]):
                shown = f"`{key}`" if value is None else f"`{key}: {value}`"
                yield ("streams", index, key), f"{shown} is not available yet for a source of type {kind}."
    named = lanes if isinstance(lanes, dict) else {}
    for lane in LATER_LANES.get(kind, ()):
        if lane in named:
            yield ("lanes", lane), f"is not available yet for a source of type {kind}."
