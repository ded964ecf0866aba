"""What the pipeline file may say in a later version, and must not be taken for granted in this one.

Somebody who asks for something and finds that nobody does it has been harmed; so each of these is refused by
name instead of being unknown, or worse, ignored.
"""

from __future__ import annotations

from typing import Any

from penstock.config.problems import Problem

REMEDY = "Remove it, or wait for the version that brings it; CHANGELOG.md says what there is today."

LATER_SOURCES = ("mysql", "mongodb")
LATER_DESTINATIONS: tuple[str, ...] = ()


def unavailable(values: dict[str, Any]) -> list[Problem]:
    """Every use of something that this version cannot do yet."""
    problems: list[Problem] = []
    for section, kinds in (("source", LATER_SOURCES), ("destination", LATER_DESTINATIONS)):
        content = values.get(section)
        if isinstance(content, dict) and content.get("type") in kinds:
            problems.append(((section, "type"), f"`{content['type']}` is not available yet."))
    return problems
